"""A pool of workers on other machines, which SLURM or Ray start: the state of every run is read from its folder."""

import logging
import time
from pathlib import Path
from typing import Protocol

from rl_training.errors import TrainingError
from rl_training.experiment.claims import holder_of
from rl_training.experiment.run_dir import read_result, read_run_config
from rl_training.launching.marks import ask_to_stop, forget, is_stopped, newest_checkpoint, read_failure
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.process import Ended

_LOOK_SECONDS = 1.0  # between two looks at the run folders
_STARTS_WITHOUT_PROGRESS = 3

log = logging.getLogger("rl_training")


class Workers(Protocol):
    """Workers (`rl-training work`) that a cluster runs."""

    def alive(self) -> int | None:
        """Return how many workers wait or work; None if the cluster does not answer now."""

    def start(self, count: int) -> None:
        """Start this many more."""

    def close(self) -> None:
        """Release the workers: SLURM's jobs go on, Ray's tasks save their runs and end."""


class WorkerPool:
    """Keeps as many workers alive as there are open runs, up to `jobs`."""

    def __init__(self, options: LaunchOptions, workers: Workers) -> None:
        self._options, self._workers = options, workers
        self._open: list[Path] = []
        self._running: list[Path] = []
        self._look_at = 0.0
        self._is_open = True
        self._starts = 0  # of workers, since the last progress of any run
        self._progress: list[object] = []
        self._has_warned = False

    def submit(self, folder: Path) -> None:
        config = read_run_config(folder)
        if config.checkpoint_interval == config.checkpoint_minutes == 0 and not self._has_warned:
            log.warning("a killed worker loses its run: set checkpoint_interval or checkpoint_minutes")
            self._has_warned = True
        forget(folder)
        self._open.append(folder)
        self._look_at = 0.0

    def running(self) -> list[Path]:
        return self._running

    def ended(self) -> list[Ended]:
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK_SECONDS
        ended = [end for folder in self._open if (end := self._end_of(folder)) is not None]
        for end in ended:
            self._open.remove(end.folder)
        self._running = [folder for folder in self._open if holder_of(folder) is not None]
        if self._is_open:
            self._start_workers()
        return ended

    def _end_of(self, folder: Path) -> Ended | None:
        if holder_of(folder) is not None:
            return None
        if read_result(folder) is not None:
            return Ended(folder, "finished")
        failure = read_failure(folder)
        if failure is not None and failure.count > self._options.retries:
            return Ended(folder, "failed", failure.message)
        return Ended(folder, "interrupted") if is_stopped(folder) else None

    def _start_workers(self) -> None:
        """Replace workers that ended although runs are open; raise `TrainingError` if that leads nowhere."""
        alive = self._workers.alive()
        missing = min(self._options.jobs, len(self._open)) - (alive if alive is not None else self._options.jobs)
        if missing <= 0:
            return
        progress: list[object] = [(folder, newest_checkpoint(folder), read_failure(folder)) for folder in self._open]
        if progress != self._progress:
            self._progress, self._starts = progress, 0
        if self._starts >= _STARTS_WITHOUT_PROGRESS and not alive:
            raise TrainingError(
                f"workers were started {self._starts} times and ended without training any of the {len(self._open)} "
                f"open runs in {self._options.root}; see their logs"
            )
        self._starts += 1
        self._workers.start(missing)

    def stop(self, folder: Path) -> None:
        ask_to_stop(folder)

    def close(self) -> None:
        self._is_open, self._look_at = False, 0.0
        self._workers.close()
