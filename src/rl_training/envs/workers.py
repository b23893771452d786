"""Environments in one process each: the same results as `SyncEnvs`, and nothing left behind.

The parent writes the actions into shared memory and a command into the pipe of each worker. The worker steps its
environment, writes the result into shared memory and replies through the pipe. The memory has no name in the file
system and the workers watch their parent, so that neither outlives it, however it ends.
"""

import contextlib
import functools
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeAlias

import numpy as np

from rl_training.envs.array_space import ArraySpace
from rl_training.envs.episode_tracker import EpisodeTracker, describe_exit
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import NUM_STEPS_KEY, Env, EnvState, ReplayDivergedError, check_env, close_env
from rl_training.envs.vector import StepResult
from rl_training.envs.worker_process import NO_INFO, STEP, Reply, SharedArrays, run_worker
from rl_training.errors import ConfigError, EnvError, SpaceError

WorkerStart: TypeAlias = Literal["auto", "fork", "spawn"]

DEATH_CHECK_SECONDS = 0.5  # how often the parent checks workers whose pipes are silent
CLOSE_SECONDS = 1.0  # how long workers may take to close their environments
FORK_HINT = "an environment with an OpenGL context, or with threads of its own, needs worker_start: spawn"
DUMP_SECONDS = 0.5  # how long a hung worker may take to write its traceback


class WorkerTraceback(Exception):  # noqa: N818 (shown as the cause of an EnvError; nobody catches it)
    """Carries a worker's traceback into the parent's."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process, seen from the parent."""

    process: BaseProcess
    connection: Connection
    dump: IO[bytes] | None  # where faulthandler writes in the worker; unlinked, so that nothing of it stays

    def dumped_traceback(self) -> str:
        if self.dump is None:
            return ""
        descriptor = self.dump.fileno()  # pread, because the worker shares the file's position
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


class AsyncEnvs:
    """Environments stepped at the same time, in one process each.

    A worker that dies is noticed at once, one that does not reply after `worker_timeout` seconds; either raises
    `EnvError` and closes the whole group. A spawned worker must be able to import `factory`.
    """

    def __init__(
        self,
        factory: Callable[[], Env],
        num_envs: int = 1,
        *,
        worker_timeout: float = 60.0,
        crash_dir: Path | None = None,
        worker_start: WorkerStart = "auto",
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if not worker_timeout > 0:
            raise ValueError(f"worker_timeout must be positive, in seconds, got {worker_timeout}")
        if worker_start == "auto":
            worker_start = "fork" if sys.platform == "linux" else "spawn"
        if worker_start == "spawn":
            _check_importable(factory)
        context = multiprocessing.get_context(worker_start)
        self.num_envs = num_envs
        self._worker_timeout, self._is_forked = worker_timeout, worker_start == "fork"
        self._episodes = EpisodeTracker(num_envs, crash_dir)
        self._workers: list[Worker] = []
        self._step_messages = dict.fromkeys(range(num_envs), STEP)
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
        self._observations = observations = ArraySpace.of(self.observation_space, "observation")
        self._actions = ArraySpace.of(self.action_space, "action")
        shared = SharedArrays(num_envs, observations, self._actions)
        serve = functools.partial(run_worker, factory=factory, shared=shared, spaces=(observations, self._actions))
        self._obs, self._shared_actions = shared.view("obs"), shared.view("actions")
        self._rewards = shared.view("rewards")
        self._terminated, self._truncated = shared.view("terminated"), shared.view("truncated")
        # Runs at the end of the interpreter before multiprocessing joins its children, which would block forever.
        self._finalizer = Finalize(self, _end_workers, args=(self._workers,), exitpriority=10)
        try:
            for index in range(num_envs):
                self._workers.append(_start_worker(context, index, serve, self._workers))
            self._poller = _make_poller(self._workers)
            self._exchange(dict.fromkeys(range(num_envs)))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers; empty once closed."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        self._episodes.check_open()
        for row, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            self._episodes.start(index, seed, None if episodes is None else episodes[row])
        infos = self._call({index: ("reset", (seed,)) for index, seed in zip(indices, seeds, strict=True)})
        for index in indices:
            self._episodes.started(index)
        return self._obs[list(indices)], [infos[index] for index in indices]

    def step(self, actions: np.ndarray) -> StepResult:
        episodes = self._episodes
        if episodes.must_reset:
            episodes.raise_reset_needed()
        self._shared_actions[:] = self._actions.cast_actions(actions, self.num_envs)
        infos = self._exchange(self._step_messages)
        episodes.check_finite(self._observations, self._obs)
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        ended = np.flatnonzero(terminated | truncated).tolist()
        episodes.must_reset.update(ended)
        episodes.num_steps += 1
        return StepResult(
            self._obs.copy(),
            self._rewards.copy(),
            terminated,
            truncated,
            [infos[index] for index in range(self.num_envs)],
            ended,
        )

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        self._episodes.check_open()
        self._episodes.start(index, seed, episode, "the replay")
        obs: np.ndarray
        obs, ended = self._call({index: ("replay", (seed, actions))})[index]
        self._episodes.started(index, len(actions), ended)
        return obs

    def get_state(self, index: int) -> EnvState | None:
        self._episodes.check_open()
        return self._episodes.with_num_steps(index, self._call({index: ("get_state", ())})[index])

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        self._episodes.check_open()
        obs: np.ndarray | None = self._call({index: ("set_state", (state,))})[index]
        self._episodes.started(index, int(state[NUM_STEPS_KEY]))
        return obs

    def close(self) -> None:
        self._episodes.close()
        self._finalizer()  # does nothing the second time

    def __enter__(self) -> "AsyncEnvs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- Commands and replies ----------------------------------------------------------------------------------------

    def _call(self, commands: dict[int, tuple[str, tuple[Any, ...]]]) -> dict[int, Any]:
        return self._exchange({index: pickle.dumps(command) for index, command in commands.items()})

    def _exchange(self, messages: Mapping[int, bytes | None]) -> dict[int, Any]:
        """Send each worker its message, if any, and wait for its reply; any failure closes the whole group.

        So does an interruption: an unread reply would be read as the next one.
        """
        try:
            for index, message in messages.items():
                if message is not None:
                    with contextlib.suppress(OSError):  # the wait below finds and names a dead worker
                        self._workers[index].connection.send_bytes(message)
            return self._wait_for_replies(set(messages))
        except ReplayDivergedError:
            raise  # the worker is fine, only its environment is not repeatable
        except BaseException:
            self.close()
            raise

    def _wait_for_replies(self, pending: set[int]) -> dict[int, Any]:
        values: dict[int, Any] = {}
        deadline = time.monotonic() + self._worker_timeout
        while pending:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._hang_error(min(pending))
            ready = self._poller(min(remaining, DEATH_CHECK_SECONDS))
            for index, has_data in ready.items():
                reply = self._receive(index, has_data)
                if reply.busy:
                    deadline = time.monotonic() + self._worker_timeout
                    continue
                if reply.error:
                    raise self._failure_error(index, reply)
                values[index] = reply.value
                pending.discard(index)
            if not ready:
                # A child of the environment may hold the pipe of a dead worker open: then only its exit code shows it.
                for index in pending:
                    if self._workers[index].process.exitcode is not None:
                        raise self._death_error(index)
        return values

    def _receive(self, index: int, has_data: bool) -> Reply:
        """Read one reply of a worker whose pipe, or only whose sentinel, is ready."""
        connection = self._workers[index].connection
        try:
            # The worker may have replied and died between the checks of its pipe and of its sentinel.
            data = connection.recv_bytes() if has_data or connection.poll() else None
        except (EOFError, OSError):
            data = None
        if data is None:
            raise self._death_error(index)
        return pickle.loads(data) if data else NO_INFO

    # --- Errors ------------------------------------------------------------------------------------------------------

    def _failure_error(self, index: int, reply: Reply) -> EnvError:
        kind = ReplayDivergedError if reply.diverged else EnvError
        error = self._episodes.error(index, reply.error, reply.traceback_text, kind)
        error.__cause__ = WorkerTraceback(f"\n{reply.traceback_text}")
        return error

    def _death_error(self, index: int) -> EnvError:
        worker = self._workers[index]
        worker.process.join(CLOSE_SECONDS)
        return self._episodes.error(index, describe_exit(worker.process.exitcode), worker.dumped_traceback())

    def _hang_error(self, index: int) -> EnvError:
        worker = self._workers[index]
        if worker.dump is not None and worker.process.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(worker.process.pid, signal.SIGUSR1)
            deadline = time.monotonic() + DUMP_SECONDS
            while not worker.dumped_traceback() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.05)  # for the rest of it
        what = f"gave no answer for {self._worker_timeout:g} s (worker_timeout) and was stopped"
        worker.process.kill()
        hint = FORK_HINT if self._is_forked else ""
        return self._episodes.error(index, what, worker.dumped_traceback(), hint=hint)


def _check_importable(factory: Callable[[], Env]) -> None:
    """Raise `ConfigError` for a function that cannot be sent to a spawned process."""
    try:
        pickle.dumps(factory)
    except Exception as problem:
        raise ConfigError(
            f"worker_start: a spawned process must be able to import the function that makes the environments, but "
            f"{problem}; define it with `def` at the top level of a module, or use worker_start: fork"
        ) from None


def _start_worker(context: BaseContext, index: int, serve: Callable[..., None], earlier: Sequence[Worker]) -> Worker:
    parent_end, worker_end = context.Pipe()
    forked = context.get_start_method() == "fork"
    inherited = [*(worker.connection for worker in earlier), parent_end] if forked else []
    dump = tempfile.TemporaryFile() if forked else None  # noqa: SIM115 (closed with the worker)
    process = context.Process(  # type: ignore[attr-defined]
        target=serve,
        args=(index, worker_end),
        kwargs={"inherited": inherited, "dump": dump, "parent_pid": os.getpid()},
        name=f"env_{index}",
        daemon=True,
    )
    process.start()
    worker_end.close()
    return Worker(process, parent_end, dump)


def _make_poller(workers: Sequence[Worker]) -> Callable[[float], dict[int, bool]]:
    """Return a function that waits, at most the given seconds, for workers to reply or to end.

    It returns the workers concerned, with True if their pipe can be read.
    """
    sources: dict[Any, tuple[int, bool]] = {}
    if not hasattr(select, "poll"):
        for index, worker in enumerate(workers):
            sources |= {worker.connection: (index, True), worker.process.sentinel: (index, False)}
        return lambda seconds: dict(sorted(sources[source] for source in wait(list(sources), seconds)))

    # The same with file descriptors registered once: `wait` builds a new selector at each call.
    poll = select.poll()
    for index, worker in enumerate(workers):
        sources |= {worker.connection.fileno(): (index, True), worker.process.sentinel: (index, False)}
    for descriptor in sources:
        poll.register(descriptor, select.POLLIN)
    # Sorted, (index, True) comes last and wins.
    return lambda seconds: dict(sorted(sources[descriptor] for descriptor, _ in poll.poll(seconds * 1000)))


def _end_workers(workers: list[Worker]) -> None:
    """End every worker: send `close`, wait a moment, then kill. Empties the list."""
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.connection.send_bytes(pickle.dumps(("close", ())))
    deadline = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(deadline - time.monotonic(), 0))
    for worker in workers:
        if worker.process.exitcode is None:
            worker.process.kill()
        worker.process.join()
        worker.process.close()
        worker.connection.close()
        if worker.dump is not None:
            worker.dump.close()
    workers.clear()
