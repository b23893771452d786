"""Deterministic CUDA kernels: a run repeats bit for bit on the same GPU, driver and versions.

On a CPU every run repeats. On a GPU some kernels add numbers in the order in which threads arrive, and libraries choose
kernels by timing them. The deterministic mode replaces the first kind and forbids the second.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from rl_training.errors import ConfigError

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES = (":4096:8", ":16:8")  # with any other, cuBLAS may choose a kernel by timing
_DRIVER = Path("/proc/driver/nvidia/version")

log = logging.getLogger("rl_training.acceleration")


def resolve_deterministic(requested: bool | Literal["auto"], *, device: torch.device, is_vector: bool) -> bool:
    """Return whether the run uses the deterministic mode; prepare cuBLAS for it before CUDA starts.

    `is_vector`: whether observations are vectors or numbers. On a GPU, "auto" chooses the mode only for these: the
    deterministic convolutions of image encoders may be slow.
    """
    if device.type != "cuda" or requested is False:
        return requested is not False
    if requested == "auto" and not is_vector:
        return False
    if not torch.cuda.is_initialized():
        os.environ.setdefault(_WORKSPACE, _FIXED_WORKSPACES[0])
    if os.environ.get(_WORKSPACE) in _FIXED_WORKSPACES:
        return True
    remedy = f"set {_WORKSPACE}={_FIXED_WORKSPACES[0]} in the environment before Python starts"
    if requested == "auto":
        log.warning("a resumed run will not be exact on this GPU; %s to make it so", remedy)
        return False
    raise ConfigError(f"deterministic: true needs cuBLAS with fixed workspaces; {remedy}")


@contextlib.contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Use deterministic kernels while the block runs; an operation that has none raises RuntimeError."""
    from torch._inductor import config as inductor  # takes a second to import

    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    cudnn.deterministic, cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True)
    try:
        with inductor.patch(deterministic=True), _unfilled_memory():
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark, enabled = flags
        torch.use_deterministic_algorithms(enabled)


@contextlib.contextmanager
def _unfilled_memory() -> Iterator[None]:
    """Allocate memory without filling it, which the mode does by default: this package writes before it reads."""
    options: Any = torch.utils.deterministic
    before, options.fill_uninitialized_memory = options.fill_uninitialized_memory, False
    try:
        yield
    finally:
        options.fill_uninitialized_memory = before


def resume_claim(exactness: str, *, device: torch.device, deterministic: bool) -> str:
    """Return how exactly a resumed run continues: as its environments allow (`exactness`), and as the device does."""
    if device.type != "cuda":
        return exactness
    if not deterministic:
        return "not exact: without `deterministic: true`, sums on the GPU depend on timing"
    return f"{exactness} (on the same GPU, driver and versions)"


def describe_device(device: torch.device) -> str:
    """Return the device, and for a GPU its model and driver, on which the bits of a run depend."""
    if device.type != "cuda":
        return str(device)
    driver = _DRIVER.read_text(encoding="utf-8").partition("\n")[0] if _DRIVER.is_file() else "unknown driver"
    return f"{device} ({torch.cuda.get_device_name(device)}, {driver}, CUDA {torch.version.cuda})"
