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
