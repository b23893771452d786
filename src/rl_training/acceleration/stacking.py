"""One step for all members of a population: every tensor of the state and the batch has a leading `members` axis."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.acceleration.steps import Step
from rl_training.core.types import Batch, Metrics, State

ALIVE = "alive"  # entry of a stacked state, (members,): whether all numbers of a member have been finite so far


def stacked(step: Step) -> Step:
    """Return the pure step that updates all members at once, each as `step` would alone.

    A member that diverges keeps its last finite state, and `alive` of the state becomes False for it. The others do not
    notice. Randomness is data: a draw inside the step is an error.
    """
    each = torch.func.vmap(step, randomness="error")

    def stacked_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        members = {name: value for name, value in state.items() if name != ALIVE}
        new, metrics = each(members, batch)
        # The losses alone would come one step too late: the parameters would be lost by then.
        watched = [value for name, value in metrics.items() if name.endswith(("loss", "grad_norm"))]
        watched += [
            value.flatten(1).sum(1) for name, value in new.items() if name.endswith("params") and value.ndim > 1
        ]
        alive = state[ALIVE] & torch.isfinite(torch.stack(watched)).all(0)

        def keep(value: Tensor, old: Tensor) -> Tensor:  # not a product with the mask: 0 * NaN is NaN
            return torch.where(alive.view(-1, *(1,) * (value.ndim - 1)), value, old)

        return {name: keep(value, state[name]) for name, value in new.items()} | {ALIVE: alive}, metrics

    return stacked_step
