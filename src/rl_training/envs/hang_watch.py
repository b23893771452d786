"""A watchdog for environments that run in this process: a call that never returns must not hang the run.

Whoever calls an environment marks it: `with ENV_CALLS: ...`. While `hangs_end` is active, a thread looks at the marks.
It interrupts a call that takes too long with an `EnvError` in the main thread. Native code cannot be interrupted: then
the thread writes the traceback of all threads and ends the process. It never saves anything itself, since the state
that it would read belongs to the main thread.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType

from rl_training.errors import EnvError

EXIT_HUNG = 2  # as for every other failure of an environment
TICKS = 20  # looks at a call until it counts as hung; a process that was suspended has looked at most once more
GRACE_SECONDS = 5.0  # from the interruption to the end of the process

_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGALRM)  # one that environments do not use
_DEBUGGERS = {"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"}


class EnvCalls:
    """Marks the calls of the main thread into environments."""

    def __init__(self) -> None:
        self.active = False
        self.number = 0  # of calls so far

    def __enter__(self) -> None:
        self.number += 1
        self.active = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.active = False

    def next(self) -> None:
        """Mark the next call without leaving the block."""
        self.number += 1


ENV_CALLS = EnvCalls()


class HangWatch:
    """Counts for how many ticks the main thread has been in the same call, and ends that call."""

    def __init__(self, timeout: float, *, interrupt: Callable[[], None], end_process: Callable[[], None]) -> None:
        self._timeout = timeout
        self._interrupt, self._end_process = interrupt, end_process
        self._number = -1
        self._ticks = 0
        self.tick_seconds = timeout / TICKS
        self._last_tick = TICKS + max(1, round(min(GRACE_SECONDS, timeout) / self.tick_seconds))

    def tick(self) -> None:
        if not ENV_CALLS.active or ENV_CALLS.number != self._number or _is_debugged():
            self._number, self._ticks = ENV_CALLS.number, 0
            return
        self._ticks += 1
        if self._ticks == TICKS:
            self._interrupt()
        elif self._ticks == self._last_tick:
            self._end_process()

    def raise_in_call(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal in the main thread: raise, if it is still in the call that hangs."""
        if ENV_CALLS.active and ENV_CALLS.number == self._number and self._ticks >= TICKS:
            ENV_CALLS.active = False
            raise EnvError(f"gave no answer for {self._timeout:g} s (worker_timeout) and was stopped")


@contextlib.contextmanager
def hangs_end(timeout: float, run_dir: Path | None = None) -> Iterator[None]:
    """Interrupt calls into environments that take longer than `timeout` seconds while the block runs.

    If a call cannot be interrupted, the process ends; a report is written to the crash folder in `run_dir`. Outside
    the main thread, which alone receives signals, nothing is watched.
    """
    main = threading.get_ident()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = HangWatch(
        timeout,
        interrupt=lambda: signal.pthread_kill(main, _SIGNAL),
        end_process=lambda: _end_process(timeout, run_dir),
    )
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(watch.tick_seconds):
            watch.tick()

    thread = threading.Thread(target=look, name="hang_watch", daemon=True)
    before = signal.signal(_SIGNAL, watch.raise_in_call)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(_SIGNAL, before)


def _is_debugged() -> bool:
    """Return whether the main thread waits for the user of a debugger."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def _end_process(timeout: float, run_dir: Path | None) -> None:
    message = (
        f"an environment gave no answer for {timeout:g} s (worker_timeout), in native code that cannot be "
        "interrupted: the process ends"
    )
    if run_dir is not None:
        with contextlib.suppress(OSError):
            (run_dir / "crash").mkdir(exist_ok=True)
            report = run_dir / "crash" / "hang.txt"
            with report.open("w", encoding="utf-8") as file:
                file.write(f"{message}\n\n")
                file.flush()
                faulthandler.dump_traceback(file)
            message += f"; see {report}. `rl-training resume {run_dir}` continues from the newest checkpoint"
    with contextlib.suppress(OSError):  # not `print`, whose lock the main thread may hold
        os.write(2, f"\nerror: {message}\n".encode())
    os._exit(EXIT_HUNG)
