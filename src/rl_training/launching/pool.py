"""Run many runs: a pool of processes on this machine, of SLURM jobs or of Ray tasks.

A task is a run folder with a config.yaml. Its state lies in the folder and nowhere else, so that the same command
continues after any interruption.
"""

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console

from rl_training.datasets.metadata import ALLOW
from rl_training.errors import TrainingError
from rl_training.launching.process import Ended
from rl_training.launching.progress import RunsProgress
from rl_training.runtime.signals import signals_handled

Launcher = Literal["local", "slurm", "ray"]
_POLL_SECONDS = 0.05

__all__ = ["Ended", "LaunchOptions", "Launcher", "Pool", "flags_of", "open_pool", "run_all"]

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How runs are started, how many at a time, and what happens if one fails."""

    root: Path  # the folder that holds all run folders
    launcher: Launcher = "local"
    jobs: int = 1  # runs at a time
    retries: int = 2  # how often a run that failed without a new checkpoint is tried again
    fail_fast: bool = False  # the first failure ends all runs
    flags: Sequence[str] = ()  # options of `rl-training resume`, such as --allow-code
    quiet: bool = False
    slurm: Mapping[str, str] = field(default_factory=dict)  # options of sbatch
    ray: Mapping[str, str] = field(default_factory=dict)  # address, num_cpus, num_gpus
    dry_run: bool = False  # with slurm: write the script and show the command, submit nothing

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())  # workers have another working folder


def flags_of(*, allow_entry_points: bool, allow_code: bool) -> list[str]:
    """Return the permissions of the user as options of `rl-training resume` and `rl-training work`."""
    return [*([ALLOW] if allow_entry_points else []), *(["--allow-code"] if allow_code else [])]


class Pool(Protocol):
    """Runs that wait, run and end."""

    def submit(self, folder: Path) -> None:
        """Put the run of this folder in the queue, to be run or resumed; earlier failures are forgotten."""

    def running(self) -> list[Path]:
        """Return the folders whose runs are trained now."""

    def ended(self) -> list[Ended]:
        """Start what can be started and return the runs that ended since the last call, without waiting."""

    def stop(self, folder: Path) -> None:
        """Make a run save and end; `ended` then reports it as interrupted."""

    def close(self) -> None:
        """Make all runs save and end, and wait for them; SLURM jobs go on by themselves."""


def open_pool(options: LaunchOptions) -> Pool:
    """Return the pool of the launcher that `options` name."""
    if options.launcher == "slurm":
        from rl_training.launching.slurm import SlurmWorkers
        from rl_training.launching.workers import WorkerPool

        return WorkerPool(options, SlurmWorkers(options))
    if options.launcher == "ray":
        from rl_training.launching.ray import RayWorkers
        from rl_training.launching.workers import WorkerPool

        return WorkerPool(options, RayWorkers(options))
    from rl_training.launching.local import LocalPool

    return LocalPool(options)


def run_all(folders: Sequence[Path], options: LaunchOptions, *, labels: Sequence[str] | None = None) -> list[Ended]:
    """Run or resume all of these runs and show their progress; return how each ended, in the order of `folders`.

    A stop signal is passed on: each run saves, ends, and is returned as interrupted. `labels`: the names of the runs
    in messages; by default their paths below the root folder.
    """
    if options.dry_run:
        from rl_training.launching.slurm import show_job

        show_job(options, len(folders))
        return [Ended(folder, "interrupted") for folder in folders]
    shown = labels or [str(folder.relative_to(options.root)) for folder in folders]
    names = dict(zip(folders, shown, strict=True))
    ended: dict[Path, Ended] = {}
    received: list[int] = []
    pool = open_pool(options)
    with (
        signals_handled(lambda number, frame: received.append(number)),
        RunsProgress(names, Console(stderr=True, quiet=options.quiet)) as progress,
        contextlib.closing(pool),
    ):
        for folder in folders:
            pool.submit(folder)
        while len(ended) < len(folders) and not received:
            try:
                _collect(pool, ended, names, options)
            except TrainingError:
                for folder in folders:
                    if folder not in ended:
                        pool.stop(folder)
                raise
            running = pool.running()
            progress.show([folder for folder in folders if folder not in ended and folder not in running], running)
            time.sleep(_POLL_SECONDS)
        pool.close()
        _collect(pool, ended, names, options)
        progress.show([], [])
    return [ended.get(folder, Ended(folder, "interrupted")) for folder in folders]


def _collect(pool: Pool, ended: dict[Path, Ended], names: dict[Path, str], options: LaunchOptions) -> None:
    """Add the runs that ended; raise `TrainingError` for one that failed if that ends all."""
    for end in pool.ended():
        ended[end.folder] = end
        if end.status == "failed" and options.fail_fast:
            raise TrainingError(f"{names[end.folder]} {end.message}")
        if end.status == "interrupted" and end.message:
            log.warning("%s is left out: %s", names[end.folder], end.message)
