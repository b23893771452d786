"""Gradients of a recurrent cell's weights, computed for all steps at once.

    s_t = f(s_{t-1}, x_t; w)    g_t = dL/ds_t + g_{t+1} df(s_t, x_{t+1})/ds_t    dL/dw = sum of g_t df(s_{t-1}, x_t)/dw

Automatic differentiation of a loop adds a product of each step to the gradient of each weight. Here the loop takes the
steps without gradients of weights. Their outputs are then computed once more for all steps together, from the states
before. `chain` returns these and, backwards, adds to their gradients what reaches them through later steps: the only
part that needs a loop.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """A step of the loop: the states before, which are the first outputs of the step before, and all its outputs."""

    before: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def take_steps(
    cell: Callable[..., tuple[Tensor, ...]], states: Sequence[Tensor], inputs: Iterable[Sequence[Any]]
) -> list[Step]:
    """Call `cell(*states, *inputs)` for each of the inputs; its first outputs are the next states.

    Neither the inputs nor the weights of the cell may need a gradient.
    """
    steps = []
    for each in inputs:
        before = tuple(state.detach().requires_grad_() for state in states)
        outputs = cell(*before, *each)
        steps.append(Step(before, outputs))
        states = outputs[: len(states)]
    return steps


def take_plain_steps(
    cell: Callable[..., tuple[Tensor, ...]], states: Sequence[Tensor], inputs: Iterable[Sequence[Any]]
) -> list[tuple[Tensor, ...]]:
    """Call the cell in a loop that is differentiated as it is, and return its outputs.

    Transforms such as vmap accept neither `requires_grad_` nor `chain`.
    """
    outputs = []
    for each in inputs:
        outputs.append(cell(*states, *each))
        states = outputs[-1][: len(states)]
    return outputs


def chain(steps: list[Step], *outputs: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs of all steps, (steps, ...) each, with the gradient of the loop."""
    chained: tuple[Tensor, ...] = _Chain.apply(steps, *outputs)  # type: ignore[no-untyped-call]
    return chained


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: list[Step], *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.steps = steps
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *direct: Tensor) -> tuple[Tensor | None, ...]:
        """Add to the gradients of the states, step by step from the last, those of the steps after."""
        totals: list[tuple[Tensor, ...]] = []
        later: tuple[Tensor, ...] = ()  # the gradients of the states before the last step that was taken
        by_step = list(zip(*(each.unbind() for each in direct), strict=True))
        for step, gradients in zip(reversed(ctx.steps), reversed(by_step), strict=True):
            states = tuple(now + after for now, after in zip(gradients, later, strict=False))
            totals.append((*states, *gradients[len(states) :]))
            later = torch.autograd.grad(step.outputs, step.before, totals[-1])
        return None, *(torch.stack(each[::-1]) for each in zip(*totals, strict=True))
