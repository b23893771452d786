"""SimBaV2's networks: an actor and categorical critics on the unit hypersphere."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.continuous import BuildEncoder
from rl_training.models.hyperspherical import UnitBlock, UnitEmbedding, UnitHead

LOG_STD_RANGE = (-10.0, 2.0)


def trunk(in_features: int, hidden_sizes: Sequence[int], *members: int) -> list[nn.Module]:
    """Return an embedding and a block for each of the sizes, which are all alike."""
    blocks = [UnitBlock(size, *members, num_blocks=len(hidden_sizes)) for size in hidden_sizes]
    return [UnitEmbedding(in_features, hidden_sizes[0], *members), *blocks]


class GaussianHead(nn.Module):
    """Means and log standard deviations, from a head each: (batch, size) -> (batch, 2 * action_dim)."""

    def __init__(self, size: int, action_dim: int) -> None:
        super().__init__()
        self.mean, self.log_std = UnitHead(size, action_dim), UnitHead(size, action_dim)

    def forward(self, x: Tensor) -> Tensor:
        low, high = LOG_STD_RANGE
        return torch.cat((self.mean(x), low + 0.5 * (high - low) * (1.0 + self.log_std(x).tanh())), 1)


class MLPSimBaV2Model(nn.Module):
    """An actor and categorical critics.

    `actor`: (batch, *obs) -> (batch, outputs). `critics`: (batch, *obs), (batch, *action) -> (critics, batch, atoms).
    """

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_dim: int,
        hidden_sizes: Sequence[int] = (128,),
        critic_hidden_sizes: Sequence[int] = (512, 512),
        *,
        num_critics: int = 2,
        num_atoms: int = 101,
    ) -> None:
        super().__init__()
        encoder, features = build_encoder()
        self.actor = nn.Sequential(encoder, *trunk(features, hidden_sizes), GaussianHead(hidden_sizes[-1], action_dim))
        self.critics = CategoricalCritics(build_encoder, action_dim, critic_hidden_sizes, num_critics, num_atoms)


class CategoricalCritics(nn.Module):
    """Several distributions of the return, as logits of their atoms."""

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_critics: int,
        num_atoms: int,
    ) -> None:
        super().__init__()
        self.encoder, features = build_encoder()
        layers = trunk(features + action_dim, hidden_sizes, num_critics)
        self.layers = nn.Sequential(*layers, UnitHead(hidden_sizes[-1], num_atoms, num_critics))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat((self.encoder(obs), actions.reshape(len(actions), -1)), 1)
        logits: Tensor = self.layers(inputs)
        return logits
