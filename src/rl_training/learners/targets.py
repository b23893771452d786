"""Targets and returns that the losses share, as pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor


def td_target(rewards: Tensor, terminated: Tensor, next_values: Tensor, gamma: float | Tensor) -> Tensor:
    """Return r + gamma * V(s'), without the second term after a true termination. All (batch,).

    A time limit is no termination: the target bootstraps from the value of the final observation. For n-step returns,
    `rewards` is the discounted sum and `gamma`, one per row, the discount of the bootstrap.
    """
    return rewards + gamma * (~terminated) * next_values


def td_loss(values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Return the error of each row: Huber with delta 1 ("huber", half the squared error within 1) or squared error."""
    if kind == "huber":
        return F.huber_loss(values, targets, reduction="none", delta=1.0)
    return F.mse_loss(values, targets, reduction="none")


def quantile_huber(values: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """Return the quantile regression loss of each row: (batch, n), (batch, m), taus (batch, n) or (n,) -> (batch,).

    |tau_i - 1{u < 0}| * Huber_kappa(u) / kappa with u = target_j - value_i; kappa = 0: |tau_i - 1{u < 0}| * |u|. Mean
    over targets, sum over values: each value's gradient then depends on neither count. Dabney et al. 2018, equation 10.
    """
    errors = targets[:, None, :] - values[:, :, None]  # (batch, values, targets)
    weights = (taus[..., None] - (errors.detach() < 0.0).to(errors.dtype)).abs()
    if kappa == 0.0:
        losses = errors.abs()
    else:
        losses = F.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=kappa) / kappa
    return (weights * losses).mean(2).sum(1)


def project(probabilities: Tensor, positions: Tensor, atoms: Tensor) -> Tensor:
    """Project probability mass from any positions to evenly spaced atoms: (batch, n), (batch, n), (m,) -> (batch, m).

    Mass between two atoms is split so that its mean stays; mass beyond an end goes to that end.
    Bellemare et al. 2017, equation 7.
    """
    last = len(atoms) - 1
    places = (positions.clamp(atoms[0], atoms[-1]) - atoms[0]) * (last / (atoms[-1] - atoms[0]))  # in [0, last]
    # The upper end belongs to the last gap: a mass exactly on an atom is then counted once, there too.
    lower = places.floor().clamp(max=last - 1)
    upper_share = places - lower
    index = lower.long()
    shape = (len(probabilities), len(atoms))
    projected = torch.zeros(shape, dtype=probabilities.dtype, device=probabilities.device)
    projected = projected.scatter_add(1, index, probabilities * (1.0 - upper_share))
    return projected.scatter_add(1, index + 1, probabilities * upper_share)


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
