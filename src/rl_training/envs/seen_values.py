"""The largest values that integer observations hold in random episodes, before training."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rl_training.core.integer_obs import CATEGORY_MAX, undecided_parts
from rl_training.core.packed_space import PackedSpace
from rl_training.envs.dict_obs import sample_action
from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.slot import Env, check_env
from rl_training.errors import EnvError

EPISODES = 10
STEPS_PER_EPISODE = 100


def largest_values(factory: Callable[[], Env]) -> dict[str, int]:
    """Return the largest value of each part of the observation that may hold pixels or categories.

    Plays short random episodes with fixed seeds, so that all runs in an environment decide alike. Stops at once when
    no part can hold categories, as with the first image of an Atari game.
    """
    env = check_env(factory())
    try:
        return _largest_values(env)
    except Exception as cause:
        raise EnvError(f"the check of the values of observations failed: it {describe_alone(cause)}") from cause
    finally:
        env.close()


def _largest_values(env: Env) -> dict[str, int]:
    names = undecided_parts(env.observation_space)
    largest = dict.fromkeys(names, 0)
    if not names:
        return largest
    env.action_space.seed(0)
    for obs in _observations(env):
        parts = part_values(env.observation_space, np.asarray(obs))
        largest = {name: max(seen, int(parts[name].max())) for name, seen in largest.items()}
        if min(largest.values()) > CATEGORY_MAX:
            break
    return largest


def _observations(env: Env) -> Iterator[Any]:
    for episode in range(EPISODES):
        obs, info = env.reset(seed=episode)
        yield obs
        for _ in range(STEPS_PER_EPISODE):
            obs, _, terminated, truncated, info = env.step(sample_action(env.action_space, info))
            yield obs
            if terminated or truncated:
                break


def part_values(space: object, obs: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the parts of observations by name, (*batch, *shape); the name of a single array is empty."""
    if not isinstance(space, PackedSpace):
        return {"": obs}
    return {leaf.name: view for leaf, view in zip(space.leaves, space.views(obs), strict=True)}
