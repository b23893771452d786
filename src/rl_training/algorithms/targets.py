"""Pure maths shared by the losses."""

import torch
import torch.nn.functional as F
from torch import Tensor


def td_target(rewards: Tensor, terminated: Tensor, next_values: Tensor, gamma: float) -> Tensor:
    """r + gamma * V(s'), without the second term after a true termination. All (batch,).

    A time limit is no termination: there the value of the final observation still counts.
    """
    return rewards + gamma * (~terminated) * next_values


def td_loss(values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Error of each row, not reduced: half the squared error within 1 ("huber", delta 1), or the squared error."""
    if kind == "huber":
        return F.huber_loss(values, targets, reduction="none", delta=1.0)
    return F.mse_loss(values, targets, reduction="none")


def discounted_sum(values: Tensor, decay: Tensor) -> Tensor:
    """y[t] = values[t] + decay[t] * y[t + 1], from the end of the first axis, (steps, ...).

    In log2(steps) rounds instead of a loop: after each, y[t] holds the sum over twice as many steps, and decay[t] the
    product of their decays.
    """
    total, reach = values, 1
    while reach < len(values):
        total = torch.cat((total[:-reach] + decay[:-reach] * total[reach:], total[-reach:]))
        decay = torch.cat((decay[:-reach] * decay[reach:], torch.zeros_like(decay[-reach:])))
        reach *= 2
    return total


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates: TD errors summed with the discount gamma * lambda, up to the episode's end.

    All (steps, envs). `next_values` are those of the true successors: at a time limit of the final observation, not of
    the next episode's first. Schulman et al. 2016, High-dimensional continuous control using GAE.
    """
    td_errors = td_target(rewards, terminated, next_values, gamma) - values
    return discounted_sum(td_errors, gamma * gae_lambda * ~(terminated | truncated))
