"""GAIL's discriminator."""

import math
from collections.abc import Sequence

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.continuous import BuildEncoder
from rl_training.models.encoders import OneHot
from rl_training.models.layers import mlp


class MLPGAILDiscriminator(nn.Module):
    """(batch, *obs), (batch, *action) -> (batch,): the logit of "this row is from the expert".

    `inputs` combines both into one vector, `layers` classify it. A gradient penalty applies to the vectors in between.
    """

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_space: gym.Space[object],
        hidden_sizes: Sequence[int] = (100, 100),
        *,
        absorbing_state: bool = False,
    ) -> None:
        super().__init__()
        self.inputs = DiscriminatorInputs(build_encoder, action_space, absorbing_state)
        self.layers = nn.Sequential(*mlp(self.inputs.size, hidden_sizes, 1, activation=nn.Tanh), nn.Flatten(0))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        logits: Tensor = self.layers(self.inputs(obs, actions))
        return logits

    def absorbing_logit(self) -> Tensor:
        """Return the logit of the absorbing state, (1,). The network must have been built with one."""
        logit: Tensor = self.layers(self.inputs.absorbing_vector)
        return logit


class DiscriminatorInputs(nn.Module):
    """Encoded observations and actions in one vector: (batch, *obs), (batch, *action) -> (batch, size).

    With an absorbing state, the last number is 1 in that state and 0 elsewhere; the others are 0 in that state. Rows of
    `obs` and `actions` are ignored where `absorbing`, (batch,), is true.
    """

    absorbing_vector: Tensor  # (1, size)

    def __init__(self, build_encoder: BuildEncoder, action_space: gym.Space[object], absorbing_state: bool) -> None:
        super().__init__()
        self.encoder, features = build_encoder()
        self.actions, numbers = action_encoder(action_space)
        self.size = features + numbers + absorbing_state
        self._padding = (0, int(absorbing_state))
        absorbing_vector = torch.zeros(1, self.size)
        absorbing_vector[:, -1] = 1.0
        self.register_buffer("absorbing_vector", absorbing_vector, persistent=False)

    def forward(self, obs: Tensor, actions: Tensor, absorbing: Tensor | None = None) -> Tensor:
        vectors = F.pad(torch.cat((self.encoder(obs), self.actions(actions)), 1), self._padding)
        return vectors if absorbing is None else torch.where(absorbing[:, None], self.absorbing_vector, vectors)


def action_encoder(space: gym.Space[object]) -> tuple[nn.Module, int]:
    """Return the encoder of actions and the size of its output: choices become one-hot vectors."""
    if isinstance(space, gym.spaces.Discrete):
        return OneHot([int(space.n)], [0]), int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return OneHot(space.nvec.tolist(), [0] * len(space.nvec)), int(space.nvec.sum())
    return Clipped(), math.prod(space.shape or ())


class Clipped(nn.Module):
    """Actions clipped as for the environment: a policy samples beyond the bounds, expert data never do."""

    def forward(self, actions: Tensor) -> Tensor:
        return actions.to(torch.float32).reshape(len(actions), -1).clamp(-1.0, 1.0)
