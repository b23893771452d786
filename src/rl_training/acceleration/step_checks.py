"""Compare a compiled or captured step with the eager one on a live batch, within the bounds of rounding.

A wrong kernel would train a wrong policy without a word. So a program that is new to the cache is compared before its
first use, and again every `repeated_checks` steps if the run asks for it. The state is as before afterwards, so a check
changes no result.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from rl_training.core.types import Batch, Metrics, State

InPlace: TypeAlias = Callable[[State, Batch], Metrics]  # writes the new state into the tensors of `state`

# Share of its change by which a tensor of the state may differ. Rounding alone comes near it in one case: Adam's first
# step has the size of the learning rate for every weight, so that a gradient near 0 may change the direction.
CHANGE_TOLERANCE = 0.05
STATE_TOLERANCE = 1e-6  # share of the tensor itself
METRIC_TOLERANCE = 0.01  # share of the metric, or of 1 where it is smaller
REDUCED_PRECISION = 10.0  # times these bounds if products are rounded to bfloat16 or TF32

log = logging.getLogger("rl_training.acceleration")
_every = 0


@contextlib.contextmanager
def repeated_checks(every: int) -> Iterator[None]:
    """Compare each compiled or captured step again after `every` calls while the block runs; 0: only when it is new."""
    global _every
    before, _every = _every, every
    try:
        yield
    finally:
        _every = before


def is_due(calls: int) -> bool:
    return _every > 0 and calls % _every == 0


def checked(fast: InPlace, eager: InPlace, state: State, batch: Batch, name: str) -> InPlace:
    """Return `fast` if it does on this batch what `eager` does, up to rounding; otherwise warn and return `eager`."""
    wrong = _differences(fast, eager, state, batch)
    if not wrong:
        return fast
    log.warning(
        "the compiled %s differs from the eager one by more than rounding in %s; it runs eagerly from now on, "
        "several times slower. Please report this",
        name,
        ", ".join(wrong[:5]) + (" and others" if len(wrong) > 5 else ""),
    )
    return eager


@torch.no_grad()
def _differences(fast: InPlace, eager: InPlace, state: State, batch: Batch) -> list[str]:
    """Run both and return the names of the tensors that differ; the state is the same afterwards."""
    before, expected = copy_tensors(state), copy_tensors(state)
    expected_metrics = eager(expected, batch)
    metrics = fast(state, batch)  # not on a copy: a captured step works on the memory of this state
    scale = 1.0 if torch.get_float32_matmul_precision() == "highest" else REDUCED_PRECISION
    wrong = []
    for key, value in expected.items():
        allowed = CHANGE_TOLERANCE * _distance(value, before[key]) + STATE_TOLERANCE * _distance(value)
        wrong += [] if _is_close(state[key], value, scale * allowed) else [key]
        state[key].copy_(before[key])
    for key, value in expected_metrics.items():
        allowed = METRIC_TOLERANCE * (_distance(value) + math.sqrt(value.numel()))
        wrong += [] if key in metrics and _is_close(metrics[key], value, scale * allowed) else [key]
    return wrong


def _is_close(found: Tensor, expected: Tensor, allowed: float) -> bool:
    error = _distance(found, expected)
    return error == 0.0 or error <= allowed  # `allowed` is NaN if the eager step gave NaN: only the same is close


def _distance(value: Tensor, other: Tensor | float = 0.0) -> float:
    """Return the norm of the difference; equal infinities and NaNs count as no difference."""
    value = value.double()
    other = other.double() if isinstance(other, Tensor) else torch.full_like(value, other)
    same = (value == other) | (value.isnan() & other.isnan())
    return float(torch.where(same, 0.0, value - other).norm())


def copy_tensors(tensors: State) -> State:
    """Return copies with the same strides, which `clone` may change."""
    return {
        name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
        for name, x in tensors.items()
    }
