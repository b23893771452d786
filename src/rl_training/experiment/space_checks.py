"""The check that an algorithm supports the spaces of an environment, before anything is built."""

import gymnasium as gym
import numpy as np

from rl_training.core.spaces import Spaces, action_kind, observation_field, observation_kind
from rl_training.errors import SpaceError
from rl_training.experiment.registry import AlgorithmSpec

_NO_KIND = {
    gym.spaces.Box: "; a Box of actions must hold floats",
    gym.spaces.MultiDiscrete: "; a MultiDiscrete of actions must have one axis",
}


def check_spaces(spec: AlgorithmSpec, spaces: Spaces, env_id: str) -> None:
    """Raise `SpaceError` if the algorithm does not support the spaces of the environment."""
    if (kind := action_kind(spaces.action)) not in spec.actions:
        expected = " or ".join(sorted(spec.actions))
        why = _NO_KIND.get(type(spaces.action), "") if kind is None else ""
        raise SpaceError(f"{spec.name} needs a {expected} action space, but {env_id} has {spaces.action}{why}")
    if isinstance(spaces.action, gym.spaces.Box) and not _can_scale_to(spaces.action):
        bounds = "bounds within float32" if spaces.action.is_bounded("both") else "finite bounds"
        raise SpaceError(
            f"{spec.name} needs {bounds} of every action, but {env_id} has {spaces.action}; "
            "remove the wrapper ClipAction if it is there (it removes the bounds; actions are clipped in any case), or "
            "declare bounds with TransformAction(env, lambda action: action, Box(low, high))"
        )
    if observation_kind(spaces.observation) not in spec.observations:
        expected = " or ".join(sorted(spec.observations))
        raise SpaceError(f"{spec.name} needs {expected} observations, but {env_id} has {spaces.observation}")
    observation_field(spaces.observation)


def _can_scale_to(space: gym.spaces.Box) -> bool:
    """Return whether float32, in which actions are scaled to the bounds, holds the range of each action."""
    half = space.high.astype(np.float64) / 2.0 - space.low.astype(np.float64) / 2.0  # infinite without a bound
    return bool(np.all(half <= np.finfo(np.float32).max / 2.0))
