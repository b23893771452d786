"""The settings of a run that are PyTorch's own, for the whole process."""

import contextlib
from collections.abc import Iterator

import torch

from rl_training.acceleration.determinism import deterministic_kernels
from rl_training.acceleration.step_checks import repeated_checks
from rl_training.experiment.config import TrainConfig


@contextlib.contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Apply the run's global settings while the block runs: threads, precision, deterministic kernels, checks."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision(config.matmul_precision)
    on_gpu = config.device.startswith("cuda")
    try:
        with (
            deterministic_kernels() if on_gpu and config.deterministic is True else contextlib.nullcontext(),
            repeated_checks(config.check_compiled_every),
        ):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Undo what the caller changed for new tensors while the block runs: their dtype and device, inference mode.

    A script or notebook may have set them for its own code. Our networks are `float32`, on the device of the config.
    """
    dtype = torch.get_default_dtype()
    is_plain = torch.get_default_device().type == "cpu"
    torch.set_default_dtype(torch.float32)
    try:
        # A device context slows every call of torch, so there is none without need.
        with torch.inference_mode(False), contextlib.nullcontext() if is_plain else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
