"""Pure maths shared by the losses."""

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
