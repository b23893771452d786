"""Convert the observations that `predict` accepts to the rows that a policy expects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from rl_training.core.action_masks import MaskReader
from rl_training.core.spaces import Spaces, mask_size, observation_field
from rl_training.envs.dict_obs import MASK_KEY, PackedSpace, Packer


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Observations as rows, (rows, *obs_shape), and the valid actions, (rows, choices), if there is a mask."""

    rows: np.ndarray
    action_mask: np.ndarray | None
    single: bool  # a single observation, not a batch of one


def read_observations(obs: Any, spaces: Spaces, action_mask: Any = None) -> PolicyInput:
    """Check one observation or a batch: arrays or nested lists, a dict or tuple of them, or a list of dicts or tuples.

    A dict may contain its own `action_mask`. Raises `ValueError` for input on which the action of the policy would mean
    nothing.
    """
    packed = spaces.observation if isinstance(spaces.observation, PackedSpace) else None
    is_tuple = packed is not None and isinstance(packed.original, gym.spaces.Tuple)
    if not is_tuple and _is_returned_by_env(obs):
        raise ValueError("got the tuple that env.reset or env.step returns: give its first entry, the observation")
    if isinstance(obs, list | tuple) and any(isinstance(part, Mapping) for part in obs) and not is_tuple:
        return _read_each(obs, spaces, action_mask)
    if is_tuple and isinstance(obs, list) and obs and all(isinstance(one, tuple) for one in obs):
        return _read_each(obs, spaces, action_mask)
    if isinstance(obs, Mapping) and MASK_KEY in obs:
        if action_mask is not None:
            raise ValueError(f"the observation contains its own {MASK_KEY}: give that or the argument, not both")
        action_mask = obs[MASK_KEY]
        obs = {key: value for key, value in obs.items() if key != MASK_KEY}
        if not isinstance(spaces.observation, PackedSpace) and len(obs) == 1:
            (obs,) = obs.values()  # the one part that is left is the observation
    rows, single = _rows(obs, spaces.observation)
    mask = None if action_mask is None else _mask_rows(action_mask, spaces.action, len(rows), single)
    return PolicyInput(rows, mask, single)


def _is_returned_by_env(obs: Any) -> bool:
    """Return whether a value is a tuple of an observation, an info dict and, after a step, what is between them."""
    if not (isinstance(obs, tuple) and len(obs) in (2, 5) and isinstance(obs[-1], Mapping)):
        return False
    return not isinstance(obs[0], Mapping) or not obs[0].keys() & obs[-1].keys()  # else a batch of dicts


def _read_each(observations: list[Any] | tuple[Any, ...], spaces: Spaces, action_mask: Any) -> PolicyInput:
    masks = [None] * len(observations) if action_mask is None else action_mask
    if len(masks) != len(observations):
        raise ValueError(f"there are {len(observations)} observations, but {len(masks)} action masks")
    policy_inputs = []
    for number, (obs, mask) in enumerate(zip(observations, masks, strict=True)):
        try:
            policy_input = read_observations(obs, spaces, mask)
        except ValueError as problem:
            raise ValueError(f"observation {number} of the list: {problem}") from problem
        if not policy_input.single:
            raise ValueError(
                f"observation {number} of the list holds {len(policy_input.rows)} observations, must be one"
            )
        policy_inputs.append(policy_input)
    with_mask = [policy_input.action_mask for policy_input in policy_inputs if policy_input.action_mask is not None]
    if with_mask and len(with_mask) < len(policy_inputs):
        count = f"{len(with_mask)} of {len(policy_inputs)} observations"
        raise ValueError(f"{count} have an {MASK_KEY}: all or none must have one")
    rows = np.concatenate([policy_input.rows for policy_input in policy_inputs])
    return PolicyInput(rows, np.concatenate(with_mask) if with_mask else None, single=False)


def _rows(obs: Any, space: gym.Space[Any]) -> tuple[np.ndarray, bool]:
    """Return (rows, *obs_shape) and whether `obs` is a single observation."""
    if not isinstance(space, PackedSpace):
        if isinstance(obs, Mapping):
            keys, shape = ", ".join(map(repr, obs)) or "none", observation_field(space).shape
            raise ValueError(f"an observation is one array of shape {shape}, got a dict of {keys}")
        return _checked_rows(obs, space, "an observation")
    try:
        values = space.leaf_values(obs)
    except ValueError as problem:
        raise ValueError(f"got an observation {problem}") from None
    parts = [
        _checked_rows(value, leaf.space, f"the part {leaf.name!r} of an observation")
        for value, leaf in zip(values, space.leaves, strict=True)
    ]
    counts = {leaf.name: len(rows) for leaf, (rows, single) in zip(space.leaves, parts, strict=True) if not single}
    if counts and (len(counts) < len(parts) or len(set(counts.values())) > 1):
        found = {leaf.name: counts.get(leaf.name, "one") for leaf in space.leaves}
        raise ValueError(f"the parts of an observation must be of one observation, or of the same number, got {found}")
    packer = Packer(space)
    columns = [rows for rows, _ in parts]
    packed = [packer.pack_values(values) for values in zip(*columns, strict=True)]
    return np.array(packed, np.uint8).reshape(-1, *packer.space.shape), not counts


def _checked_rows(obs: Any, space: gym.Space[Any], what: str) -> tuple[np.ndarray, bool]:
    """Return an array as rows in the dtype of the network; raise for numbers that the space does not allow."""
    field = observation_field(space)
    array = _numbers(obs, what)
    single = array.shape == field.shape
    if not single and array.shape[1:] != field.shape:
        of_batch = ", ".join(map(str, ("n", *field.shape)))
        raise ValueError(f"{what} has shape {field.shape}, a batch ({of_batch}); got {array.shape}")
    batch = array[None] if single else array
    with np.errstate(over="ignore"):  # checked below
        rows = np.ascontiguousarray(batch, dtype=field.dtype)
    if np.issubdtype(field.dtype, np.floating):
        if not np.isfinite(rows).all():
            raise ValueError(f"{what} must hold finite numbers ({field.dtype}), got {batch.tolist()}")
    elif not np.array_equal(rows, batch):
        raise ValueError(f"{what} must hold {field.dtype} numbers, got {batch.tolist()}")
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete) and not all(map(space.contains, rows)):
        raise ValueError(f"{what} must be one of {space}, got {batch.tolist()}")
    return rows, single


def _numbers(obs: Any, what: str) -> np.ndarray:
    """Return a value as an array; raise for anything but numbers and flags, which numpy would convert all the same."""
    try:
        array = np.asarray(obs.numpy(force=True) if isinstance(obs, Tensor) else obs)
    except ValueError as problem:  # lists of different lengths
        raise ValueError(f"{what} must be one array of numbers: {problem}") from None
    is_number = array.dtype.kind in "biuf" or (array.dtype.kind == "O" and array.ndim > 0)
    if not is_number:
        found = repr(obs)
        raise ValueError(f"{what} must hold numbers, got {found if len(found) <= 200 else f'{found[:200]}...'}")
    return array


def _mask_rows(action_mask: Any, space: gym.Space[Any], count: int, single: bool) -> np.ndarray:
    """Return action masks as bools, (rows, choices)."""
    size, given = mask_size(space), np.asarray(action_mask)
    shape = (size,) if single else (count, size)
    if given.size != count * size or (not single and len(given) != count):
        raise ValueError(f"{MASK_KEY} must have shape {shape}, got {given.shape}")
    flags = given.reshape(count, size)
    if not np.array_equal(flags, flags.astype(np.bool_)):
        raise ValueError(f"{MASK_KEY} must hold only 0 and 1, or false and true, got {given.tolist()}")
    reader = MaskReader(space)
    try:
        mask = [reader.read({MASK_KEY: row}) for row in flags]
    except ValueError as problem:
        raise ValueError(f"got {problem}") from None
    return np.array(mask, np.bool_).reshape(count, size)
