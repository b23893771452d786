"""Capture kernels in a CUDA graph, which launches all of them with one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from rl_training.core.types import Batch, Metrics, State

WARM_UP_CALLS = 3  # before a capture

T = TypeVar("T")


def capture_step(
    run: Callable[[State], Metrics], state: State, inputs: Batch, *, reuses_metrics: bool = False
) -> Callable[[State, Batch], Metrics]:
    """Capture `run`, which reads `inputs` and changes a state in place, in a graph that works on this `state`.

    Each call of the result copies its batch into `inputs`, where they are not the same tensors, and replays the graph.
    `reuses_metrics`: the metrics of a call are overwritten by the next.
    """
    device = next(iter(state.values())).device

    def warm_up() -> None:
        scratch = {key: tensor.clone() for key, tensor in state.items()}
        for _ in range(WARM_UP_CALLS):
            run(scratch)

    def run_and_pack() -> tuple[Metrics, Metrics, Tensor]:
        metrics = run(state)
        if reuses_metrics:
            return {}, metrics, torch.empty(0)
        # The next replay overwrites these, so each call returns a copy: one copy for all of them.
        floats = {key: value for key, value in metrics.items() if value.dtype == torch.float32}
        packed = torch.cat([value.reshape(-1) for value in floats.values()]) if floats else torch.empty(0)
        return floats, {key: value for key, value in metrics.items() if key not in floats}, packed

    graph, (floats, others, packed) = capture_graph(device, warm_up, run_and_pack)
    sizes, shapes = [value.numel() for value in floats.values()], [value.shape for value in floats.values()]

    def captured_step(state: State, batch: Batch) -> Metrics:
        moved = [key for key, place in inputs.items() if batch[key] is not place]
        if moved:
            torch._foreach_copy_([inputs[key] for key in moved], [batch[key] for key in moved])
        graph.replay()
        if reuses_metrics:
            return others
        parts = torch.split(packed.clone(), sizes)
        result = {key: part.view(shape) for key, part, shape in zip(floats, parts, shapes, strict=True)}
        return result | {key: value.clone() for key, value in others.items()}

    return captured_step


def capture_graph(
    device: torch.device, warm_up: Callable[[], object], run: Callable[[], T]
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Call `warm_up`, then capture `run`; return the graph and what `run` returned.

    `warm_up` runs the same operations on a side stream: kernels, workspaces and libraries must be loaded before the
    capture. A replay reads and writes the memory that `run` used.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            warm_up()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            result = run()
    return graph, result
