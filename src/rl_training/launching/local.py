"""A pool of processes on this machine: each runs `rl-training resume` and writes to log.txt in its run folder."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rl_training.core.durable_files import open_log
from rl_training.core.parent_death import PARENT_PID
from rl_training.experiment.run_dir import is_in_use
from rl_training.launching.failures import forget_failure, record_failure
from rl_training.launching.pool import Ended, LaunchOptions
from rl_training.launching.progress import last_line
from rl_training.runtime.signals import EXIT_INTERRUPTED

IN_USE_SECONDS = 60.0  # in which the process of a killed driver saves its run
LOG = "log.txt"

log = logging.getLogger("rl_training")


class LocalPool:
    """Runs up to `jobs` runs at a time, each in a process of its own.

    A run in which another process trains is started when that one has ended, or left out if it takes too long.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._waiting: list[Path] = []
        self._running: dict[Path, subprocess.Popen[bytes]] = {}
        self._ended: list[Ended] = []
        self._is_open = True
        self._patience_ends = 0.0

    def submit(self, folder: Path) -> None:
        forget_failure(folder)
        self._add(folder)

    def _add(self, folder: Path) -> None:
        self._waiting.append(folder)
        self._patience_ends = time.monotonic() + IN_USE_SECONDS

    def running(self) -> list[Path]:
        return list(self._running)

    def ended(self) -> list[Ended]:
        for folder in [folder for folder, process in self._running.items() if process.poll() is not None]:
            self._end(folder, self._running.pop(folder).returncode)
        if self._is_open:
            free = [folder for folder in self._waiting if not is_in_use(folder)]
            for folder in free[: self._options.jobs - len(self._running)]:
                self._waiting.remove(folder)
                self._running[folder] = start_process(folder, self._options.flags)
        if self._running:
            self._patience_ends = time.monotonic() + IN_USE_SECONDS
        elif self._waiting and time.monotonic() >= self._patience_ends:
            self._ended += [Ended(folder, "interrupted", "another process trains in it") for folder in self._waiting]
            self._waiting.clear()
        ended, self._ended = self._ended, []
        return ended

    def _end(self, folder: Path, code: int) -> None:
        if code == 0:
            forget_failure(folder)
            self._ended.append(Ended(folder, "finished"))
        elif code in (EXIT_INTERRUPTED, -signal.SIGTERM):  # the second: it was still importing
            self._ended.append(Ended(folder, "interrupted"))
        else:
            self._fail(folder, describe_exit(folder, code))

    def _fail(self, folder: Path, message: str) -> None:
        failure = record_failure(folder, message)
        self._is_open = self._is_open and not self._options.fail_fast  # starts no more
        if not self._is_open or failure.count > self._options.retries:
            self._ended.append(Ended(folder, "failed", message))
        else:
            log.warning("%s %s; it is tried again", folder, message)
            self._add(folder)

    def stop(self, folder: Path) -> None:
        if folder in self._waiting:
            self._waiting.remove(folder)
            self._ended.append(Ended(folder, "interrupted"))
        elif folder in self._running:
            self._running[folder].terminate()

    def close(self) -> None:
        self._is_open = False
        self._waiting.clear()
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()


def describe_exit(folder: Path, code: int) -> str:
    """Return how the process of a run ended, and the last line of its log."""
    ending = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    file = folder / LOG
    reason = last_line(file)
    return f"{ending}; see {file}" + (f": {reason}" if reason else "")


def start_process(folder: Path, flags: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a process that resumes a run, and that saves and ends with this one."""
    with open_log(folder / LOG) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rl_training", "resume", str(folder), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # As many processes as cores leave one thread each.
            env={**os.environ, "OMP_NUM_THREADS": "1", PARENT_PID: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches the children once, through this process
        )
