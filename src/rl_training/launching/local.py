"""A pool of processes on this machine."""

import logging
import time
from pathlib import Path

from rl_training.experiment.claims import claim_run
from rl_training.experiment.run_dir import is_in_use
from rl_training.launching.marks import ask_to_stop, forget, may_start, newest_checkpoint
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.process import Ended, RunProcess

IN_USE_SECONDS = 60.0  # in which the process of a killed driver saves its run
_LOOK_SECONDS = 1.0  # between two looks at runs that others train

log = logging.getLogger("rl_training")


class LocalPool:
    """Runs up to `jobs` runs at a time, each in a process of its own.

    A run in which another process trains is started when that one has ended, or left out if it takes too long.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._waiting: list[Path] = []
        self._running: dict[Path, RunProcess] = {}
        self._ended: list[Ended] = []
        self._is_open = True
        self._look_at = self._patience_ends = 0.0

    def submit(self, folder: Path) -> None:
        forget(folder)
        self._add(folder)

    def _add(self, folder: Path) -> None:
        self._waiting.append(folder)
        self._look_at, self._patience_ends = 0.0, time.monotonic() + IN_USE_SECONDS

    def running(self) -> list[Path]:
        return list(self._running)

    def ended(self) -> list[Ended]:
        self._end_ended()
        if self._is_open:
            self._start_waiting()
        if self._running:
            self._patience_ends = time.monotonic() + IN_USE_SECONDS
        elif self._waiting and time.monotonic() >= self._patience_ends:
            self._ended += [Ended(folder, "interrupted", "another process trains in it") for folder in self._waiting]
            self._waiting.clear()
        ended, self._ended = self._ended, []
        return ended

    def _end_ended(self) -> None:
        for folder, process in list(self._running.items()):
            if (end := process.poll()) is not None:
                del self._running[folder]
                self._end(end)

    def _end(self, end: Ended) -> None:
        self._look_at = 0.0
        if end.status != "failed":
            self._ended.append(end)
            return
        self._is_open = self._is_open and not self._options.fail_fast  # starts no more
        if self._is_open and may_start(end.folder, self._options.retries):
            log.warning("%s %s; it is tried again", end.folder, end.message)
            self._add(end.folder)
        else:
            self._ended.append(end)

    def _start_waiting(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        for folder in list(self._waiting):
            if len(self._running) == self._options.jobs:
                return
            if not is_in_use(folder) and (claim := claim_run(folder, newest_checkpoint(folder))) is not None:
                self._waiting.remove(folder)
                self._running[folder] = RunProcess(claim, self._options.flags)

    def stop(self, folder: Path) -> None:
        ask_to_stop(folder)  # its process is ended by the next call of `ended`
        if folder in self._waiting:
            self._waiting.remove(folder)
            self._ended.append(Ended(folder, "interrupted"))

    def close(self) -> None:
        self._is_open = False
        self._waiting.clear()
        for process in self._running.values():
            process.stop()
        for process in self._running.values():
            process.wait()
        self._end_ended()
