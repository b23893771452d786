"""Handle Ctrl-C and the other stop signals, so that a long task saves what it has before it ends."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from rl_training.core.stop_signals import STOP_SIGNALS
from rl_training.runtime.run import Run

EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: saved, can be continued
_ALWAYS_HANDLED = (signal.SIGINT, signal.SIGTERM)
_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)


@contextlib.contextmanager
def signals_handled(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Call `handle(number, frame)` at every stop signal while the block runs; outside the main thread nothing changes.

    Other signals than SIGINT and SIGTERM are left alone if they are ignored (`nohup`) or have a handler already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in STOP_SIGNALS if n in _ALWAYS_HANDLED or signal.getsignal(n) == signal.SIG_DFL]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def first_signal_handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle(number)` at the first signal; a second one from the keyboard raises `KeyboardInterrupt`.

    Batch systems repeat their signals, and workers pass them on to a run that may have got them already.
    """
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        if not received:
            received.append(number)
            handle(number)
        elif number in _FROM_KEYBOARD:
            raise KeyboardInterrupt

    with signals_handled(stop):
        yield


@contextlib.contextmanager
def signals_stop(*runs: Run) -> Iterator[None]:
    """End the run, or those that train together, after the current step when a signal comes.

    A second Ctrl-C ends it at once.
    """

    def stop(number: int) -> None:
        with contextlib.suppress(OSError):  # not `print`, which the signal may have interrupted
            os.write(2, b"\nsaving the run; press Ctrl-C again to stop at once\n")
        for run in runs:
            if not run.stop_reason:
                run.signal, run.interrupted = signal.Signals(number), True
                run.stop_reason = f"signal {run.signal.name}"

    with first_signal_handled(stop):
        yield


def end_script(received: signal.Signals) -> NoReturn:
    """Raise what ends a script after a signal: `KeyboardInterrupt` for Ctrl-C, else `SystemExit` with code 75."""
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(EXIT_INTERRUPTED)
