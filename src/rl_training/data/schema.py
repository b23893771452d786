"""From Gymnasium spaces to stored fields: the only place that decides kinds, shapes and dtypes."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import SpaceError
from rl_training.experiment.registry import ActionKind, AlgorithmSpec, ObservationKind


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of one entry of a transition."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Spaces:
    """What an environment shows and takes."""

    observation: gym.Space[Any]
    action: gym.Space[Any]


def observation_kind(space: gym.Space[Any]) -> ObservationKind | None:
    """Tell how an observation is encoded; None for spaces that no encoder takes.

    A three-dimensional Box is an image. So is a two-dimensional uint8 Box (grey, one channel). Any other Box is a
    vector, flattened if need be.
    """
    if isinstance(space, spaces.Discrete):
        return "discrete"
    if isinstance(space, spaces.MultiBinary):
        return "vector"
    if not isinstance(space, spaces.Box) or space.dtype is None or 0 in space.shape:
        return None
    if len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8):
        return "image"
    return "vector"


def action_kind(space: gym.Space[Any]) -> ActionKind | None:
    if isinstance(space, spaces.Discrete):
        return "discrete"
    return "box" if isinstance(space, spaces.Box) else None


def check_spaces(spec: AlgorithmSpec, spaces: Spaces, env_id: str) -> None:
    """Refuse, before training, an environment that the algorithm cannot handle."""
    if action_kind(spaces.action) not in spec.actions:
        wanted = " or ".join(sorted(spec.actions))
        raise SpaceError(f"{spec.name} needs a {wanted} action space, but {env_id} has {spaces.action}")
    if observation_kind(spaces.observation) not in spec.observations:
        wanted = " or ".join(sorted(spec.observations))
        raise SpaceError(f"{spec.name} needs {wanted} observations, but {env_id} has {spaces.observation}")
    observation_field(spaces.observation)


def observation_field(space: gym.Space[Any]) -> Field:
    """Say how observations are stored: integer images as uint8, other numbers as float32 or as they are."""
    dtype = np.dtype(space.dtype)
    shape = tuple(space.shape or ())
    if observation_kind(space) == "image" and np.issubdtype(dtype, np.integer):
        low, high = int(np.min(space.low)), int(np.max(space.high))  # type: ignore[attr-defined]
        if low < 0 or high > 255:
            raise SpaceError(f"integer images must lie in 0..255, but this space spans {low}..{high}: {space}")
        return Field(shape, np.dtype(np.uint8))
    if dtype == np.float64:
        dtype = np.dtype(np.float32)
    return Field(shape, dtype)


def action_field(space: gym.Space[Any]) -> Field:
    if isinstance(space, spaces.Discrete):
        return Field((), np.dtype(np.int64))
    return Field(tuple(space.shape or ()), np.dtype(np.float32))


def transition_fields(spaces: Spaces) -> dict[str, Field]:
    """The fields of one stored transition, in order."""
    obs = observation_field(spaces.observation)
    return {
        "obs": obs,
        "next_obs": obs,
        "actions": action_field(spaces.action),
        "rewards": Field((), np.dtype(np.float32)),
        "terminated": Field((), np.dtype(np.bool_)),
    }


def env_action_offset(space: gym.Space[Any]) -> int:
    """What to add to an action index of ours to get the environment's (`Discrete(start=...)`)."""
    return int(space.start) if isinstance(space, spaces.Discrete) else 0
