"""Memory that lies in a file: the system keeps in RAM what fits, and writes the rest to the disk.

The file has no name, so that nothing is left of it when the process ends, however it ends.
"""

import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.memory_limits import describe_bytes
from rl_training.errors import ConfigError

FOLDER_VARIABLE = "RL_TRAINING_MMAP_DIR"


def mapped_folder() -> Path:
    """Where mapped files lie: in the folder that the environment variable names, or in the system's temporary one."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())
    if not folder.is_dir():
        raise ConfigError(f"{FOLDER_VARIABLE} names {str(folder)!r}, which is not a folder")
    return folder


def mapped_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Give an array of zeros whose memory is a file; places that were never written take no space in it."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    with tempfile.TemporaryFile(dir=mapped_folder()) as file:  # the mapping keeps it once it is closed
        file.truncate(max(1, size))
        memory = mmap.mmap(file.fileno(), max(1, size))
    if hasattr(mmap, "MADV_RANDOM"):  # rows are drawn from anywhere: reading ahead would only fill the memory
        memory.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(memory, dtype, count=size // dtype.itemsize).reshape(shape)


def check_disk(needed: int, folder: Path, what: str, setting: str) -> None:
    """Refuse a buffer that the disk cannot hold, before the run: it would be killed at the write that does not fit."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"{what} needs {describe_bytes(needed)}, but only {describe_bytes(free)} are free in {folder}; "
            f"lower {setting}, or name another folder in {FOLDER_VARIABLE}"
        )
