"""The check that an algorithm supports the spaces of an environment, before anything is built."""

import gymnasium as gym

from rl_training.core.spaces import Spaces, action_kind, observation_field, observation_kind
from rl_training.errors import SpaceError
from rl_training.experiment.registry import AlgorithmSpec


def check_spaces(spec: AlgorithmSpec, spaces: Spaces, env_id: str) -> None:
    """Raise `SpaceError` if the algorithm does not support the spaces of the environment."""
    if action_kind(spaces.action) not in spec.actions:
        expected = " or ".join(sorted(spec.actions))
        raise SpaceError(f"{spec.name} needs a {expected} action space, but {env_id} has {spaces.action}")
    if isinstance(spaces.action, gym.spaces.Box) and not spaces.action.is_bounded("both"):
        raise SpaceError(
            f"{spec.name} needs finite bounds of every action, but {env_id} has {spaces.action}; "
            "remove the wrapper ClipAction if it is there (it removes the bounds; actions are clipped in any case), or "
            "declare bounds with TransformAction(env, lambda action: action, Box(low, high))"
        )
    if observation_kind(spaces.observation) not in spec.observations:
        expected = " or ".join(sorted(spec.observations))
        raise SpaceError(f"{spec.name} needs {expected} observations, but {env_id} has {spaces.observation}")
    observation_field(spaces.observation)
