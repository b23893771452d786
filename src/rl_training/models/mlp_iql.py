"""IQL's networks."""

import math
from collections.abc import Sequence

import gymnasium as gym
from torch import nn

from rl_training.models.continuous import BuildEncoder, CriticEnsemble
from rl_training.models.layers import init_orthogonal, mlp
from rl_training.models.mlp_policy import MLPPolicy


class MLPIQLModel(nn.Module):
    """A policy over bounded actions, two critics and the value of a state, each with its own encoder.

    `actor`: (batch, *obs) -> (batch, 2 * numbers). `critics`: (batch, *obs), (batch, *action) -> (2, batch).
    `value`: (batch, *obs) -> (batch,).
    """

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_space: gym.spaces.Box,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        layer_norm: bool = False,
        residual: bool = False,
        orthogonal: bool = True,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        self.actor = MLPPolicy(
            build_encoder,
            action_space,
            hidden_sizes,
            residual=residual,
            orthogonal=orthogonal,
            log_std_init=log_std_init,
        )
        action_dim = math.prod(action_space.shape)
        self.critics = CriticEnsemble(
            build_encoder, action_dim, hidden_sizes, num_critics=2, layer_norm=layer_norm, residual=residual
        )
        encoder, features = build_encoder()
        layers = mlp(features, hidden_sizes, 1, layer_norm=layer_norm, residual=residual)
        self.value = nn.Sequential(encoder, *layers, nn.Flatten(0))
        if orthogonal:
            for part in (self.critics, self.value):
                init_orthogonal(part, math.sqrt(2.0))
