"""SIGINT (Ctrl-C) and SIGTERM while something is to be ended in good order."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from rl_training.runtime.run import Run

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_handled(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Let `handle(number, frame)` answer both signals; other threads than the main one leave them as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_stop(run: Run) -> Iterator[None]:
    """Let a signal end the run after the current step; a second one ends it at once."""
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        with contextlib.suppress(OSError):  # not by `print`, which the signal may have come in the midst of
            os.write(2, b"\nsaving the run; press Ctrl-C again to stop at once\n")
        if not run.stop_reason:
            run.stop_reason, run.interrupted = f"signal {signal.Signals(number).name}", True

    with signals_handled(stop):
        yield
