"""One-step targets and the losses of their errors, as pure functions."""

import torch.nn.functional as F
from torch import Tensor

from rl_training.core.types import Batch, Metrics
from rl_training.learners.checks import FLOATS, Expected, check_tensors
from rl_training.learners.q_losses import weighted_mean


def td_target(rewards: Tensor, terminated: Tensor, next_values: Tensor, gamma: float | Tensor) -> Tensor:
    """Return r + gamma * V(s'), without the second term after a true termination. All (batch,).

    A time limit is no termination: the target bootstraps from the value of the final observation. For n-step returns,
    `rewards` is the discounted sum and `gamma`, one per row, the discount of the bootstrap.
    """
    return rewards + gamma * (~terminated) * next_values


def clip_to_returns(targets: Tensor, gamma: float) -> Tensor:
    """Return targets within [-1 / (1 - gamma), 0]: the returns of rewards that are -1 until a goal is reached, then 0.

    Andrychowicz et al. 2017, Hindsight experience replay, section A.
    """
    return targets.clamp(-1.0 / (1.0 - gamma), 0.0)


def td_loss(values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Return the error of each row: Huber with delta 1 ("huber", half the squared error within 1) or squared error."""
    if kind == "huber":
        return F.huber_loss(values, targets, reduction="none", delta=1.0)
    return F.mse_loss(values, targets, reduction="none")


_CRITICS = {"values": Expected(FLOATS, "critics batch"), "targets": Expected(FLOATS, "batch")}


def critic_metrics(values: Tensor, targets: Tensor, batch: Batch) -> Metrics:
    """Compute the critics' loss and its metrics from their values, (critics, batch), and the targets, (batch,).

    Squared errors are summed over the critics: each then learns as if it were alone.
    """
    check_tensors("critic loss", {"values": values, "targets": targets}, _CRITICS)
    errors = values - targets
    td_errors = errors.detach().abs().mean(0)
    return {
        "loss": weighted_mean(errors.square().sum(0), batch),
        "q_value_mean": values.detach().mean(),
        "target_mean": targets.mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }
