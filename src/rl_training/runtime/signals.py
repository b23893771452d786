"""Handle SIGINT (Ctrl-C) and SIGTERM, so that a long task saves what it has before it ends."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from rl_training.runtime.run import Run

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_handled(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Call `handle(number, frame)` at both signals while the block runs; outside the main thread nothing changes."""
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
def first_signal_handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle(number)` at the first signal; a second one raises `KeyboardInterrupt`."""
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        handle(number)

    with signals_handled(stop):
        yield


@contextlib.contextmanager
def signals_stop(run: Run) -> Iterator[None]:
    """End the run after the current step when a signal comes; a second one ends it at once."""

    def stop(number: int) -> None:
        with contextlib.suppress(OSError):  # not `print`, which the signal may have interrupted
            os.write(2, b"\nsaving the run; press Ctrl-C again to stop at once\n")
        if not run.stop_reason:
            run.stop_reason, run.interrupted = f"signal {signal.Signals(number).name}", True

    with first_signal_handled(stop):
        yield
