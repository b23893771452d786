"""Restore an environment to the state at a checkpoint.

If an environment is deterministic, the seed of its reset and the actions since determine an episode. `check_replay`
tests this before training, on copies with different histories, and `repeats_episode` later with some finished episodes.
BipedalWalker-v3 is a counterexample: its physics keep state over a reset. An environment may offer `get_state` and
`set_state` instead; where neither works, a run resumes at an episode boundary.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rl_training.envs.array_space import checked_result
from rl_training.envs.dict_obs import MASK_KEY, sample_action
from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import Env, EnvSlot, EnvState, ReplayDivergedError, check_env, close_env
from rl_training.envs.vector import EnvGroup, SyncEnvs
from rl_training.envs.vector_row import VectorRow
from rl_training.errors import EnvError

PAST_STEPS = 300  # taken by the first copy before the comparison, so that hidden state could leak over its resets
TRIALS = 8  # comparisons, each with new seeds: some environments repeat an episode only sometimes
TRIAL_STEPS = 120
CHECK_SECONDS = 3.0  # for the whole check; each step of a slow environment counts
QUIET_SECONDS = 1.0  # after which the check is mentioned

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """What a sample of episodes showed: none of `trials` differed, or one did."""

    repeats: bool
    trials: int  # comparisons that were made
    unlimited: bool  # no time limit, and no episode ended during the check

    def __bool__(self) -> bool:
        return self.repeats


@dataclass(frozen=True, slots=True)
class EpisodeRecipe:
    """How to restore an open episode: from the state of the env if there is one, else by replay.

    `actions`: (steps, *action_shape), those taken since `reset(seed=seed)`; not needed with a state.
    """

    seed: int
    actions: np.ndarray
    state: EnvState | None = None


def check_replay(
    factory: Callable[[], Env],
    seed: int,
    *,
    seconds: float = CHECK_SECONDS,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReplayCheck:
    """Check whether `reset(seed)` and the same actions repeat an episode, bit for bit, after any history.

    Compares observations, rewards, flags and action masks of two copies in up to `TRIALS` trials of random steps. Stops
    after `seconds`, but compares at least one step, and as soon as `should_stop()`. Raises `EnvError` if the
    environment fails during the check.
    """
    trial = _ReplayTrial(np.random.default_rng(seed), seconds, should_stop)
    envs: list[Env] = []
    try:
        with ENV_CALLS:
            for _ in range(2):
                ENV_CALLS.next()
                envs.append(check_env(factory()))
            if envs[0].unwrapped is envs[1].unwrapped:
                raise EnvError("came from a factory that returned the same environment twice; it must make new ones")
            trial.give_past(envs[0])
            for number in range(1, TRIALS + 1):
                if not trial.repeats(*envs):
                    return ReplayCheck(False, number, trial.unlimited)
                if trial.is_over():
                    break
            return ReplayCheck(True, number, trial.unlimited)
    except Exception as cause:
        raise EnvError(
            f"the check whether the environment can be replayed failed: it {describe_alone(cause)}"
        ) from cause
    finally:
        for env in envs:
            close_env(env)


def repeats_episode(
    factory: Callable[[], Env], episode: EpisodeRecipe, *, obs: np.ndarray, ret: float, seconds: float = CHECK_SECONDS
) -> bool:
    """Play a finished episode again in a new env; return whether it ends with the same observation and return.

    If it takes longer than `seconds`, nothing is known and the result is True.
    """
    end, again = time.monotonic() + seconds, 0.0
    try:
        with contextlib.closing(SyncEnvs(factory)) as envs:
            envs.reset([0], [episode.seed])
            for left, action in zip(range(len(episode.actions) - 1, -1, -1), episode.actions, strict=True):
                if time.monotonic() > end:
                    return True
                result = envs.step(action[None])
                again += float(result.rewards[0])
                if bool(result.ended) != (left == 0):
                    return False
            return again == ret and _identical(result.obs[0], obs)
    except EnvError:
        return False  # the first time, it did not fail


@runtime_checkable
class ReplaysTogether(Protocol):
    """A group that cannot step one env alone, but all of them to their open episodes at the same time."""

    def replay_together(
        self, seeds: Sequence[int], actions: Sequence[np.ndarray], episodes: Sequence[int]
    ) -> list[np.ndarray | None]: ...


def restore_envs(
    envs: EnvGroup, recipes: Sequence[EpisodeRecipe | None], expected_obs: np.ndarray, episodes: Sequence[int]
) -> list[bool]:
    """Restore each env to its episode; return, for each, whether its observation equals the stored one.

    On False the env is in some other state and must be reset; so for a recipe that is None.
    """
    given = [recipe for recipe in recipes if recipe is not None]
    if isinstance(envs, ReplaysTogether) and len(given) == len(recipes):
        found = envs.replay_together([one.seed for one in given], [one.actions for one in given], episodes)
        pairs = zip(found, expected_obs, strict=True)
        return [obs is not None and _identical(obs, expected) for obs, expected in pairs]
    return [
        recipe is not None and restore_env(envs, index, recipe, expected_obs[index], episodes[index])
        for index, recipe in enumerate(recipes)
    ]


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


class _ReplayTrial:
    """Plays two copies side by side, while there is time."""

    def __init__(self, rng: np.random.Generator, seconds: float, should_stop: Callable[[], bool]) -> None:
        self.unlimited = False  # until the first copy is known
        self._rng, self._should_stop, self._seconds = rng, should_stop, seconds
        self._start, self._was_mentioned = time.monotonic(), False

    def is_over(self, share: float = 1.0) -> bool:
        taken = time.monotonic() - self._start
        if taken > QUIET_SECONDS and not self._was_mentioned:
            self._was_mentioned = True
            log.info("checking whether the environment repeats its episodes (at most %g s) ...", self._seconds)
        return taken > share * self._seconds or self._should_stop()

    def give_past(self, env: Env) -> None:
        """Take steps with the first copy alone, for a part of the time."""
        spec = env.unwrapped.spec if isinstance(env.unwrapped, VectorRow) else None
        self.unlimited = not EnvSlot(env).time_limits() and (spec is None or spec.max_episode_steps is None)
        env.action_space.seed(self._next_seed())
        _, info = env.reset(seed=self._next_seed())
        for _ in range(PAST_STEPS):
            if self.is_over(share=0.3):
                return
            ENV_CALLS.next()
            result = checked_result(env.step(sample_action(env.action_space, info)), "step")
            _, _, terminated, truncated, info = result
            if terminated or truncated:
                self.unlimited = False
                _, info = env.reset(seed=self._next_seed())

    def repeats(self, original: Env, copy: Env) -> bool:
        """Compare episodes of the two copies over random steps; return whether all were the same."""
        running = False
        for number in range(TRIAL_STEPS):
            if number > 0 and self.is_over():
                break
            ENV_CALLS.next()
            if not running:
                seed = self._next_seed()
                (obs, info), (other_obs, other_info) = original.reset(seed=seed), copy.reset(seed=seed)
                if not (_identical(obs, other_obs) and _same_masks(info, other_info)):
                    return False
            action = sample_action(original.action_space, info)
            first, second = (checked_result(env.step(action), "step") for env in (original, copy))
            info = first[4]
            same = all(_identical(one, other) for one, other in zip(first[:4], second[:4], strict=True))
            if not (same and _same_masks(info, second[4])):
                return False
            running = not (first[2] or first[3])
            self.unlimited = self.unlimited and running
        return True

    def _next_seed(self) -> int:
        return int(self._rng.integers(2**31))


def _same_masks(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return _identical(first.get(MASK_KEY, ()), second.get(MASK_KEY, ()))


def _identical(first: Any, second: Any) -> bool:
    """Compare bits, so that a NaN equals itself and 0.0 is not -0.0."""
    one, other = np.asarray(first), np.asarray(second)
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
