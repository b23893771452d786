"""From Gymnasium spaces to stored fields: kinds, shapes and dtypes are decided only here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.kinds import ActionKind, ObservationKind
from rl_training.core.packed_space import Composite, PackedSpace, leaf_spaces
from rl_training.errors import SpaceError


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of one entry of a transition."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    choices: int | None = None  # of indices: each is in [0, choices)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Spaces:
    """The spaces of an environment."""

    observation: gym.Space[Any]
    action: gym.Space[Any]
    action_mask: bool = False  # whether info["action_mask"] holds the valid actions

    @property
    def num_actions(self) -> int:
        """How many actions a Discrete action space has."""
        assert isinstance(self.action, spaces.Discrete)
        return int(self.action.n)


def observation_kind(space: gym.Space[Any]) -> ObservationKind | None:
    """Return the kind of observation, which decides its encoder; None for spaces that no encoder supports.

    A three-dimensional Box is an image. So are a two-dimensional uint8 Box (grey, one channel) and a four-dimensional
    one (stacked colour frames). Any other Box is a vector, flattened if necessary. A MultiDiscrete is discrete, or an
    image if it is a grid. A Dict or Tuple is encoded part by part after `pack_space` has packed it into one array.
    """
    if isinstance(space, PackedSpace):
        return "dict"
    if isinstance(space, spaces.Discrete):
        return "discrete"
    if isinstance(space, spaces.MultiDiscrete):
        return "image" if _is_grid(space) else "discrete"
    if isinstance(space, spaces.MultiBinary):
        return "vector"
    if not isinstance(space, spaces.Box) or space.dtype is None or 0 in space.shape:
        return None
    if len(space.shape) == 3 or (space.dtype == np.uint8 and (len(space.shape) == 2 or _stacks_colours(space.shape))):
        return "image"
    return "vector"


def _stacks_colours(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is (frames, height, width, colours) or (frames, colours, height, width)."""
    return len(shape) == 4 and (min(shape[1], shape[3]) <= 4 < sorted(shape[1:])[1])


def _is_grid(space: spaces.MultiDiscrete) -> bool:
    """Return whether a MultiDiscrete is an image of categories: the same ones, from 0, in each cell of 3x3 or more."""
    cells = space.nvec
    is_uniform = bool(np.all(cells == cells.flat[0]) and not np.any(space.start) and cells.flat[0] <= 256)
    return cells.ndim in (2, 3) and sorted(cells.shape)[-2] >= 3 and is_uniform


def action_kind(space: gym.Space[Any]) -> ActionKind | None:
    """Return the kind of action; None for spaces that no algorithm supports."""
    if isinstance(space, spaces.Discrete):
        return "discrete"
    if isinstance(space, spaces.MultiDiscrete):
        return "multidiscrete" if space.nvec.ndim == 1 else None
    if isinstance(space, spaces.MultiBinary):
        return "multibinary"
    is_floats = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return "box" if is_floats and 0 not in space.shape else None  # type: ignore[operator]


def observation_field(space: gym.Space[Any]) -> Field:
    """Return how observations are stored: integer images as uint8, float64 as float32, other dtypes unchanged."""
    dtype = np.dtype(space.dtype).newbyteorder("=")  # PyTorch knows the byte order of the machine only
    shape = tuple(space.shape or ())
    if observation_kind(space) == "image" and np.issubdtype(dtype, np.integer):
        if isinstance(space, spaces.MultiDiscrete):
            return Field(shape, np.dtype(np.uint8))
        low, high = int(np.min(space.low)), int(np.max(space.high))  # type: ignore[attr-defined]
        if low < 0 or high > 255:
            raise SpaceError(f"integer images must be in 0..255, but this space spans {low}..{high}: {space}")
        return Field(shape, np.dtype(np.uint8))
    if dtype == np.float64:
        dtype = np.dtype(np.float32)
    return Field(shape, dtype)


def pack_space(space: Composite) -> PackedSpace:
    """Return the space of Dict or Tuple observations packed into one row of bytes; each part keeps its stored dtype."""
    dtypes: dict[tuple[str, ...], np.dtype[Any]] = {}
    names: set[str] = set()
    for path, leaf in leaf_spaces(space).items():
        name = ".".join(path)
        if name in names:
            raise SpaceError(f"the observation space has two parts named {name!r}: {space}")
        names.add(name)
        cannot = f"the part {name!r} of the observation space cannot be"
        if observation_kind(leaf) is None:
            raise SpaceError(f"{cannot} encoded: it is {leaf}, of {space}{_without(space, path[0])}")
        try:
            dtypes[path] = observation_field(leaf).dtype
        except SpaceError as cause:
            raise SpaceError(f"{cannot} stored: {cause}") from None
        if dtypes[path].kind not in "biuf" or dtypes[path].itemsize > 8:
            raise SpaceError(f"{cannot} stored: its dtype is {dtypes[path]}; expected numbers of at most 64 bits")
    if not dtypes:
        raise SpaceError(f"the observation space has no parts: it is {space}")
    return PackedSpace(space, dtypes)


def _without(space: Composite, key: str) -> str:
    """Return how to leave out a part of a Dict, for messages; empty if nothing else is left."""
    others = ", ".join(other for other in getattr(space.spaces, "keys", list)() if other != key)
    remedy = f"[{{class: gymnasium.wrappers:FilterObservation, filter_keys: [{others}]}}]"
    return f"; this setting leaves it out: wrappers: {remedy}" if others else ""


def action_field(space: gym.Space[Any]) -> Field:
    """Return how actions are stored: choices as indices from 0, Box actions as float32 in [-1, 1]."""
    if isinstance(space, spaces.Box):
        return Field(tuple(space.shape or ()), np.dtype(np.float32))
    low, high = action_bounds(space)
    return Field(tuple(space.shape or ()), np.dtype(np.int64), choices=int((high - low).max()) + 1)


def action_bounds(space: gym.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest action that the environment accepts, per entry."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.array(0), np.array(1)
    sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.array(space.n)  # type: ignore[attr-defined]
    start = np.asarray(getattr(space, "start", 0))
    return start, start + sizes - 1


def transition_fields(spaces: Spaces) -> dict[str, Field]:
    """Return the fields of one stored transition, in order."""
    obs = observation_field(spaces.observation)
    return {
        "obs": obs,
        "next_obs": obs,
        "actions": action_field(spaces.action),
        "rewards": Field((), np.dtype(np.float32)),
        "terminated": Field((), np.dtype(np.bool_)),
    }


def replay_fields(spaces: Spaces, *, n_step: int = 1) -> dict[str, Field]:
    """Return the fields of one transition in a replay buffer, in order."""
    fields = transition_fields(spaces)
    if spaces.action_mask:  # the mask at the next observation: the target chooses among valid actions only
        fields["next_action_mask"] = Field((mask_size(spaces.action),), np.dtype(np.bool_))
    if n_step > 1:
        fields["discounts"] = Field((), np.dtype(np.float32))
    return fields


def to_env_actions(space: gym.Space[Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from the library's actions to those of the environment.

    The library counts choices from 0, the environment from `start`. Box actions are clipped to [-1, 1] and scaled to
    the bounds of the Box.
    """
    if isinstance(space, spaces.Box):
        low, half = space.low.astype(np.float32), ((space.high - space.low) / 2.0).astype(np.float32)
        if np.all(low == -1.0) and np.all(half == 1.0):
            return lambda actions: np.clip(actions, -1.0, 1.0)
        # The outer minimum and maximum, because rounding may exceed a bound, float64 bounds to float32 on either side.
        return lambda actions: np.maximum(
            np.minimum(low + (np.clip(actions, -1.0, 1.0) + 1.0) * half, space.high), space.low
        )
    start = getattr(space, "start", 0)
    return (lambda actions: actions + start) if np.any(start) else (lambda actions: actions)


def mask_size(space: gym.Space[Any]) -> int:
    """Return the number of flags in an action mask: one per choice, summed over the parts of a MultiDiscrete."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise SpaceError(f"action masks need a Discrete or MultiDiscrete action space, but it is {space}")
