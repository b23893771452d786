"""Integer observations: the largest value of each part, by which the encoder divides it or counts its categories.

Many spaces declare 0..255 and hold categories from 0 to 10. Divided by 255, they are too small to learn from.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.packed_space import PackedSpace, replace_leaves
from rl_training.core.spaces import observation_field, observation_kind
from rl_training.errors import ConfigError

PIXEL_MAX = 255
# Values of pixels exceed this almost at once. A grid that never does holds categories.
CATEGORY_MAX = 31

ObsMax = int | Mapping[str, int]  # for all parts, or by the name of the part


def integer_parts(space: gym.Space[Any]) -> dict[str, spaces.Box]:
    """Return the parts of an observation that are integer images or vectors of bytes, by name.

    The name of an observation that is one array is empty.
    """
    parts = {leaf.name: leaf.space for leaf in space.leaves} if isinstance(space, PackedSpace) else {"": space}
    return {name: part for name, part in parts.items() if isinstance(part, spaces.Box) and _holds_integers(part)}


def _holds_integers(space: spaces.Box) -> bool:
    return observation_kind(space) in ("image", "vector") and observation_field(space).dtype == np.uint8


def declared_max(space: spaces.Box) -> int:
    """Return the largest value that the space allows, at least 1."""
    return max(1, int(space.high.max()))


def undecided_parts(space: gym.Space[Any]) -> list[str]:
    """Return the names of the integer parts that declare the range of pixels, but may hold categories."""
    return [name for name, part in integer_parts(space).items() if declared_max(part) == PIXEL_MAX]


def decide_obs_max(space: gym.Space[Any], largest_seen: Mapping[str, int]) -> ObsMax | None:
    """Return the largest value of each integer part; None if there is no such part.

    `largest_seen`: the largest values seen, by the names of `undecided_parts`.
    """
    decided = {}
    for name, part in integer_parts(space).items():
        seen = largest_seen.get(name, 0)
        decided[name] = seen if 0 < seen <= CATEGORY_MAX else declared_max(part)
    return decided.get("", decided) or None


def with_obs_max(space: gym.Space[Any], obs_max: ObsMax, *, one_hot: bool) -> gym.Space[Any]:
    """Return the space with other upper bounds of its integer parts: the encoder divides by these.

    With `one_hot`, images become grids of categories. Raises `ConfigError` for the name of a part that does not exist.
    """
    parts = integer_parts(space)
    maxima = dict.fromkeys(parts, obs_max) if isinstance(obs_max, int) else obs_max
    for name in maxima:
        if name not in parts:
            known = ", ".join(map(repr, parts)) or "none"
            raise ConfigError(f"obs_max: the observation has no integer part {name!r}; it has {known}")
    new = {name: _with_max(parts[name], largest, one_hot=one_hot) for name, largest in maxima.items()}
    return replace_leaves(space, new) if isinstance(space, PackedSpace) else new.get("", space)


def _with_max(space: spaces.Box, largest: int, *, one_hot: bool) -> gym.Space[Any]:
    if one_hot and observation_kind(space) == "image":
        return spaces.MultiDiscrete(np.full(space.shape, largest + 1))
    if declared_max(space) == largest:
        return space
    if isinstance(space, FrameStackSpace):
        return FrameStackSpace(space.num_frames, space.shape, high=largest)  # type: ignore[arg-type]
    return spaces.Box(0, largest, space.shape, space.dtype.type)
