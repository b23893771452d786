"""End a process with the one that started it, also if that one is killed."""

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_PID = "RL_TRAINING_PARENT_PID"  # environment variable: the process that the started one ends with

_PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>
_CHECK_SECONDS = 1.0


def end_with_named_parent() -> None:
    """Save and end this process (SIGTERM) when its parent ends, if the parent asked for it in the environment."""
    pid = os.environ.pop(PARENT_PID, None)  # removed: it is not meant for processes that this one starts
    if pid is not None:
        end_with_parent(int(pid), signal.SIGTERM)


def end_with_parent(pid: int, number: signal.Signals) -> None:
    """Send this process the signal `number` as soon as its parent, the process `pid`, has ended."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0:
        if os.getppid() != pid:  # it ended before the call
            os.kill(os.getpid(), number)
        return
    threading.Thread(target=_watch_parent, args=(pid, number), daemon=True).start()


def _watch_parent(pid: int, number: signal.Signals) -> None:
    while os.getppid() == pid:
        time.sleep(_CHECK_SECONDS)
    os.kill(os.getpid(), number)
