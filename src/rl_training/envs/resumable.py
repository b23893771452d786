"""Restore an environment to the state at a checkpoint.

If an environment is deterministic, the seed of its reset and the actions since determine an episode. `check_replay`
tests this before training, on two copies with different histories. BipedalWalker-v3 is a counterexample: its physics
keep state over a reset. An environment may offer `get_state` and `set_state` instead; where neither works, a run
resumes at an episode boundary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.envs.dict_obs import MASK_KEY, sample_action
from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import Env, EnvState, ReplayDivergedError, check_env, close_env
from rl_training.envs.vector import EnvGroup
from rl_training.errors import EnvError

PAST_STEPS = 300  # taken by the first copy before the comparison, so that hidden state could leak over its resets
COMPARED_STEPS = 200


@dataclass(frozen=True, slots=True)
class EpisodeRecipe:
    """How to restore an open episode: from the state of the env if there is one, else by replay.

    `actions`: (steps, *action_shape), those taken since `reset(seed=seed)`; not needed with a state.
    """

    seed: int
    actions: np.ndarray
    state: EnvState | None = None


def check_replay(factory: Callable[[], Env], seed: int) -> bool:
    """Check whether `reset(seed)` and the same actions repeat an episode, bit for bit, after any history.

    Compares observations, rewards, flags and action masks over about 200 random steps. Raises `EnvError` if the
    environment fails during the check.
    """
    envs: list[Env] = []
    try:
        with ENV_CALLS:
            for _ in range(2):
                ENV_CALLS.next()
                envs.append(check_env(factory()))
            return _is_repeatable(envs[0], envs[1], np.random.default_rng(seed))
    except Exception as cause:
        raise EnvError(
            f"the check whether the environment can be replayed failed: it {describe_alone(cause)}"
        ) from cause
    finally:
        for env in envs:
            close_env(env)


def restore_env(
    envs: EnvGroup, index: int, recipe: EpisodeRecipe, expected_obs: np.ndarray, episode: int | None = None
) -> bool:
    """Restore env `index` to its episode; return whether its observation equals the stored one.

    On False the env is in some other state and must be reset. If `set_state` returns no observation, nothing can be
    compared and the result is True.
    """
    obs: np.ndarray | None
    try:
        if recipe.state is None:
            obs = envs.replay(index, recipe.seed, recipe.actions, episode)
        else:
            envs.reset([index], [recipe.seed], None if episode is None else [episode])
            obs = envs.set_state(index, recipe.state)
    except ReplayDivergedError:
        return False
    return obs is None or _identical(obs, expected_obs)


def _is_repeatable(original: Env, copy: Env, rng: np.random.Generator) -> bool:
    def next_seed() -> int:
        return int(rng.integers(2**31))

    original.action_space.seed(next_seed())
    _, info = original.reset(seed=next_seed())
    for _ in range(PAST_STEPS):
        ENV_CALLS.next()
        _, _, terminated, truncated, info = original.step(sample_action(original.action_space, info))
        if terminated or truncated:
            _, info = original.reset(seed=next_seed())

    running = False
    for _ in range(COMPARED_STEPS):
        ENV_CALLS.next()
        if not running:
            seed = next_seed()
            (obs, info), (other_obs, other_info) = original.reset(seed=seed), copy.reset(seed=seed)
            if not (_identical(obs, other_obs) and _same_masks(info, other_info)):
                return False
        action = sample_action(original.action_space, info)
        first, second = original.step(action), copy.step(action)
        info = first[4]
        same = all(_identical(one, other) for one, other in zip(first[:4], second[:4], strict=True))
        if not (same and _same_masks(info, second[4])):
            return False
        running = not (first[2] or first[3])
    return True


def _same_masks(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return _identical(first.get(MASK_KEY, ()), second.get(MASK_KEY, ()))


def _identical(first: Any, second: Any) -> bool:
    """Compare bits, so that a NaN equals itself and 0.0 is not -0.0."""
    one, other = np.asarray(first), np.asarray(second)
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
