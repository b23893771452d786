"""Discrete SAC's networks."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from rl_training.models.continuous import BuildEncoder
from rl_training.models.layers import StackedLayerNorm, StackedLinear, mlp


class MLPDiscreteSACModel(nn.Module):
    """`actor`: (batch, *obs) -> logits, (batch, actions). `critics`: (batch, *obs) -> (critics, batch, actions).

    Each has its own encoder; the critics share theirs. `layer_norm` applies to the critics.
    """

    def __init__(
        self,
        build_encoder: BuildEncoder,
        num_actions: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        num_critics: int = 2,
        layer_norm: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        encoder, features = build_encoder()
        self.actor = nn.Sequential(encoder, *mlp(features, hidden_sizes, num_actions, residual=residual))
        encoder, features = build_encoder()
        layers = mlp(
            features,
            hidden_sizes,
            num_actions,
            layer_norm=layer_norm,
            dense=partial(StackedLinear, num_critics),
            norm=partial(StackedLayerNorm, num_critics),
            residual=residual,
        )
        self.critics = nn.Sequential(encoder, *layers)
