"""The process of one environment, and the memory that it shares with its parent, `local_workers.LocalWorkers`."""

import contextlib
import faulthandler
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import IO, Any, TypeAlias

import numpy as np

from rl_training.core.parent_death import end_with_parent
from rl_training.core.stop_signals import STOP_SIGNALS
from rl_training.envs.array_space import ArraySpace
from rl_training.envs.episode_tracker import describe, format_traceback
from rl_training.envs.slot import Env, EnvSlot, ReplayDivergedError, check_env, close_env

Command: TypeAlias = tuple[str, tuple[Any, ...]]  # "step", "close", or a method of `EnvSlot`, and its arguments
STEP_COMMAND: Command = ("step", ())
STEP = b"step"  # the one command that is not pickled: its values are in shared memory
HEARTBEAT_SECONDS = 0.2  # how often a worker reports that it is busy with a long replay


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker sends after a command, unless it is a step without an info."""

    value: Any = None
    error: str = ""  # what the environment did, for the message
    traceback_text: str = ""
    diverged: bool = False  # a replay that ended early
    busy: bool = False  # a sign of life during a long replay: the reply follows


NO_INFO = Reply({})


class SharedArrays:
    """The arrays that parent and workers exchange at each step, one row per env."""

    def __init__(self, num_envs: int, observations: ArraySpace, actions: ArraySpace) -> None:
        self._layout = {
            "obs": ((num_envs, *observations.shape), observations.dtype),
            "actions": ((num_envs, *actions.shape), actions.dtype),
            "rewards": ((num_envs,), np.dtype(np.float64)),
            "terminated": ((num_envs,), np.dtype(np.bool_)),
            "truncated": ((num_envs,), np.dtype(np.bool_)),
        }
        # The file of a RawArray is unlinked before it is used: there is nothing to clean up.
        self._memory = {
            name: RawArray("b", max(int(np.prod(shape)) * dtype.itemsize, 1))
            for name, (shape, dtype) in self._layout.items()
        }

    def view(self, name: str) -> np.ndarray:
        shape, dtype = self._layout[name]
        return np.frombuffer(self._memory[name], dtype, count=int(np.prod(shape))).reshape(shape)


def run_worker(
    index: int,
    connection: Connection,
    *,
    factory: Callable[[], Env],
    shared: SharedArrays,
    spaces: tuple[ArraySpace, ArraySpace],
    inherited: Sequence[Connection],
    dump: IO[bytes] | None,
    parent_pid: int,
) -> None:
    """Serve one environment until the parent sends `close` or is gone."""
    for other in inherited:
        other.close()
    _leave_signals_to_parent()
    # Watching the pipe is not enough: processes forked later hold copies of the parent's end. SIGKILL also ends a
    # worker that is stopped.
    end_with_parent(parent_pid, signal.SIGKILL)
    if dump is not None:
        faulthandler.enable(dump)  # a segmentation fault writes its traceback where the parent reads it
        faulthandler.register(signal.SIGUSR1, dump)  # and so does a hang, when the parent asks
    try:
        slot = EnvSlot(check_env(factory()))
        slot.check_spaces(*spaces)
        connection.send(Reply())
    except BaseException as cause:
        connection.send(_failure(cause))
        return
    try:
        _serve(index, slot, connection, shared)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone or has given up on this group
    finally:
        close_env(slot.env)


def _leave_signals_to_parent() -> None:
    """Ignore the signals that the parent handles: terminals and batch systems send them to all processes of a run.

    The parent may take one more step and save; workers end when it closes them.
    """
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in STOP_SIGNALS or callable(signal.getsignal(number)):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)


def _serve(index: int, slot: EnvSlot, connection: Connection, shared: SharedArrays) -> None:
    obs_row = shared.view("obs")[index : index + 1]
    step = _make_step(index, slot, shared)
    heartbeat = time.monotonic()

    def report_progress() -> None:
        nonlocal heartbeat
        if time.monotonic() - heartbeat > HEARTBEAT_SECONDS:
            heartbeat = time.monotonic()
            connection.send(Reply(busy=True))

    while True:
        command = connection.recv_bytes()
        try:
            if command == STEP:
                info = step()
                reply = pickle.dumps(Reply(info)) if info else b""
            else:
                name, arguments = pickle.loads(command)
                if name == "close":
                    return
                value: Any
                if name == "reset":
                    obs_row[0], value = slot.reset(*arguments)
                elif name == "replay":
                    value = slot.replay(arguments[0], arguments[1], report_progress)
                else:
                    value = getattr(slot, name)(*arguments)
                reply = pickle.dumps(Reply(value))
        except BaseException as cause:
            reply = pickle.dumps(_failure(cause))
        connection.send_bytes(reply)


def _make_step(index: int, slot: EnvSlot, shared: SharedArrays) -> Callable[[], dict[str, Any]]:
    obs_rows, action_rows = shared.view("obs"), shared.view("actions")
    rewards, terminations, truncations = (shared.view(name) for name in ("rewards", "terminated", "truncated"))

    def step() -> dict[str, Any]:
        # A copy: the env may keep its action, and the next step overwrites the row.
        obs_rows[index], rewards[index], terminations[index], truncations[index], info = slot.step(
            action_rows[index].copy()
        )
        return info

    return step


def _failure(cause: BaseException) -> Reply:
    return Reply(
        error=describe(cause),
        traceback_text=format_traceback(cause),
        diverged=isinstance(cause, ReplayDivergedError),
    )
