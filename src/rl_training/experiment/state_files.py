"""Nested state in two parts: tensors in a safetensors file, everything else as JSON values.

Nothing in either is ever executed.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rl_training.core.durable_files import open_file
from rl_training.errors import CheckpointError

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}
_MAX_AXES = 64  # of a tensor of PyTorch


def flatten(state: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split nested state into named tensors and JSON values, keys joined by "|"."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        if "|" in str(key):
            raise ValueError(f"state keys must not contain '|', got {name!r}")
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, np.ndarray):
            tensors[name] = torch.from_numpy(np.asarray(value, order="C"))  # not ascontiguousarray: 0-d stays 0-d
        elif isinstance(value, Mapping) and value:
            below = flatten(value, f"{name}|")
            tensors |= below[0]
            values |= below[1]
        else:
            values[name] = value
    return tensors, values


def num_bytes(state: Mapping[str, Any]) -> int:
    """Return the size of the tensors in nested state."""
    return sum(tensor.nbytes for tensor in flatten(state)[0].values())


def unflatten(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested state; raise `ValueError` if two entries have the same place in it."""
    nested: dict[str, Any] = {}
    for name, value in [*tensors.items(), *values.items()]:
        *parents, last = name.split("|")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(f"{name!r} lies below an entry that holds a value")
        if last in place:
            raise ValueError(f"{name!r} is given twice")
        place[last] = value
    return nested


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity; None if there is none."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors in the safetensors format, without copying a buffer, and return the sha256 of the file."""
    header: dict[str, Any] = {}
    arrays, end = [], 0
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous()
        size = array.numel() * array.element_size()
        header[name] = {
            "dtype": _DTYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + size],
        }
        arrays.append(array)
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in _chunks([len(text).to_bytes(8, "little"), text], arrays):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _chunks(head: list[bytes], arrays: list[Tensor]) -> Iterator[bytes | memoryview]:
    yield from head
    for array in arrays:
        if array.numel():
            # Not `reshape`: a contiguous tensor of one element may have any stride, which `view` refuses.
            yield array.as_strided((array.numel(),), (1,)).view(torch.uint8).numpy().data


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors as private views on the file: of a buffer, only the parts that are used are read."""
    try:
        with open_file(path):  # raises for a pipe or a device, which `safe_open` would wait for
            pass
        with safe_open(path, framework="pt") as file:
            return {name: _read_tensor(file, name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _read_tensor(file: Any, name: str) -> Tensor:
    """Return a tensor; raise `ValueError` for a form that `write_tensors` does not write and PyTorch may not have."""
    stored = file.get_slice(name)
    dtype, shape = stored.get_dtype(), stored.get_shape()
    if dtype not in _DTYPES.values():
        raise ValueError(f"{name} has the dtype {dtype}")
    if len(shape) > _MAX_AXES or math.prod(max(size, 1) for size in shape) >= 2**62:
        raise ValueError(f"{name} has a shape of {len(shape):,} axes, {str(shape[:_MAX_AXES])[1:-1]}")
    tensor: Tensor = file.get_tensor(name)
    return tensor
