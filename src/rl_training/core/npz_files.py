"""Arrays from npz files that may come from a stranger: nothing is unpickled, and sizes are known before."""

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rl_training.errors import DatasetError, UserError


@contextlib.contextmanager
def report_damage(path: Path, what: str) -> Iterator[None]:
    """Turn the errors that libraries raise for a damaged file into one `DatasetError` that names the file.

    All exceptions are caught: for random changes of bytes, they range from `zlib.error` to `TypeError`.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as problem:
        raise DatasetError(f"{path} is damaged or not {what}: {type(problem).__name__}: {problem}") from problem


def npy_bytes(archive: zipfile.ZipFile, name: str, path: Path, *, max_text: int = 0) -> int:
    """Return the bytes of an array from the header of its member, and check that the member holds as many."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        header = file.tell()
    if dtype.hasobject or dtype.kind not in "biufU":
        raise DatasetError(f"{path}: {name} must be numbers, found dtype {dtype}; objects are never loaded")
    declared = math.prod(shape) * dtype.itemsize
    if dtype.kind == "U" and declared > 4 * max_text:
        raise DatasetError(f"{path}: {name} is a text of {declared:,} bytes")
    if member.file_size != header + declared:
        found = f"{member.file_size - header:,} bytes for {declared:,}"
        raise DatasetError(f"{path}: {name} is truncated or damaged: it has {found} of shape {shape}")
    return int(declared)


def read_npy(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
