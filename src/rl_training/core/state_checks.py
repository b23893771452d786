"""Checks of saved state. A checkpoint may be damaged or from an unknown source, so nothing in it is taken as it is."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.types import Algorithm, Carry
from rl_training.errors import CheckpointError, UserError

MAX_COUNT = 2**62


def stored_count(value: Any, name: str, *, below: int = MAX_COUNT) -> int:
    """Return a saved whole number; raise `CheckpointError` unless it is one in [0, below)."""
    if type(value) is not int or not 0 <= value < below:
        raise CheckpointError(f"{name} must be a whole number in [0, {below:,}), found {_shortened(value)}")
    return value


def stored_number(value: Any, name: str) -> float:
    """Return a saved finite number."""
    if type(value) not in (int, float) or not abs(value) < float("inf"):
        raise CheckpointError(f"{name} must be a finite number, found {_shortened(value)}")
    return float(value)


def stored_array(
    value: Any, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | type | None = None
) -> np.ndarray:
    """Return a saved array of this shape and dtype; None in the shape stands for any length, None as dtype for any.

    Numbers that are not finite are refused.
    """
    if not isinstance(value, Tensor | np.ndarray):
        raise CheckpointError(f"{name} must be an array, found {_shortened(value)}")
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits or (dtype is not None and array.dtype != dtype):
        expected = str(shape).replace("None", "any")
        of_type = f" of {np.dtype(dtype)}" if dtype is not None else ""
        raise CheckpointError(f"{name} has shape {array.shape} and type {array.dtype}, expected {expected}{of_type}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CheckpointError(f"{name} holds numbers that are not finite")
    return array


def stored_carry(carry: Any, num_envs: int) -> Carry | None:
    """Return the saved carry of a recurrent algorithm; None for others."""
    if carry is None or carry == {}:
        return None
    if not isinstance(carry, Mapping):
        raise CheckpointError(f"the carry of a recurrent policy must be a group of arrays, found {str(carry)[:80]}")
    for name, values in carry.items():
        if not isinstance(values, Tensor | np.ndarray) or not values.ndim or len(values) != num_envs:
            raise CheckpointError(f"the carry's {name} must have {num_envs} rows, found {str(values)[:80]}")
    return {name: np.asarray(values) for name, values in carry.items()}


def check_like(saved: Any, fresh: Any, name: str = "") -> None:
    """Raise `CheckpointError` unless saved state has the entries, shapes and types of a fresh state of the same object.

    Entries that are missing or that the fresh state does not have are left to the object.
    """
    if isinstance(fresh, Mapping):
        if not isinstance(saved, Mapping):
            raise CheckpointError(f"{name or 'the state'} must be a group of entries, found {_shortened(saved)}")
        for key, value in fresh.items():
            if key in saved:
                check_like(saved[key], value, f"{name}.{key}" if name else str(key))
    elif isinstance(fresh, Tensor | np.ndarray):
        expected = fresh if isinstance(fresh, Tensor) else torch.from_numpy(fresh)
        if not isinstance(saved, Tensor) or saved.shape != expected.shape or saved.dtype != expected.dtype:
            found = f"{tuple(saved.shape)} of {saved.dtype}" if isinstance(saved, Tensor) else _shortened(saved)
            raise CheckpointError(f"{name} must have shape {tuple(expected.shape)} of {expected.dtype}, found {found}")
    elif type(fresh) is int:
        stored_count(saved, name, below=2**128 if "generator" in name else MAX_COUNT)
    elif type(fresh) is float:
        stored_number(saved, name)
    elif isinstance(fresh, bool | str) and type(saved) is not type(fresh):
        raise CheckpointError(f"{name} must be a {type(fresh).__name__}, found {_shortened(saved)}")


def load_algorithm(algorithm: Algorithm, policy: Mapping[str, Any], learning: Mapping[str, Any] | None = None) -> None:
    """Load the saved policy of an algorithm and, if given, the rest of its state, both checked against a fresh one."""
    check_like(policy, algorithm.policy_state_dict())
    algorithm.load_policy_state_dict(policy)
    if learning is not None:
        check_like(learning, algorithm.state_dict())
        algorithm.load_state_dict(learning)


@contextlib.contextmanager
def loading(path: Path) -> Iterator[None]:
    """Report state that cannot be loaded as an error of the checkpoint `path`, with the reason."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} holds a state that cannot be loaded: {type(error).__name__}: {error}") from error


def _shortened(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}" if not isinstance(value, Tensor) else f"a tensor of {tuple(value.shape)}"
    return text if len(text) < 100 else f"{text[:97]}..."
