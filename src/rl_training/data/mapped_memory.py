"""Memory mapped to a file: the system keeps in RAM what fits and writes the rest to disk.

The file has no name, so it disappears when the process ends, even if it is killed.
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
    """Return the folder for mapped files: $RL_TRAINING_MMAP_DIR, or the temporary folder of the system."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())
    if not folder.is_dir():
        raise ConfigError(f"{FOLDER_VARIABLE} names {str(folder)!r}, which is not a folder")
    return folder


def mapped_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array of zeros whose memory is a file; pages that were never written use no disk space."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    with tempfile.TemporaryFile(dir=mapped_folder()) as file:  # the mapping keeps the file after it is closed
        file.truncate(max(1, size))
        memory = mmap.mmap(file.fileno(), max(1, size))
    if hasattr(mmap, "MADV_RANDOM"):  # rows are sampled at random: reading ahead would only fill the memory
        memory.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(memory, dtype, count=size // dtype.itemsize).reshape(shape)


def check_disk(needed: int, folder: Path, what: str, setting: str) -> None:
    """Raise `ConfigError` if the disk cannot hold a buffer.

    Call it before the run starts: the process would be killed at the write that does not fit.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"{what} needs {describe_bytes(needed)}, but only {describe_bytes(free)} are free in {folder}; "
            f"lower {setting}, or name another folder in {FOLDER_VARIABLE}"
        )
