"""Dict and Tuple observations as one array, and action masks where the collector looks for them.

`check_env` wraps every environment with such an observation in `PackedDictObs`. Everything above sees one array.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.packed_space import Composite, Leaf, PackedSpace
from rl_training.core.spaces import mask_size, pack_space
from rl_training.envs.array_space import checked_result, misfit, same_kind
from rl_training.errors import EnvError, SpaceError

__all__ = ["MASK_KEY", "PackedDictObs", "PackedSpace", "Packer", "sample_action"]

MASK_KEY = "action_mask"  # in an info, and in a Dict observation that contains the mask


class PackedDictObs(gym.Wrapper[np.ndarray, Any, Any, Any]):
    """Pack a Dict or Tuple observation into one row of bytes; move a mask in it to `info["action_mask"]`.

    If a single part is left without the mask, the observation is that part itself. The wrapper keeps no state.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        original = env.observation_space
        if not isinstance(original, Composite):
            raise SpaceError(f"PackedDictObs needs a Dict or Tuple observation space, but it is {original}")
        self._mask_shape = _mask_shape(original, env.action_space)
        self._pack: Callable[[Any], np.ndarray]
        rest: dict[str, gym.Space[Any]] = {}  # all parts but the mask
        if self._mask_shape is not None and isinstance(original, spaces.Dict):
            rest = {key: part for key, part in original.spaces.items() if key != MASK_KEY}
            original = spaces.Dict(rest)
        if len(rest) == 1 and not isinstance(part := next(iter(rest.values())), Composite):
            self.observation_space = part
            self._pack = functools.partial(_only_part, next(iter(rest)))
        else:
            packed = pack_space(original)
            self.observation_space = packed
            self._pack = Packer(packed).pack

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = checked_result(self.env.reset(seed=seed, options=options), "reset")
        return self.convert(obs, info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = checked_result(self.env.step(action), "step")
        obs, info = self.convert(obs, info)
        return obs, reward, terminated, truncated, info

    def pack(self, obs: Any) -> np.ndarray:
        """Return an observation of the wrapped env as this wrapper returns it."""
        return self.convert(obs, {})[0]

    def convert(self, obs: Any, info: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        """Return an observation and an info of the wrapped env as this wrapper returns them."""
        if self._mask_shape is None:
            return self._pack(obs), info
        if not isinstance(obs, Mapping) or MASK_KEY not in obs:
            raise EnvError(f"returned an observation without the part {MASK_KEY!r}")
        parts = dict(obs)
        mask = np.asarray(parts.pop(MASK_KEY))
        if mask.shape != self._mask_shape or mask.dtype.kind not in "biuf":
            raise EnvError(
                f"returned an observation whose part {MASK_KEY!r} has shape {mask.shape} and dtype {mask.dtype}, but "
                f"its observation space declares shape {self._mask_shape}"
            )
        return self._pack(parts), {**info, MASK_KEY: mask.astype(np.bool_).reshape(-1)}


def _mask_shape(observation: Composite, action: gym.Space[Any]) -> tuple[int, ...] | None:
    """Return the shape of the action mask in a Dict observation; None if there is none."""
    space = observation.spaces.get(MASK_KEY) if isinstance(observation, spaces.Dict) else None
    if space is None:
        return None
    size = mask_size(action)
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or int(np.prod(space.shape)) != size:
        raise SpaceError(
            f"the part {MASK_KEY!r} of the observation space must be an array of {size} flags, one per choice of "
            f"{action}, but it is {space}"
        )
    return tuple(space.shape)


def sample_action(space: gym.Space[Any], info: Mapping[str, Any]) -> Any:
    """Draw an action; a valid one if the info holds a mask, because an env may crash on others."""
    if info.get(MASK_KEY) is None:
        return space.sample()
    mask = np.asarray(info[MASK_KEY], np.int8).reshape(-1)
    if isinstance(space, spaces.Discrete) and len(mask) == space.n:
        return space.sample(mask)
    if isinstance(space, spaces.MultiDiscrete) and len(mask) == space.nvec.sum():
        return space.sample(tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    return space.sample()  # the mask does not fit: `MaskReader` raises for it in a run


def _only_part(key: str, obs: Mapping[str, Any]) -> np.ndarray:
    if obs.keys() != {key}:
        parts = ", ".join(map(repr, obs)) or "none"
        raise EnvError(f"returned an observation of other parts than {key!r} and {MASK_KEY!r}: {parts}")
    part: np.ndarray = obs[key]
    return part


class Packer:
    """Writes observations with parts into rows of bytes; raises `EnvError` for what its space does not declare."""

    def __init__(self, space: PackedSpace) -> None:
        self.space = space
        # Filling and copying one row, whose views are built once, is cheaper than new views for each row.
        self._row: np.ndarray = np.zeros(space.shape, np.uint8)
        views = space.views(self._row)
        # Per leaf, the dtype whose arrays need no check of each value.
        safe_dtypes = [np.dtype(leaf.space.dtype) if leaf.dtype.kind == "f" else leaf.dtype for leaf in space.leaves]
        self._targets = [
            (leaf, leaf.shape, dtype, view) for leaf, dtype, view in zip(space.leaves, safe_dtypes, views, strict=True)
        ]
        # All float32 parts are contiguous; float16 is rare, and slow to multiply.
        ends = [(leaf.start, leaf.start + leaf.num_bytes) for leaf in space.leaves if leaf.dtype == np.float32]
        start, end = (min(ends)[0], max(ends)[1]) if ends else (0, 0)
        self._floats = self._row[start:end].view(np.float32)
        self._halves = [view for view in views if view.dtype == np.float16]

    def __reduce__(self) -> tuple[type["Packer"], tuple[PackedSpace]]:
        return Packer, (self.space,)  # copied views would not belong to the copied row

    def pack(self, obs: Any) -> np.ndarray:
        """Return the row of one observation, (bytes,)."""
        try:
            values = self.space.leaf_values(obs)
        except ValueError as problem:
            raise EnvError(f"returned an observation {problem}") from None
        return self.pack_values(values)

    def pack_values(self, values: Sequence[Any]) -> np.ndarray:
        """Return the row of one observation from the values of its leaves, in the order of the space."""
        for value, (leaf, shape, dtype, view) in zip(values, self._targets, strict=True):
            # Single numbers are always checked: it is cheap, and they may be choices that do not exist.
            if not shape or type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                value = _checked(value, leaf)
            view[...] = value
        # The sum of squares is finite if all values are, except for an overflow, which the exact check sorts out.
        if not math.isfinite(self._floats.dot(self._floats)) or self._halves:
            self._check_finite(values)
        row: np.ndarray = self._row.copy()
        return row

    def _check_finite(self, values: Sequence[Any]) -> None:
        for value, (leaf, _, _, view) in zip(values, self._targets, strict=True):
            if view.dtype.kind == "f" and not np.isfinite(view).all():
                _checked(value, leaf)  # names a finite value that its stored dtype cannot hold
                raise EnvError(f"returned an observation whose part {leaf.name!r} is not finite: {view}")


def _checked(value: Any, leaf: Leaf) -> Any:
    """Return the value of a leaf as an array; raise for a wrong shape or kind, or a choice that does not exist."""
    found, declared = np.asarray(value), np.dtype(leaf.space.dtype)
    what = f"returned an observation whose part {leaf.name!r} has"
    if found.shape != leaf.shape:
        raise EnvError(f"{what} shape {found.shape}, but its space {leaf.space} declares shape {leaf.shape}")
    if not same_kind(found.dtype, declared):
        raise EnvError(f"{what} dtype {found.dtype}, but its space {leaf.space} declares {declared}")
    if problem := misfit(found, leaf.dtype):
        raise EnvError(f"{what} {problem} (its space is {leaf.space})")
    if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete) and not leaf.space.contains(found):
        raise EnvError(f"{what} the value {found}, which is none of {leaf.space}")
    return found
