"""Run a pure step eagerly, compiled ahead of time, or captured in a CUDA graph.

A `Step` is pure: it maps `(state, batch)` to the new state and metrics, and changes nothing. `accelerate` wraps it in
an `InPlaceStep`, which writes the new state into the tensors of `state`. Modules that hold views on these tensors see
the new weights. `_write_in_place` is where they are written; the modes differ in how it runs:

    eager        `_run_eagerly`   operation by operation
    compile      `_compile`       traced to one graph and compiled (compiled_steps.py)
    cuda_graph   `_capture`       the compiled step (or the eager one) recorded in a CUDA graph

A compiled or captured step is compared with the eager one before its first use (step_checks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import is_
from typing import TypeAlias

import torch
from torch import Tensor

from rl_training.acceleration.compile_watch import compiling
from rl_training.acceleration.compiled_packages import compiler, compiler_available
from rl_training.acceleration.compiled_steps import compile_step, tensor_signature
from rl_training.acceleration.cuda_graphs import capture_step
from rl_training.acceleration.step_checks import checked, is_due
from rl_training.acceleration.transfers import is_fixed
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError

Step: TypeAlias = Callable[[State, Batch], tuple[State, Metrics]]  # pure: returns the new state
InPlaceStep: TypeAlias = Callable[[State, Batch], Metrics]  # writes the new state into the tensors of `state`
InPlaceRounds: TypeAlias = Callable[[State, Batch, int], Metrics]  # the same, for several steps in one call

MODES = ("eager", "compile", "cuda_graph")
log = logging.getLogger("rl_training.acceleration")


def resolve_acceleration(requested: str, *, device_type: str, worth_compiling: bool) -> str:
    """Return the mode of a run: `requested`, or for "auto" the fastest for this device and length of run."""
    if requested == "cuda_graph" and device_type != "cuda":
        raise ConfigError(f"acceleration: cuda_graph needs a CUDA device, but the device is {device_type}; use auto")
    if requested != "auto":
        return requested
    if device_type == "cuda":
        return "cuda_graph"
    if not worth_compiling:
        return "eager"
    if not compiler_available():
        log.warning("no C++ compiler (%s) found: the update runs eagerly, several times slower", compiler()[0])
        return "eager"
    return "compile"


def accelerate(
    step: Step,
    mode: str,
    name: str = "update",
    *,
    identity: str | None = None,
    capture_plain: bool = False,
    reuses_metrics: bool = False,
) -> InPlaceStep:
    """Return a callable that runs `step`, writes the new state into the tensors of `state` and returns the metrics.

    The step is traced at the first call and again for each new combination of shapes, dtypes and strides. Tensors that
    it reads from elsewhere (the buffers of a module) are constants from then on. The log refers to the step by `name`.

    `identity` describes everything that a step of this package depends on, except its arguments and the source code of
    the package. On the CPU, a step with the same identity that was compiled before is loaded without tracing, which
    alone takes more than a second.

    `capture_plain` skips the compiler in mode `cuda_graph` and captures the operations of the eager step. Use it for a
    step that takes longer to compile than compiling saves.

    `reuses_metrics`: in mode `cuda_graph`, the metrics of a call are overwritten by those of the next, which saves a
    copy.
    """
    if mode not in MODES:
        raise ValueError(f"acceleration must be one of {', '.join(MODES)}, got {mode}")
    if mode == "eager":
        return _run_eagerly(step)
    if mode == "cuda_graph":
        return _capture_per_signature(step, name, rounds=1, plain=capture_plain, reuses_metrics=reuses_metrics)
    if not compiler_available():
        raise ConfigError(
            f"acceleration: compile needs a C++ compiler, but {compiler()[0]} was not found; "
            "install it, or use acceleration: eager"
        )
    is_own = step.__module__.startswith("rl_training.")  # the source of other steps may change unnoticed
    known_as = identity if is_own else None
    return _BuildPerSignature(
        lambda state, batch: _compile(step, state, batch, name, known_as), _run_eagerly(step), name
    )


def accelerate_rounds(
    step: Step, mode: str, name: str = "update", *, identity: str | None = None, reuses_metrics: bool = False
) -> InPlaceRounds:
    """Return a callable as `accelerate` does, which takes several steps in one call.

    Its third argument is the number of rounds. Each tensor of the batch holds the rows of all rounds, one round after
    the other. With more than one round, the metrics are stacked: (rounds, ...). A CUDA graph launches all rounds
    together.
    """
    if mode == "cuda_graph":
        by_rounds: dict[int, InPlaceStep] = {}

        def captured(state: State, batch: Batch, rounds: int) -> Metrics:
            if rounds not in by_rounds:
                by_rounds[rounds] = _capture_per_signature(
                    step, name, rounds=rounds, plain=False, reuses_metrics=reuses_metrics
                )
            return by_rounds[rounds](state, batch)

        return captured
    in_place_step = accelerate(step, mode, name, identity=identity)
    return lambda state, batch, rounds: _run_rounds(in_place_step, state, batch, rounds)


def _run_rounds(in_place_step: InPlaceStep, state: State, batch: Batch, rounds: int) -> Metrics:
    if rounds == 1:
        return in_place_step(state, batch)
    parts = {name: tensor.chunk(rounds) for name, tensor in batch.items()}
    history = [in_place_step(state, {name: part[number] for name, part in parts.items()}) for number in range(rounds)]
    return {name: torch.stack([metrics[name] for metrics in history]) for name in history[0]}


class _BuildPerSignature:
    """Build one in-place step per signature of state and batch: names, shapes, dtypes, strides, devices.

    A compiled program checks none of these itself. The signature is computed only if a tensor is not the same object
    as at the last call.
    """

    def __init__(
        self,
        build: Callable[[State, Batch], InPlaceStep],
        eager: InPlaceStep,
        name: str,
        *,
        uses_memory: bool = False,
    ) -> None:
        """`uses_memory`: what `build` returns works on the memory of the state, and of tensors at fixed places."""
        self._build, self._eager, self._name, self._uses_memory = build, eager, name, uses_memory
        self._built: dict[object, InPlaceStep] = {}
        self._last_tensors: list[Tensor] = []
        self._signature: object
        self._current: InPlaceStep
        self._calls = 0

    def __call__(self, state: State, batch: Batch) -> Metrics:
        tensors = [*state.values(), *batch.values()]
        if len(tensors) != len(self._last_tensors) or not all(map(is_, tensors, self._last_tensors)):
            self._find_or_build(state, batch)
            self._last_tensors = tensors
        self._calls += 1
        if is_due(self._calls):
            self._current = checked(self._current, self._eager, state, batch, self._name)
            self._built[self._signature] = self._current
        return self._current(state, batch)

    def _find_or_build(self, state: State, batch: Batch) -> None:
        used = [*state.values(), *filter(is_fixed, batch.values())] if self._uses_memory else []
        memory = [tensor.data_ptr() for tensor in used]
        self._signature = (tensor_signature(state), tensor_signature(batch), *memory)
        if self._signature not in self._built:
            self._built[self._signature] = self._build(state, batch)
        self._current = self._built[self._signature]


# --- Eager -----------------------------------------------------------------------------------------------------------


def _run_eagerly(step: Step) -> InPlaceStep:
    return torch.no_grad()(_write_in_place(step))


def _write_in_place(step: Step) -> InPlaceStep:
    """Return the step followed by the copy of its new state into the tensors of `state`."""

    def in_place_step(state: State, batch: Batch) -> Metrics:
        new, metrics = step(state, batch)
        # A result that is itself a tensor of the state is copied before the state changes.
        held = {id(tensor) for tensor in state.values()}
        metrics = {name: value.clone() for name, value in metrics.items()}
        new = {name: value.clone() if id(value) in held else value for name, value in new.items()}
        for name, value in new.items():
            state[name].copy_(value)
        return metrics

    return in_place_step


# --- Compiled --------------------------------------------------------------------------------------------------------


def _compile(step: Step, state: State, batch: Batch, name: str, identity: str | None = None) -> InPlaceStep:
    return compile_step(_write_in_place(step), step.__qualname__, state, batch, name, identity)


# --- Captured --------------------------------------------------------------------------------------------------------


def _capture_per_signature(step: Step, name: str, *, rounds: int, plain: bool, reuses_metrics: bool) -> InPlaceStep:
    run = _run_eagerly(step)

    def eager(state: State, batch: Batch) -> Metrics:
        device = next(iter(state.values())).device
        return _run_rounds(run, state, {key: tensor.to(device) for key, tensor in batch.items()}, rounds)

    def capture(state: State, batch: Batch) -> InPlaceStep:
        captured = _capture(step, state, batch, name, rounds, plain=plain, reuses_metrics=reuses_metrics)
        return checked(captured, eager, state, batch, name)

    return _BuildPerSignature(capture, eager, name, uses_memory=True)


def _capture(
    step: Step, state: State, batch: Batch, name: str, rounds: int, *, plain: bool, reuses_metrics: bool
) -> InPlaceStep:
    device = next(iter(state.values())).device
    inputs = {key: x if is_fixed(x) else x.to(device, copy=True) for key, x in batch.items()}
    first = inputs if rounds == 1 else {key: tensor.chunk(rounds)[0] for key, tensor in inputs.items()}
    with compiling(name):
        run = _run_eagerly(step) if plain else _compile(step, state, first, name)
        return capture_step(
            lambda state: _run_rounds(run, state, inputs, rounds), state, inputs, reuses_metrics=reuses_metrics
        )
