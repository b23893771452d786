"""Worker processes on this machine, one per environment, seen from their parent; they leave nothing behind.

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
from typing import IO, Any, Literal, TypeAlias

from rl_training.envs.array_space import ArraySpace
from rl_training.envs.episode_tracker import describe_exit
from rl_training.envs.slot import Env
from rl_training.envs.worker_process import NO_INFO, STEP, STEP_COMMAND, Command, Reply, SharedArrays, run_worker
from rl_training.errors import ConfigError

WorkerStart: TypeAlias = Literal["auto", "fork", "spawn"]

DEATH_CHECK_SECONDS = 0.5  # how often the parent checks workers whose pipes are silent
CLOSE_SECONDS = 1.0  # how long workers may take to close their environments
FORK_HINT = "an environment with an OpenGL context, or with threads of its own, needs worker_start: spawn"
DUMP_SECONDS = 0.5  # how long a hung worker may take to write its traceback


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in the worker of one environment."""

    index: int
    what: str  # what the environment did, for the message
    traceback_text: str = ""
    diverged: bool = False  # a replay that ended early: the worker is fine, only its environment is not repeatable
    raised: bool = False  # in the environment's own code
    hint: str = ""


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


class LocalWorkers:
    """One process per environment on this machine; `arrays` is the memory that they share with this one."""

    def __init__(
        self,
        factory: Callable[[], Env],
        num_envs: int,
        spaces: tuple[ArraySpace, ArraySpace],
        *,
        worker_timeout: float,
        worker_start: WorkerStart = "auto",
    ) -> None:
        if worker_start == "auto":
            worker_start = "fork" if sys.platform == "linux" else "spawn"
        if worker_start == "spawn":
            check_importable(factory, "worker_start: a spawned process", "use worker_start: fork")
        context = multiprocessing.get_context(worker_start)
        self.arrays = SharedArrays(num_envs, *spaces)
        self._worker_timeout, self._is_forked = worker_timeout, worker_start == "fork"
        self._workers: list[Worker] = []
        serve = functools.partial(run_worker, factory=factory, shared=self.arrays, spaces=spaces)
        # Runs at the end of the interpreter before multiprocessing joins its children, which would block forever.
        self._finalizer = Finalize(self, _end_workers, args=(self._workers,), exitpriority=10)
        try:
            for index in range(num_envs):
                self._workers.append(_start_worker(context, index, serve, self._workers))
        except BaseException:
            self.close()
            raise
        self._poller = _make_poller(self._workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers; empty once closed."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def exchange(self, commands: Mapping[int, Command | None]) -> dict[int, Any] | Failure:
        """Send each worker its command, if any, and wait for its reply; return the values or the first failure."""
        for index, command in commands.items():
            if command is not None:
                message = STEP if command == STEP_COMMAND else pickle.dumps(command)
                with contextlib.suppress(OSError):  # the wait below finds and names a dead worker
                    self._workers[index].connection.send_bytes(message)
        return self._wait_for_replies(set(commands))

    def close(self) -> None:
        self._finalizer()  # does nothing the second time

    def _wait_for_replies(self, pending: set[int]) -> dict[int, Any] | Failure:
        values: dict[int, Any] = {}
        deadline = time.monotonic() + self._worker_timeout
        while pending:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return self._stop_hung(min(pending))
            ready = self._poller(min(remaining, DEATH_CHECK_SECONDS))
            for index, has_data in ready.items():
                reply = self._receive(index, has_data)
                if reply is None:
                    return self._death(index)
                if reply.busy:
                    deadline = time.monotonic() + self._worker_timeout
                    continue
                if reply.error:
                    return Failure(index, reply.error, reply.traceback_text, reply.diverged, raised=True)
                values[index] = reply.value
                pending.discard(index)
            if not ready:
                # A child of the environment may hold the pipe of a dead worker open: then only its exit code shows it.
                for index in pending:
                    if self._workers[index].process.exitcode is not None:
                        return self._death(index)
        return values

    def _receive(self, index: int, has_data: bool) -> Reply | None:
        """Read one reply of a worker whose pipe, or only whose sentinel, is ready; None if it is dead."""
        connection = self._workers[index].connection
        try:
            # The worker may have replied and died between the checks of its pipe and of its sentinel.
            data = connection.recv_bytes() if has_data or connection.poll() else None
        except (EOFError, OSError):
            data = None
        if data is None:
            return None
        return pickle.loads(data) if data else NO_INFO

    def _death(self, index: int) -> Failure:
        worker = self._workers[index]
        worker.process.join(CLOSE_SECONDS)
        return Failure(index, describe_exit(worker.process.exitcode), worker.dumped_traceback())

    def _stop_hung(self, index: int) -> Failure:
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
        return Failure(index, what, worker.dumped_traceback(), hint=hint)


def check_importable(factory: Callable[[], Env], who: str, instead: str, *, has_main: bool = True) -> bytes:
    """Return the function as bytes that another process can load; raise `ConfigError` if it cannot import it.

    `has_main`: whether the other process knows the script that was started.
    """
    try:
        sent = pickle.dumps(factory)
        if not has_main and b"__main__" in sent:
            raise ValueError("it is defined in the script that was started")
        return sent
    except Exception as problem:
        raise ConfigError(
            f"{who} must be able to import the function that makes the environments, but "
            f"{problem}; define it with `def` at the top level of a module, or {instead}"
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
