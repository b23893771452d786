"""Run a pure step eagerly, compiled ahead of time or captured in a CUDA graph.

A step maps `(state, batch)` to new values of the state and metrics, and changes nothing. `accelerate` turns it into a
callable that writes those values into the state's own tensors, so that modules which hold views on them follow.

On the CPU the traced step is compiled with AOTInductor, which checks nothing on a call, so `accelerate` itself compares
shapes, types and strides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import is_
from typing import TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.acceleration.compiled_packages import (
    compiler,
    compiler_available,
    constants,
    load_compiled,
    recall,
    remember,
)
from rl_training.acceleration.matmul_rewrites import decompositions
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError

Step: TypeAlias = Callable[[State, Batch], tuple[State, Metrics]]
Update: TypeAlias = Callable[[State, Batch], Metrics]

MODES = ("eager", "compile", "cuda_graph")
log = logging.getLogger("rl_training.acceleration")


def resolve_acceleration(requested: str, *, device_type: str, worth_compiling: bool) -> str:
    """Return the mode a run uses: `requested`, or for "auto" the fastest for this device and length of run."""
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
    step: Step, mode: str, name: str = "update", *, identity: str | None = None, capture_plain: bool = False
) -> Update:
    """Return a callable that runs `step`, writes the new state into the tensors of `state` and returns the metrics.

    The step is traced at the first call and once more for each new combination of shapes, types and strides; tensors
    that it reads from elsewhere (a module's buffers) are constants from then on. `name` is what the log calls it.
    `identity` names all that a step of this package depends on besides its arguments and the package's source: on the
    CPU one that was compiled before is then found again without being traced, which alone takes more than a second.
    `capture_plain` leaves the compiler out of `cuda_graph`, for a step that it would take longer for than it saves: the
    operations of the eager step are captured as they are.
    """
    if mode not in MODES:
        raise ValueError(f"acceleration must be one of {', '.join(MODES)}, got {mode}")
    if mode == "eager":
        return _plain(step)
    if mode == "compile" and not compiler_available():
        raise ConfigError(
            f"acceleration: compile needs a C++ compiler, but {compiler()[0]} was not found; "
            "install it, or use acceleration: eager"
        )
    ours = step.__module__.startswith("rl_training.")  # other source may change without our noticing
    return _Accelerated(step, mode, name, identity if ours else None, capture_plain=capture_plain)


def accelerate_rounds(
    step: Step, mode: str, name: str = "update", *, identity: str | None = None
) -> Callable[[State, Batch, int], Metrics]:
    """As `accelerate`, for several steps in one call.

    The tensors of the batch hold those of all rounds, one after the other; with more than one round the metrics are
    stacked, (rounds, ...). In a CUDA graph all rounds are launched together.
    """
    if mode == "cuda_graph":
        by_rounds: dict[int, Update] = {}

        def captured(state: State, batch: Batch, rounds: int) -> Metrics:
            if rounds not in by_rounds:
                by_rounds[rounds] = _Accelerated(step, mode, name, identity, rounds)
            return by_rounds[rounds](state, batch)

        return captured
    update = accelerate(step, mode, name, identity=identity)
    return lambda state, batch, rounds: _in_rounds(update, state, batch, rounds)


def _in_rounds(update: Update, state: State, batch: Batch, rounds: int) -> Metrics:
    if rounds == 1:
        return update(state, batch)
    parts = {name: tensor.chunk(rounds) for name, tensor in batch.items()}
    history = [update(state, {name: part[number] for name, part in parts.items()}) for number in range(rounds)]
    return {name: torch.stack([metrics[name] for metrics in history]) for name in history[0]}


class _Accelerated:
    """One program per signature of state and batch, looked up only when a tensor is another than at the last call."""

    def __init__(
        self, step: Step, mode: str, name: str, identity: str | None, rounds: int = 1, *, capture_plain: bool = False
    ) -> None:
        self.step, self.mode, self.name, self.identity, self.rounds = step, mode, name, identity, rounds
        self.capture_plain = capture_plain
        self.programs: dict[object, Update] = {}
        self.held: list[Tensor] = []
        self.program: Update

    def __call__(self, state: State, batch: Batch) -> Metrics:
        tensors = [*state.values(), *batch.values()]
        if len(tensors) != len(self.held) or not all(map(is_, tensors, self.held)):
            self.program = self._find_program(state, batch)
            self.held = tensors
        return self.program(state, batch)

    def _find_program(self, state: State, batch: Batch) -> Update:
        signature: tuple[object, ...] = (_signature(state), _signature(batch))
        if self.mode == "cuda_graph":  # a graph replays on the very memory it was captured with
            signature = (*signature, *(tensor.data_ptr() for tensor in state.values()))
        if signature not in self.programs:
            if self.mode == "cuda_graph":
                self.programs[signature] = _capture(
                    self.step, state, batch, self.name, self.rounds, plain=self.capture_plain
                )
            else:
                self.programs[signature] = _compile(self.step, state, batch, self.name, self.identity)
        return self.programs[signature]


def _signature(tensors: dict[str, Tensor]) -> tuple[object, ...]:
    return tuple([(name, x.shape, x.dtype, x.stride(), x.device) for name, x in tensors.items()])


def _in_place(step: Step) -> Update:
    def update(state: State, batch: Batch) -> Metrics:
        new, metrics = step(state, batch)
        # Whatever is a tensor of the state itself is copied out before the state changes.
        held = {id(tensor) for tensor in state.values()}
        metrics = {name: value.clone() for name, value in metrics.items()}
        new = {name: value.clone() if id(value) in held else value for name, value in new.items()}
        for name, value in new.items():
            state[name].copy_(value)
        return metrics

    return update


def _plain(step: Step) -> Update:
    return torch.no_grad()(_in_place(step))


# --- Tracing and compiling -------------------------------------------------------------------------------------------


def _trace(step: Step, state: State, batch: Batch) -> tuple[GraphModule, list[Tensor], list[str]]:
    """Return the step as a graph over a flat list of tensors, example inputs for it, and the metrics' names.

    Inputs are the state's tensors, which the graph changes, then the batch's, each sorted by name.
    """
    metric_names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        metrics = _in_place(step)(
            dict(zip(sorted(state), tensors, strict=False)),
            dict(zip(sorted(batch), tensors[len(state) :], strict=True)),
        )
        metric_names[:] = metrics
        return list(metrics.values())

    # Tracing runs the step, so it gets a copy of the state; not by `clone`, which may choose other strides.
    copies = [_copy(state[name]) for name in sorted(state)]
    inputs = copies + [batch[name] for name in sorted(batch)]
    on_cpu = all(x.device.type == "cpu" for x in inputs)
    replaced = decompositions() if on_cpu else {}
    with torch.no_grad():
        graph = make_fx(flat, replaced, tracing_mode="real")(*inputs)  # torch.func.grad becomes plain operations
    state_memory = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    if any(constant.untyped_storage().data_ptr() in state_memory for constant in constants(graph).values()):
        raise RuntimeError("the step reads its state from outside of `state`, which compiled would never change again")
    return graph, inputs, metric_names


def _copy(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _compile(step: Step, state: State, batch: Batch, name: str, identity: str | None = None) -> Update:
    device = next(iter(state.values())).device
    run: Callable[[list[Tensor]], Sequence[Tensor]]
    if device.type == "cpu":
        run, metric_names = _compile_for_cpu(step, state, batch, name, identity)
    else:
        graph, _, metric_names = _trace(step, state, batch)
        compiled = torch.compile(graph, fullgraph=True, dynamic=False)
        run = torch.no_grad()(lambda tensors: compiled(*tensors))
    state_names, batch_names = sorted(state), sorted(batch)

    def update(state: State, batch: Batch) -> Metrics:
        outputs = run([state[key] for key in state_names] + [batch[key] for key in batch_names])
        return dict(zip(metric_names, outputs, strict=True))

    return update


def _compile_for_cpu(
    step: Step, state: State, batch: Batch, name: str, identity: str | None
) -> tuple[Callable[[list[Tensor]], list[Tensor]], list[str]]:
    """Return the compiled step over a flat list of tensors, as `_trace` orders them, and the metrics' names."""
    numbers = f"{_signature(state)} {_signature(batch)} {torch.get_float32_matmul_precision()}"
    whole = f"{step.__qualname__} {identity} {numbers}" if identity else None
    if whole and (known := recall(whole)):
        return known
    graph, inputs, metric_names = _trace(step, state, batch)
    run, package = load_compiled(graph, inputs, name)
    if whole:
        remember(whole, package, metric_names)
    return run, metric_names


def _capture(step: Step, state: State, batch: Batch, name: str, rounds: int, *, plain: bool) -> Update:
    """Capture the step, compiled unless `plain`, in a CUDA graph that works on this state's memory.

    It reads copies of the batch.
    """
    device = next(iter(state.values())).device
    inputs = {key: tensor.to(device, copy=True) for key, tensor in batch.items()}
    first = inputs if rounds == 1 else {key: tensor.chunk(rounds)[0] for key, tensor in inputs.items()}
    run = _plain(step) if plain else _compile(step, state, first, name)
    keys, places = list(inputs), list(inputs.values())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels, workspaces and libraries must be loaded before the capture
            scratch = {key: tensor.clone() for key, tensor in state.items()}
            for _ in range(3):
                _in_rounds(run, scratch, inputs, rounds)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            metrics = _in_rounds(run, state, inputs, rounds)
            # The next replay overwrites these, so each call returns a copy: one copy for all of them.
            floats = {key: value for key, value in metrics.items() if value.dtype == torch.float32}
            packed = torch.cat([value.reshape(-1) for value in floats.values()]) if floats else torch.empty(0)
    others = {key: value for key, value in metrics.items() if key not in floats}
    sizes, shapes = [value.numel() for value in floats.values()], [value.shape for value in floats.values()]

    def update(state: State, batch: Batch) -> Metrics:
        torch._foreach_copy_(places, [batch[key] for key in keys])
        graph.replay()
        parts = torch.split(packed.clone(), sizes)
        result = {key: part.view(shape) for key, part, shape in zip(floats, parts, shapes, strict=True)}
        return result | {key: value.clone() for key, value in others.items()}

    return update
