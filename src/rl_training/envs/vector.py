"""A group of single environments without auto-reset.

The collector decides when an environment is reset and with which seed; `step` therefore always returns the true
successor of a state, also at the end of an episode. `SyncEnvs` steps the environments one after the other in this
process, `workers.AsyncEnvs` in one process each, with the same results bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from rl_training.envs.episode_tracker import EpisodeTracker
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.pixels import render_image
from rl_training.envs.slot import NUM_STEPS_KEY, Env, EnvSlot, EnvState, check_env, close_env
from rl_training.envs.vector_row import VectorRow
from rl_training.errors import SpaceError


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step of every env; the arrays belong to the caller and are never overwritten.

    `obs`: (num_envs, *obs_shape) in the observation space's dtype; `rewards`: (num_envs,) float64;
    `terminated`, `truncated`: (num_envs,) bool; `ended`: the indices of the envs where either holds.
    """

    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[dict[str, Any]]
    ended: list[int]


class EnvGroup(Protocol):
    """What the collector needs from environments; spaces are those of a single env."""

    num_envs: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    cannot_repeat: str  # why the seed and the actions of an episode cannot repeat it; empty: they may

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Reset only these envs and return their observations, (len(indices), *obs_shape), and infos.

        `episodes` are the numbers for error messages; without them each env counts its resets from 0.
        """

    def step(self, actions: np.ndarray) -> StepResult:
        """Step every env once; an env whose episode has ended must have been reset."""

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        """Reset one env with `seed`, repeat `actions`, (steps, *action_shape), and return the last observation.

        Raises `ReplayDivergedError` if the episode ends before the last action.
        """

    def get_state(self, index: int) -> EnvState | None:
        """Return the state of an env, or None if it does not offer `get_state` and `set_state`."""

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        """Restore a state from `get_state`, in an env that was reset; return the observation if the env returns one."""

    def close(self) -> None:
        """Close every env; calling it again does nothing."""


class SyncEnvs:
    """Environments stepped one after the other in this process."""

    cannot_repeat = ""

    def __init__(self, factory: Callable[[], Env], num_envs: int = 1, *, crash_dir: Path | None = None) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs = num_envs
        self._episodes = EpisodeTracker(num_envs, crash_dir)
        self._slots: list[EnvSlot] = []
        for index in range(num_envs):
            try:
                with ENV_CALLS:
                    self._slots.append(EnvSlot(check_env(factory())))
                self._slots[index].check_spaces(self._slots[0].observations, self._slots[0].actions)
            except SpaceError:
                self.close()
                raise
            except BaseException as cause:
                self.close()
                raise self._episodes.error_from(index, cause) from cause
        self.observation_space = self._slots[0].env.observation_space
        self.action_space = self._slots[0].env.action_space
        self._observations, self._actions = self._slots[0].observations, self._slots[0].actions
        self._obs_shape, self._obs_dtype = self._observations.shape, self._observations.dtype
        self._batch_shape = (num_envs, *self._obs_shape)

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        self._episodes.check_open()
        observations = np.empty((len(indices), *self._obs_shape), self._obs_dtype)
        infos = []
        for row, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            self._episodes.start(index, seed, None if episodes is None else episodes[row])
            try:
                with ENV_CALLS:
                    observations[row], info = self._slots[index].reset(seed)
            except BaseException as cause:
                raise self._episodes.error_from(index, cause) from cause
            self._episodes.started(index)
            infos.append(info)
        return observations, infos

    def step(self, actions: np.ndarray) -> StepResult:
        episodes = self._episodes
        if episodes.must_reset:
            episodes.raise_reset_needed()
        num_envs = self.num_envs
        actions = self._actions.cast_actions(actions, num_envs)
        observations = np.empty(self._batch_shape, self._obs_dtype)
        rewards = np.empty(num_envs)
        terminations = np.empty(num_envs, np.bool_)
        truncations = np.empty(num_envs, np.bool_)
        infos = []
        ended = []
        index = 0
        try:
            with ENV_CALLS:
                for index, slot in enumerate(self._slots):
                    ENV_CALLS.number += 1
                    # A numpy integer for a Discrete action: CartPole's `contains` is faster with it than with int.
                    observations[index], rewards[index], terminated, truncated, info = slot.step(actions[index])
                    terminations[index] = terminated
                    truncations[index] = truncated
                    if terminated or truncated:
                        ended.append(index)
                    infos.append(info)
        except BaseException as cause:
            raise episodes.error_from(index, cause) from cause
        episodes.check_finite(self._observations, observations)
        episodes.num_steps += 1
        episodes.must_reset.update(ended)
        return StepResult(observations, rewards, terminations, truncations, infos, ended)

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        self._episodes.check_open()
        self._episodes.start(index, seed, episode, "the replay")
        try:
            with ENV_CALLS:
                obs, ended = self._slots[index].replay(seed, actions, ENV_CALLS.next)
        except BaseException as cause:
            raise self._episodes.error_from(index, cause) from cause
        self._episodes.started(index, len(actions), ended)
        return obs

    def get_state(self, index: int) -> EnvState | None:
        self._episodes.check_open()
        try:
            with ENV_CALLS:
                return self._episodes.with_num_steps(index, self._slots[index].get_state())
        except BaseException as cause:
            raise self._episodes.error_from(index, cause) from cause

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        self._episodes.check_open()
        try:
            with ENV_CALLS:
                obs = self._slots[index].set_state(state)
        except BaseException as cause:
            raise self._episodes.error_from(index, cause) from cause
        self._episodes.started(index, int(state[NUM_STEPS_KEY]))
        return obs

    @property
    def slot(self) -> EnvSlot:
        """The first environment."""
        return self._slots[0]

    def render(self) -> np.ndarray:
        """Return the picture that the first environment renders, (height, width, 3) uint8."""
        self._episodes.check_open()
        try:
            with ENV_CALLS:
                return render_image(self._slots[0].env)
        except BaseException as cause:
            raise self._episodes.error_from(0, cause) from cause

    def wrappers(self) -> list[gym.Wrapper[Any, Any, Any, Any]]:
        """Return the wrappers of the first environment, outermost first."""
        innermost = self._slots[0].env.unwrapped
        return [*self._slots[0].wrappers(), *(innermost.wrappers() if isinstance(innermost, VectorRow) else ())]

    def close(self) -> None:
        slots, self._slots = self._slots, []
        self._episodes.close()
        for slot in slots:
            close_env(slot.env)

    def __enter__(self) -> "SyncEnvs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
