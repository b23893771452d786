"""A policy without critics, for imitation and offline algorithms."""

import math
from collections.abc import Callable, Sequence

import gymnasium as gym
from torch import nn

from rl_training.models.distributions import Distribution, Gaussian, build_distribution
from rl_training.models.layers import LearnedRow, Parallel, init_orthogonal, mlp

LOG_STD_RANGE = (-5.0, 2.0)


class MLPPolicy(nn.Sequential):
    """(batch, *obs) -> (batch, outputs): logits, or means in (-1, 1) and log standard deviations of Box actions.

    The deviations are learned but do not depend on the observation: on narrow data, such as that of a deterministic
    policy, deviations per observation would shrink without limit.
    """

    def __init__(
        self,
        build_encoder: Callable[[], tuple[nn.Module, int]],
        action_space: gym.Space[object],
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        residual: bool = False,
        orthogonal: bool = True,
        log_std_init: float = 0.0,
    ) -> None:
        encoder, features = build_encoder()
        distribution = policy_distribution(action_space)
        if isinstance(distribution, Gaussian):
            size = distribution.num_outputs // 2
            means = nn.Sequential(*mlp(features, hidden_sizes, size, residual=residual), nn.Tanh())
            head: list[nn.Module] = [Parallel(means, LearnedRow(size, log_std_init))]
        else:
            head = mlp(features, hidden_sizes, distribution.num_outputs, residual=residual)
        super().__init__(encoder, *head)
        if orthogonal:
            init_orthogonal(self, math.sqrt(2.0))


def policy_distribution(action_space: gym.Space[object]) -> Distribution:
    """Return the distribution for the outputs of `MLPPolicy`: as for PPO, but with bounded deviations."""
    if isinstance(action_space, gym.spaces.Box):
        return Gaussian(tuple(action_space.shape), LOG_STD_RANGE)
    return build_distribution(action_space)
