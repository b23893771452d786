"""What the losses of the DQN family share."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_training.core.types import Batch

Apply = Callable[..., Any]  # (params, obs, ...) -> the network's outputs


def noisy_copies(apply: Apply, batch: Batch) -> tuple[Apply, Apply, Apply]:
    """Return the network for the values of the state, for those of the successor and for selecting its action.

    If the batch brings noise, (3, numbers), each has its own: with shared noise their errors would be correlated.
    """
    if "noise" not in batch:
        return apply, apply, apply
    online, target, selection = (partial(apply, noise=noise) for noise in batch["noise"].unbind())
    return online, target, selection


def greedy_actions(q_values: Tensor, batch: Batch) -> Tensor:
    """Return the best action of the successor that its mask allows: (batch, actions) -> (batch,)."""
    if "next_action_mask" in batch:
        q_values = q_values.masked_fill(~batch["next_action_mask"], -torch.inf)
    return q_values.argmax(1)


def pick(values: Tensor, actions: Tensor) -> Tensor:
    """Pick the entry of one action in each row: (batch, actions, ...), (batch,) -> (batch, ...)."""
    # The deterministic gradient of `gather` sorts on a GPU, which takes longer than all products of a small network.
    return _pick_by_mask(values, actions) if values.is_cuda else _pick_by_index(values, actions)


def _pick_by_index(values: Tensor, actions: Tensor) -> Tensor:
    index = actions.view(-1, *(1,) * (values.ndim - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)


def _pick_by_mask(values: Tensor, actions: Tensor) -> Tensor:
    rest = (1,) * (values.ndim - 2)
    choices = torch.arange(values.shape[1], device=values.device).view(1, -1, *rest)
    return torch.where(actions.view(-1, 1, *rest) == choices, values, 0.0).sum(1)


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the rows, with the importance weights of prioritized replay if there are any."""
    return (batch["weights"] * losses).mean() if "weights" in batch else losses.mean()
