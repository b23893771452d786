"""Returns and advantages over many steps, as pure functions."""

from collections.abc import Callable

import torch
from torch import Tensor

from rl_training.core.types import Batch
from rl_training.learners.targets import td_target


def discounted_sum(values: Tensor, decay: Tensor) -> Tensor:
    """Return y[t] = values[t] + decay[t] * y[t + 1], from the end of the first axis, (steps, ...).

    It takes log2(steps) rounds instead of a loop: after each round y[t] holds the sum over twice as many steps, and
    decay[t] the product of their decays.
    """
    total, reach = values, 1
    while reach < len(values):
        total = torch.cat((total[:-reach] + decay[:-reach] * total[reach:], total[-reach:]))
        decay = torch.cat((decay[:-reach] * decay[reach:], torch.zeros_like(decay[-reach:])))
        reach *= 2
    return total


def lambda_return(rewards: Tensor, discounts: Tensor, values: Tensor, trace: float | Tensor) -> Tensor:
    """Return R[t] = rewards[t] + discounts[t] ((1 - trace[t]) values[t] + trace[t] R[t + 1]); R[steps] is values[-1].

    All (steps, ...). Entry t describes the successor of step t: the reward that led to it, its discount (0 where an
    episode terminates) and its value. `trace` is lambda, or 0 where the next step belongs to another episode.
    Hafner et al. 2020, equation 6.
    """
    stepwise = rewards + discounts * (1.0 - trace) * values
    last = rewards[-1:] + discounts[-1:] * values[-1:]
    return discounted_sum(torch.cat((stepwise[:-1], last)), discounts * trace)


def successor_values(rollout: Batch, values: Tensor, value_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the value of the true successor of every row of a rollout, (steps, envs) as `values`.

    `value_of`: (rows, *obs) -> (rows,). A rollout holds `next_obs` of every row, or the observations `final_obs` that
    follow the rows `final_rows`, where the next row is no successor: at time limits and at the end.
    """
    if "next_obs" in rollout:
        return value_of(rollout["next_obs"]).view(values.shape)
    next_values = torch.cat((values[1:], values[-1:]))  # the last row's are among the final ones
    next_values.view(-1)[rollout["final_rows"]] = value_of(rollout["final_obs"])
    return next_values


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
    """Return generalised advantage estimates: TD errors summed with the discount gamma * lambda up to an episode's end.

    All (steps, envs). `next_values` are those of the true successors: at a time limit, of the final observation, not of
    the first one of the next episode. Schulman et al. 2016, High-dimensional continuous control using GAE.
    """
    td_errors = td_target(rewards, terminated, next_values, gamma) - values
    return discounted_sum(td_errors, gamma * gae_lambda * ~(terminated | truncated))
