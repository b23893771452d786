"""Capture kernels in a CUDA graph, which launches all of them with one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


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
