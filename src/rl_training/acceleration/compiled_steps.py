"""Trace an in-place step to one graph and compile it, for the modes `compile` and `cuda_graph` of `accelerate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.acceleration.compiled_packages import (
    constants,
    keep_compiler_files_private,
    load_compiled,
    load_known_step,
    save_known_step,
)
from rl_training.acceleration.matmul_rewrites import decompositions
from rl_training.acceleration.step_checks import InPlace, checked, copy_tensors
from rl_training.core.types import Batch, Metrics, State

FlatProgram: TypeAlias = Callable[[list[Tensor]], Sequence[Tensor]]


def tensor_signature(tensors: dict[str, Tensor]) -> tuple[object, ...]:
    return tuple([(name, x.shape, x.dtype, x.stride(), x.device) for name, x in tensors.items()])


def compile_step(
    in_place: InPlace, qualname: str, state: State, batch: Batch, name: str, identity: str | None = None
) -> InPlace:
    """Return the in-place step compiled for tensors like these. `qualname`, `identity`: by which it is found again.

    A new program is compared with the step itself on this batch. One that the cache knows was compared before.
    """
    whole = None
    if next(iter(state.values())).device.type == "cpu":
        numbers = f"{tensor_signature(state)} {tensor_signature(batch)} {torch.get_float32_matmul_precision()}"
        whole = f"{qualname} {identity} {numbers}" if identity else None
        if whole and (known := load_known_step(whole)):
            return _over_names(*known, state, batch)
    graph, inputs, metric_names = trace(in_place, state, batch)
    run, package = _compile_graph(graph, inputs, name)
    compiled = _over_names(run, metric_names, state, batch)
    step = checked(compiled, torch.no_grad()(in_place), state, batch, name)
    if whole and package and step is compiled:
        save_known_step(whole, package, metric_names)
    return step


def _compile_graph(graph: GraphModule, inputs: list[Tensor], name: str) -> tuple[FlatProgram, Path | None]:
    """Return the compiled graph and, on the CPU, the path of its package."""
    if inputs[0].device.type == "cpu":
        return load_compiled(graph, inputs, name)
    compiled = torch.compile(graph, fullgraph=True, dynamic=False)
    return torch.no_grad()(lambda tensors: compiled(*tensors)), None


def _over_names(run: FlatProgram, metric_names: list[str], state: State, batch: Batch) -> InPlace:
    """Return a program over a flat list of tensors, in the order of `trace`, as a step over names."""
    state_names, batch_names = sorted(state), sorted(batch)

    def compiled_step(state: State, batch: Batch) -> Metrics:
        outputs = run([state[key] for key in state_names] + [batch[key] for key in batch_names])
        return dict(zip(metric_names, outputs, strict=True))

    return compiled_step


def trace(in_place: InPlace, state: State, batch: Batch) -> tuple[GraphModule, list[Tensor], list[str]]:
    """Return the in-place step as a graph over a flat list of tensors, example inputs for it, and the metrics' names.

    The inputs are the tensors of the state, which the graph changes, then those of the batch, each sorted by name.
    """
    keep_compiler_files_private()  # tracing imports PyTorch's compiler, which reads from its folder at once
    metric_names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        metrics = in_place(
            dict(zip(sorted(state), tensors, strict=False)),
            dict(zip(sorted(batch), tensors[len(state) :], strict=True)),
        )
        metric_names[:] = metrics
        return list(metrics.values())

    copies = copy_tensors(state)  # tracing runs the step
    inputs = [copies[name] for name in sorted(state)] + [batch[name] for name in sorted(batch)]
    on_cpu = all(x.device.type == "cpu" for x in inputs)
    replaced = decompositions() if on_cpu else {}
    with torch.no_grad():
        graph = make_fx(flat, replaced, tracing_mode="real")(*inputs)  # gradients become plain operations
    state_memory = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    if any(constant.untyped_storage().data_ptr() in state_memory for constant in constants(graph).values()):
        raise RuntimeError("the step reads its state from outside of `state`, which compiled would never change again")
    return graph, inputs, metric_names
