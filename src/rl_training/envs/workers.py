"""Environments in processes of their own: the same results as `SyncEnvs`, with errors that name the environment.

`local_workers.LocalWorkers` are processes on this machine, `ray_workers.RayWorkers` on any number of machines.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from rl_training.envs.array_space import ArraySpace
from rl_training.envs.episode_tracker import EpisodeTracker
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.local_workers import Failure, LocalWorkers, WorkerStart
from rl_training.envs.slot import NUM_STEPS_KEY, Env, EnvState, ReplayDivergedError, check_env, close_env
from rl_training.envs.vector import StepResult
from rl_training.envs.worker_process import STEP_COMMAND, Command, SharedArrays
from rl_training.errors import EnvError, SpaceError


class Workers(Protocol):
    """Processes that step one environment each; `arrays` hold the actions of the next step and the results."""

    arrays: SharedArrays

    @property
    def pids(self) -> list[int]: ...

    def exchange(self, commands: Mapping[int, Command | None]) -> dict[int, Any] | Failure:
        """Send each worker its command and wait for its reply; None only waits for the reply to the start."""

    def close(self) -> None:
        """End every worker; calling it again does nothing."""


class MakeWorkers(Protocol):
    """Starts the workers of a group; a class is one."""

    def __call__(
        self,
        factory: Callable[[], Env],
        num_envs: int,
        spaces: tuple[ArraySpace, ArraySpace],
        *,
        worker_timeout: float,
        worker_start: WorkerStart,
    ) -> Workers: ...


class WorkerTraceback(Exception):  # noqa: N818 (shown as the cause of an EnvError; nobody catches it)
    """Carries a worker's traceback into the parent's."""


class AsyncEnvs:
    """Environments stepped at the same time, in one process each.

    A worker that dies is noticed at once, one that does not reply after `worker_timeout` seconds; either raises
    `EnvError` and closes the whole group. A spawned worker must be able to import `factory`.
    """

    cannot_repeat = ""

    def __init__(
        self,
        factory: Callable[[], Env],
        num_envs: int = 1,
        *,
        worker_timeout: float = 60.0,
        crash_dir: Path | None = None,
        worker_start: WorkerStart = "auto",
        make_workers: MakeWorkers = LocalWorkers,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if not worker_timeout > 0:
            raise ValueError(f"worker_timeout must be positive, in seconds, got {worker_timeout}")
        self.num_envs = num_envs
        self._episodes = EpisodeTracker(num_envs, crash_dir)
        self._all = list(range(num_envs))
        # One environment is built here for its spaces: the shared memory must exist before the workers.
        try:
            with ENV_CALLS:
                env = check_env(factory())
        except SpaceError:
            raise
        except BaseException as cause:
            raise self._episodes.error_from(0, cause) from cause
        self.observation_space, self.action_space = env.observation_space, env.action_space
        close_env(env)
        self._observations = ArraySpace.of(self.observation_space, "observation")
        self._actions = ArraySpace.of(self.action_space, "action")
        spaces = self._observations, self._actions
        self._workers = make_workers(
            factory, num_envs, spaces, worker_timeout=worker_timeout, worker_start=worker_start
        )
        arrays = self._workers.arrays
        self._obs, self._shared_actions = arrays.view("obs"), arrays.view("actions")
        self._rewards = arrays.view("rewards")
        self._terminated, self._truncated = arrays.view("terminated"), arrays.view("truncated")
        self._exchange(dict.fromkeys(range(num_envs)))

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers; empty once closed."""
        return self._workers.pids

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        self._episodes.check_open()
        for row, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            self._episodes.start(index, seed, None if episodes is None else episodes[row])
        infos = self._exchange({index: ("reset", (seed,)) for index, seed in zip(indices, seeds, strict=True)})
        for index in indices:
            self._episodes.started(index)
        return self._obs[list(indices)], [infos[index] for index in indices]

    def step(self, actions: np.ndarray, indices: Sequence[int] | None = None) -> StepResult:
        """Step every env once, or these alone while the others wait for a reset; the result has one row for each."""
        episodes, rows = self._episodes, self._all if indices is None else list(indices)
        if not episodes.must_reset.isdisjoint(rows):
            episodes.raise_reset_needed()
        self._shared_actions[rows] = self._actions.cast_actions(actions, len(rows))
        infos = self._exchange(dict.fromkeys(rows, STEP_COMMAND))
        obs, terminated, truncated = self._obs[rows], self._terminated[rows], self._truncated[rows]  # copies
        episodes.check_finite(self._observations, obs, rows)
        ended = [rows[row] for row in np.flatnonzero(terminated | truncated)]
        episodes.must_reset.update(ended)
        episodes.num_steps += 1
        return StepResult(obs, self._rewards[rows], terminated, truncated, [infos[index] for index in rows], ended)

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        self._episodes.check_open()
        self._episodes.start(index, seed, episode, "the replay")
        obs: np.ndarray
        obs, ended = self._exchange({index: ("replay", (seed, actions))})[index]
        self._episodes.started(index, len(actions), ended)
        return obs

    def get_state(self, index: int) -> EnvState | None:
        self._episodes.check_open()
        return self._episodes.with_num_steps(index, self._exchange({index: ("get_state", ())})[index])

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        self._episodes.check_open()
        obs: np.ndarray | None = self._exchange({index: ("set_state", (state,))})[index]
        self._episodes.started(index, int(state[NUM_STEPS_KEY]))
        return obs

    def close(self) -> None:
        self._episodes.close()
        self._workers.close()

    def __enter__(self) -> "AsyncEnvs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _exchange(self, commands: Mapping[int, Command | None]) -> dict[int, Any]:
        """Return the replies of the workers to their commands; any failure closes the whole group.

        So does an interruption: an unread reply would be read as the next one.
        """
        try:
            replies = self._workers.exchange(commands)
            if not isinstance(replies, Failure):
                return replies
            kind = ReplayDivergedError if replies.diverged else EnvError
            error = self._episodes.error(replies.index, replies.what, replies.traceback_text, kind, hint=replies.hint)
            raise error from (WorkerTraceback(f"\n{replies.traceback_text}") if replies.raised else None)
        except ReplayDivergedError:
            raise  # the worker is fine, only its environment is not repeatable
        except BaseException:
            self.close()
            raise
