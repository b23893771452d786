"""Checks of the rows of a dataset: elements of the spaces, finite, in range.

A message counts the bad rows and shows the first one.
"""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import Spaces, action_field, action_kind, observation_kind
from rl_training.datasets.transitions import Transitions, describe_rows, refuse_rows, rows_with
from rl_training.errors import DatasetError

log = logging.getLogger("rl_training")

ACTION_TOLERANCE = 1e-3  # of half the range of a Box: rounding may exceed a bound by this; the action is clipped
_NAME_ENV = "name the environment: env_id in a config, --env of `dataset inspect` and `convert`"


# --- Spaces ----------------------------------------------------------------------------------------------------------


def resolve_spaces(transitions: Transitions, env_spaces: Spaces | None) -> Spaces:
    """Return the spaces of the dataset: those of the environment or else of the file, or else inferred from the arrays.

    Raises `DatasetError` if the environment and the file disagree.
    """
    source, declared = transitions.source, transitions.spaces
    if env_spaces is not None:
        if declared is not None:
            for role, of_env, of_file in (
                ("observation", env_spaces.observation, declared.observation),
                ("action", env_spaces.action, declared.action),
            ):
                if not _is_same_space(of_env, of_file, compare_bounds=role == "action"):
                    raise DatasetError(f"{source} has the {role} space {of_file}, but the environment has {of_env}")
        return Spaces(env_spaces.observation, env_spaces.action)
    known = declared or Spaces(_infer_observation_space(transitions), _infer_action_space(transitions))
    if observation_kind(known.observation) is None:
        raise DatasetError(f"{source}: observations of {known.observation} cannot be encoded")
    if action_kind(known.action) is None:
        raise DatasetError(f"{source}: no algorithm supports actions of {known.action}")
    return known


def _is_same_space(of_env: gym.Space[Any], of_file: gym.Space[Any], *, compare_bounds: bool) -> bool:
    """Return whether two spaces agree.

    Bounds of observations may differ, because the values are checked. Bounds of actions define what a value means.
    """
    if isinstance(of_env, PackedSpace) or isinstance(of_file, PackedSpace):
        return of_env == of_file
    if isinstance(of_env, spaces.Box) and isinstance(of_file, spaces.Box):
        kinds = {np.dtype(space.dtype).kind for space in (of_env, of_file)}
        same = of_env.shape == of_file.shape and (len(kinds) == 1 or kinds <= {"i", "u"})
        bounds = (of_env.low, of_file.low), (of_env.high, of_file.high)
        return same and (not compare_bounds or all(np.allclose(a, b, rtol=1e-5) for a, b in bounds))
    return of_env == of_file


def _infer_observation_space(transitions: Transitions) -> gym.Space[Any]:
    obs = transitions.observations
    if obs.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, obs.shape[1:], np.float32)
    if obs.ndim == 1:
        raise DatasetError(
            f"{transitions.source} does not declare its observation space, which cannot be inferred from single whole "
            f"numbers; {_NAME_ENV}"
        )
    bounds = np.iinfo(obs.dtype) if obs.dtype != np.bool_ else None
    low, high = (int(bounds.min), int(bounds.max)) if bounds else (0, 1)
    return spaces.Box(low, high, obs.shape[1:], obs.dtype.type if bounds else np.uint8)


def _infer_action_space(transitions: Transitions) -> gym.Space[Any]:
    """Return the action space: whole numbers are choices, floats must be in [-1, 1]."""
    actions, source = transitions.actions, transitions.source
    unknown = "the action space is not declared"
    if actions.dtype.kind == "f":
        beyond = rows_with(~(np.abs(actions) <= 1.0 + ACTION_TOLERANCE))
        refuse_rows(beyond, actions, f"{unknown} ({_NAME_ENV}), and actions are outside [-1, 1]", source)
        return spaces.Box(-1.0, 1.0, actions.shape[1:], np.float32)
    if actions.ndim == 1 or actions.shape[1:] == (1,):
        refuse_rows(actions.reshape(-1) < 0, actions, f"{unknown} ({_NAME_ENV}), and actions are negative", source)
        return spaces.Discrete(int(actions.max()) + 1)
    shape = actions.shape[1:]
    raise DatasetError(f"{source}: {unknown} and cannot be inferred from whole numbers of shape {shape}; {_NAME_ENV}")


# --- Values ----------------------------------------------------------------------------------------------------------


def from_env_actions(actions: np.ndarray, space: gym.Space[Any], source: str) -> np.ndarray:
    """Convert actions of the environment to those of the library: the inverse of `to_env_actions`.

    Raises `DatasetError` if one is out of range.
    """
    expected = action_field(space)
    if not expected.shape and actions.shape[1:] == (1,):
        actions = actions[:, 0]  # several libraries store choices in this way
    is_box = isinstance(space, spaces.Box)
    actions = cast_column(
        "actions", actions, expected.shape, np.dtype(np.float64) if is_box else expected.dtype, source
    )
    if isinstance(space, spaces.Box):
        if not space.is_bounded("both"):
            raise DatasetError(f"{source}: actions need finite bounds, but their space is {space}")
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        half = (high - low) / 2.0
        slack = ACTION_TOLERANCE * half + 1e-6
        outside = rows_with(~((actions >= low - slack) & (actions <= high + slack)))  # true for NaN too
        refuse_rows(outside, actions, f"actions are outside {space}", source)
        middle = low + half
        spread = (actions - middle) / np.where(half > 0.0, half, 1.0)
        return np.clip(spread, -1.0, 1.0).astype(np.float32)
    start = np.asarray(getattr(space, "start", 0), np.int64)
    indices: np.ndarray = actions - start
    refuse_rows(_out_of_range(indices, space), actions, f"actions are outside {space}", source)
    return indices


def _out_of_range(indices: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Return which rows hold an index that is no choice: (rows,)."""
    sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else getattr(space, "n", 2)
    if isinstance(space, spaces.MultiBinary):
        sizes = 2
    return rows_with((indices < 0) | (indices >= sizes))


def check_actions(actions: np.ndarray, space: gym.Space[Any], source: str) -> None:
    is_box = isinstance(space, spaces.Box)
    outside = rows_with(~(np.abs(actions) <= 1.0)) if is_box else _out_of_range(actions, space)
    refuse_rows(outside, actions, f"actions are outside {'[-1, 1]' if is_box else space}", source)


def cast_column(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any], source: str) -> np.ndarray:
    """Cast a column to the dtype in which it is stored.

    Raises `DatasetError` for another shape, and for floats where whole numbers are expected.
    """
    if array.shape[1:] != shape:
        raise DatasetError(f"{source}: {name} must have shape {(len(array), *shape)}, found {array.shape}")
    if array.dtype.kind == "f" and dtype.kind != "f":
        raise DatasetError(f"{source}: {name} must be whole numbers, found dtype {array.dtype}")
    if dtype.kind in "iu" and array.dtype != dtype and array.dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        beyond = rows_with((array < bounds.min) | (array > bounds.max))
        refuse_rows(beyond, array, f"{name} do not fit into {dtype}", source)
    with np.errstate(over="ignore"):
        return array.astype(dtype, order="C", copy=False)


def refuse_non_finite(name: str, array: np.ndarray, source: str) -> None:
    if array.dtype.kind == "f":
        refuse_rows(rows_with(~np.isfinite(array)), array, f"{name} are not finite", source)


def check_observations(name: str, rows: np.ndarray, space: gym.Space[Any], source: str) -> None:
    """Raise `DatasetError` if a row is not finite or not an element of the space.

    Environments exceed the bounds that they declare, so float observations slightly outside a Box only cause a warning.
    They are rejected if they are outside by more than the width of the Box.
    """
    parts = [(name, space, rows)]
    if isinstance(space, PackedSpace):
        views = space.views(np.ascontiguousarray(rows))
        parts = [(f"{name}.{leaf.name}", leaf.space, view) for leaf, view in zip(space.leaves, views, strict=True)]
    for part_name, part, values in parts:
        refuse_non_finite(part_name, values, source)
        if isinstance(part, spaces.Discrete | spaces.MultiBinary):
            indices = values.astype(np.int64) - int(getattr(part, "start", 0))
            refuse_rows(_out_of_range(indices, part), values, f"{part_name} are outside {part}", source)
        elif isinstance(part, spaces.Box):
            _check_bounds(part_name, values, part, source)


def _check_bounds(name: str, values: np.ndarray, space: spaces.Box, source: str) -> None:
    low, high = space.low, space.high
    outside = rows_with((values < low) | (values > high))
    if not outside.any():
        return
    if space.dtype is not None and np.dtype(space.dtype).kind != "f":
        refuse_rows(outside, values, f"{name} are outside {space}", source)
    width = high.astype(np.float64) - low  # infinite where a side has no bound
    far = rows_with((values < low - width) | (values > high + width))
    refuse_rows(far, values, f"{name} are far outside {space}", source)
    slightly = rows_with((values < low - 1e-4 * np.abs(low)) | (values > high + 1e-4 * np.abs(high)))
    if slightly.any():
        log.warning("%s: %s", source, describe_rows(slightly, values, f"{name} exceed {space}"))
