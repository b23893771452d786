"""CrossQ's networks: batch renormalisation of the inputs and after every hidden layer."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rl_training.models.batch_renorm import BatchRenorm, Renormalized
from rl_training.models.continuous import BuildEncoder
from rl_training.models.layers import Dense, Norm, StackedLinear, init_truncated

NUM_CRITICS = 2


def renormalized_layers(
    in_features: int, hidden_sizes: Sequence[int], out_features: int, *, dense: Dense, norm: Norm
) -> list[nn.Module]:
    """Return the layers of an MLP whose norms stand before the first layer and after each activation."""
    layers = [norm(in_features)]
    for size in hidden_sizes:
        layers += [dense(in_features, size), nn.ReLU(), norm(size)]
        in_features = size
    return [*layers, dense(in_features, out_features)]


class MLPCrossQModel(nn.Module):
    """`actor`: (batch, *obs) -> (batch, outputs). `critics`: (batch, *obs), (batch, *action) -> (critics, batch).

    With a last argument `corrects` they normalise by the moments of the batch and return these, too.
    """

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        critic_hidden_sizes: Sequence[int] = (2048, 2048),
    ) -> None:
        super().__init__()
        encoder, features = build_encoder()
        layers = renormalized_layers(features, hidden_sizes, 2 * action_dim, dense=nn.Linear, norm=BatchRenorm)
        self.actor = Renormalized(encoder, *layers)
        self.critics = RenormalizedCritics(build_encoder, action_dim, critic_hidden_sizes)
        init_truncated(self)


class RenormalizedCritics(nn.Module):
    """Two Q-functions that share only an encoder."""

    def __init__(self, build_encoder: BuildEncoder, action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.encoder, features = build_encoder()
        layers = renormalized_layers(
            features + action_dim,
            hidden_sizes,
            1,
            dense=partial(StackedLinear, NUM_CRITICS),
            norm=lambda size: BatchRenorm(size, NUM_CRITICS),
        )
        self.layers = Renormalized(*layers)

    def forward(self, obs: Tensor, actions: Tensor, corrects: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        inputs = torch.cat((self.encoder(obs), actions.reshape(len(actions), -1)), 1)
        inputs = inputs.expand(NUM_CRITICS, -1, -1)
        if corrects is None:
            values: Tensor = self.layers(inputs)
            return values.squeeze(2)
        values, moments = self.layers(inputs, corrects)
        return values.squeeze(2), moments
