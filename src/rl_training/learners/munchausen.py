"""Munchausen targets: the agent is rewarded for what its policy already prefers, and values are soft.

    pi = softmax(Q_target / tau)
    y  = r + alpha * clip(tau log pi(a|s), l0, 0) + gamma * sum_a' pi(a'|s') (Q_target(s', a') - tau log pi(a'|s'))

Vieillard et al. 2020, Munchausen reinforcement learning. Pure functions; tau is in the unit of the rewards.
"""

from typing import Protocol

import torch
from torch import Tensor


class MunchausenSettings(Protocol):
    """The settings that `bonus` reads."""

    @property
    def munchausen_alpha(self) -> float: ...
    @property
    def munchausen_tau(self) -> float: ...
    @property
    def munchausen_clip(self) -> float: ...


def scaled_log_policy(q_values: Tensor, tau: float) -> Tensor:
    """Return tau log pi of every action: (batch, actions) -> same.

    The largest value is subtracted first: divided by a tau of 0.03, values as they are would overflow.
    """
    shifted = q_values - q_values.amax(1, keepdim=True)
    return shifted - tau * torch.logsumexp(shifted / tau, 1, keepdim=True)


def bonus(q_values: Tensor, actions: Tensor, hparams: MunchausenSettings) -> Tensor:
    """Return alpha * clip(tau log pi(a|s), l0, 0) of the actions taken: (batch, actions), (batch,) -> (batch,)."""
    taken = scaled_log_policy(q_values, hparams.munchausen_tau).gather(1, actions[:, None]).squeeze(1)
    return hparams.munchausen_alpha * taken.clamp(min=hparams.munchausen_clip)


def soft_values(q_values: Tensor, values: Tensor, tau: float) -> Tensor:
    """Return the expectation over pi of `values` - tau log pi: (batch, actions), (batch, actions, ...) -> (batch, ...).

    `q_values` determine pi; `values` may be quantiles of the return, whose means they are.
    """
    log_policy = scaled_log_policy(q_values, tau)
    log_policy = log_policy.reshape(*log_policy.shape, *(1,) * (values.ndim - 2))
    return ((log_policy / tau).exp() * (values - log_policy)).sum(1)
