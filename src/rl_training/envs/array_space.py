"""What an environment returns, held to its space: observations as arrays, rewards and flags.

Everything is checked as the environment returned it, before it is cast to the dtype in which it is stored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rl_training.core.counted import counted
from rl_training.core.spaces import observation_field
from rl_training.errors import EnvError, SpaceError

FLOAT32_MAX = float(np.finfo(np.float32).max)  # rewards, and float64 observations, are stored as float32


@dataclass(frozen=True, slots=True)
class ArraySpace:
    """The array that one element of a gymnasium space is stored in."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    text: str  # the space as it prints, for messages
    stored_dtype: np.dtype[Any]  # in the memory; may be narrower
    choices: tuple[int, int] | None  # the first and the last one of a Discrete space
    max_squares: float  # if the sum of the squares of some floats is not above it, they can be stored

    @classmethod
    def of(cls, space: gym.Space[Any], role: Literal["observation", "action"]) -> "ArraySpace":
        shape, dtype = space.shape, space.dtype
        if shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
            raise SpaceError(
                f"the {role} space must be one array of numbers, but it is {space}; "
                f"gymnasium.wrappers.Transform{role.title()} around the environment can make numbers of it"
            )
        dtype = np.dtype(dtype).newbyteorder("=")
        stored = observation_field(space).dtype if role == "observation" else dtype
        choices = None
        if isinstance(space, gym.spaces.Discrete):
            choices = int(space.start), int(space.start + space.n - 1)
        return cls(
            shape=tuple(shape),
            dtype=dtype,
            text=str(space),
            stored_dtype=stored,
            choices=choices,
            max_squares=_max_squares(dtype, stored) if dtype.kind == "f" else math.inf,
        )

    @property
    def safe_dtype(self) -> np.dtype[Any] | None:
        """The dtype whose arrays can be stored without a check of each value, except that floats must be finite."""
        if self.choices is not None:
            return None
        return self.dtype if self.dtype.kind == "f" else self.stored_dtype

    def checked(self, obs: Any) -> Any:
        """Return an observation as an array or a number; raise `EnvError` for one that the space does not declare.

        Accepted is what the cast to the stored dtype keeps: floats of any width, integers of any width whose values
        fit. Bounds of a Box are not checked: many environments exceed those that they declare.
        """
        if self.choices is not None and type(obs) in (int, np.int64) and self.choices[0] <= obs <= self.choices[1]:
            return obs
        found = np.asarray(obs)
        if found.shape != self.shape:
            raise EnvError(
                f"returned an observation of shape {found.shape}, but its observation space {self.text} declares "
                f"shape {self.shape}"
            )
        if not same_kind(found.dtype, self.dtype):
            raise EnvError(
                f"returned an observation of dtype {found.dtype}, but its observation space {self.text} "
                f"declares {self.dtype}"
            )
        if problem := misfit(found, self.stored_dtype):
            raise EnvError(f"returned an observation with {problem} (its observation space is {self.text})")
        if self.choices is not None and not self.choices[0] <= found <= self.choices[1]:
            raise EnvError(f"returned the observation {found}, which is none of its observation space {self.text},")
        return found

    def first_not_finite(self, rows: np.ndarray) -> int | None:
        """Return the first of the observations, (rows, *shape), that is not finite where it is stored, if any."""
        if self.max_squares == math.inf:  # integers
            return None
        flat = rows.reshape(-1)
        if flat.dot(flat) <= self.max_squares:
            return None
        for number, row in enumerate(rows):
            if not np.isfinite(row).all() or misfit(row, self.stored_dtype):
                return number
        return None

    def not_finite(self, obs: np.ndarray) -> str:
        """Describe an observation that `first_not_finite` found."""
        what = misfit(obs, self.stored_dtype) or "values that are not finite"
        return f"returned the observation {obs} with {what}"

    def cast_actions(self, actions: np.ndarray, count: int) -> np.ndarray:
        """Copy `actions`, (count, *shape), to the dtype of the space; a copy, because an env may keep its row."""
        if actions.shape != (count, *self.shape):
            raise ValueError(f"actions must have shape {(count, *self.shape)}, got {actions.shape}")
        return actions.astype(self.dtype, casting="same_kind")


def same_kind(found: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    return found.kind == declared.kind or {found.kind, declared.kind} <= {"i", "u"}


def misfit(found: np.ndarray, stored: np.dtype[Any]) -> str:
    """Describe the first value of an array that a dtype of the same kind cannot hold; empty if it holds all."""
    if found.dtype.kind == "f":
        flat = found.reshape(-1)
        if found.dtype.itemsize <= stored.itemsize or flat.dot(flat) <= _max_squares(found.dtype, stored):
            return ""
        too_large = found[np.isfinite(found) & (np.abs(found) > np.finfo(stored).max)]
        return f"the value {too_large.flat[0]:g}, which is too large for {stored}" if too_large.size else ""
    if found.size == 0 or np.can_cast(found.dtype, stored):
        return ""
    low, high = np.iinfo(stored).min, np.iinfo(stored).max
    outside = found[(found < low) | (found > high)]
    return f"the value {outside.flat[0]}, but {stored} holds {low} to {high}" if outside.size else ""


def _max_squares(dtype: np.dtype[Any], stored: np.dtype[Any]) -> float:
    """Return the largest sum of squares of floats of `dtype` after which `stored` holds each of them.

    No value exceeds the root of the sum. A sum that overflows is above the bound: each value must then be checked.
    """
    largest = float(np.finfo(stored).max)
    return min(float(np.finfo(dtype).max), largest**2 if dtype.itemsize > stored.itemsize else math.inf)


def checked_result(result: Any, method: Literal["reset", "step"]) -> Any:
    """Return what `reset` or `step` returned; raise `EnvError` for another number of values or an info without keys."""
    expected = 2 if method == "reset" else 5
    if not isinstance(result, tuple | list) or len(result) != expected:
        found = counted(len(result), "value") if isinstance(result, tuple | list) else type(result).__name__
        raise EnvError(f"must return {expected} values from {method} (gymnasium's API), but returned {found},")
    if not isinstance(result[-1], Mapping):
        raise EnvError(f"must return a dict as the info of {method}, but returned {result[-1]!r},")
    return result


def checked_reward(reward: Any) -> float:
    """Return a reward as a number; raise `EnvError` for what is none, or not finite in float32."""
    found = np.asarray(reward)
    if found.dtype.kind in "biuf" and found.size > 1:
        raise EnvError(
            f"returned a reward of {found.size} numbers, {reward!r}; algorithms learn from one, which a wrapper can "
            "compute (`wrappers: [mo_gymnasium.wrappers:LinearReward]` adds them up),"
        )
    if found.dtype.kind not in "biuf" or found.size != 1:
        raise EnvError(f"returned the reward {reward!r}, which is not a number,")
    value = float(found.item())
    if not math.isfinite(value):
        raise EnvError(f"returned the reward {value}, which is not finite,")
    if abs(value) > FLOAT32_MAX:
        raise EnvError(f"returned the reward {value:g}, which is too large for float32,")
    return value


def checked_flag(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool; raise `EnvError` for anything but true, false, 0 and 1."""
    if type(flag) is np.bool_:
        return bool(flag)
    found = np.asarray(flag)
    if found.dtype.kind not in "biuf" or found.size != 1 or found.item() not in (0, 1):
        raise EnvError(f"returned {flag!r} as {name}, which must be true or false,")
    return bool(found.item())
