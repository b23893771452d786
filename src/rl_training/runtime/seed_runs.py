"""Manage runs: start, resume or read a run in a given folder; run several seeds of one config with one summary.

The same call after an interruption continues: finished seeds are read, unfinished ones resumed.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from rl_training.core.durable_files import open_log, write_atomic
from rl_training.core.parent_death import PARENT_PID
from rl_training.datasets.metadata import ALLOW
from rl_training.errors import ConfigError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import RunInUseError, create_run_dir, env_name, is_in_use, mean_score, read_result
from rl_training.results.statistics import Summary, summarize
from rl_training.runtime.seed_progress import SeedsProgress
from rl_training.runtime.signals import EXIT_INTERRUPTED, signals_handled
from rl_training.runtime.trainer import RunOptions, resume, train

IN_USE_SECONDS = 60.0  # in which the process of a killed driver saves its run

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True)
class SeedsResult:
    """The scores of several seeds; `results` holds the mean of the final evaluation of each finished seed."""

    folder: Path
    results: dict[int, float]
    interrupted: bool

    @property
    def summary(self) -> Summary | None:
        return summarize(list(self.results.values())) if self.results else None


def run_in(folder: Path, config: TrainConfig, options: RunOptions | None = None) -> float | None:
    """Start, resume or read the run of `folder`; return its score, or None if it was interrupted."""
    if (result := read_result(folder)) is None:
        ended = (
            resume(folder, options) if (folder / "config.yaml").is_file() else train(config, options, run_dir=folder)
        )
        if ended.interrupted:
            return None
        result = read_result(folder)
    assert result is not None
    return mean_score(result)


def run_seeds(
    config: TrainConfig, seeds: Sequence[int], *, jobs: int = 1, options: RunOptions | None = None
) -> SeedsResult:
    """Run `config` once per seed, in one folder named after the experiment; `jobs` seeds at a time.

    With several jobs each seed runs in its own process (`rl-training resume`), which writes to `log.txt`.
    """
    if not config.env_id:
        raise ConfigError("env_id is empty: seeds are compared by the returns of their evaluations in an environment")
    if options is not None and options.dataset is not None:
        raise ConfigError("the folder of several seeds is named by their config: give the dataset there, dataset_path")
    folder = config.output_dir.absolute() / f"{config.algo}__{env_name(config)}__{config.digest()}"
    folders = {seed: folder / f"seed{seed}" for seed in seeds}
    if jobs == 1:
        results, interrupted = _run_in_turn(config, folders, options)
    elif options is not None and (options.env_factory or options.network or options.callbacks):
        raise ConfigError(
            "several jobs run in their own processes, which cannot take an env factory, network or callbacks"
        )
    else:
        options = options or RunOptions()
        flags = [*([ALLOW] if options.allow_entry_points else []), *(["--allow-code"] if options.allow_code else [])]
        console = Console(stderr=True, quiet=not options.show_progress)
        results, interrupted = _run_in_parallel(config, folders, jobs, flags, console)
    outcome = SeedsResult(folder, results, interrupted)
    if outcome.summary is not None:
        record = {"config": config.digest(), "seeds": results, "summary": asdict(outcome.summary)}
        write_atomic(folder / "summary.json", json.dumps(record, indent=1))
    return outcome


def _run_in_turn(
    config: TrainConfig, folders: dict[int, Path], options: RunOptions | None
) -> tuple[dict[int, float], bool]:
    results: dict[int, float] = {}
    for seed, folder in folders.items():
        try:
            score = run_in(folder, config.updated(seed=seed), options)
        except RunInUseError as error:
            log.warning("seed %d is left out: %s", seed, error)
            continue
        if score is None:
            break
        results[seed] = score
    return results, len(results) < len(folders)


def _run_in_parallel(
    config: TrainConfig, folders: dict[int, Path], jobs: int, flags: Sequence[str], console: Console
) -> tuple[dict[int, float], bool]:
    """Run the seeds in processes; a signal is passed on to them, so that each saves its run and can be resumed."""
    waiting = [seed for seed, folder in folders.items() if read_result(folder) is None]
    for seed in waiting:
        if not (folders[seed] / "config.yaml").is_file():
            create_run_dir(config.updated(seed=seed).resolved(), folders[seed])
    unfinished = {seed: folders[seed] for seed in waiting}
    with SeedsProgress(unfinished, console) as progress:
        _resume_each(unfinished, jobs, flags, progress)
    done = {seed: folder for seed, folder in folders.items() if read_result(folder) is not None}
    scores = {seed: run_in(folder, config) for seed, folder in done.items()}
    return {seed: score for seed, score in scores.items() if score is not None}, len(done) < len(folders)


def _resume_each(folders: dict[int, Path], jobs: int, flags: Sequence[str], progress: SeedsProgress) -> None:
    """Resume the runs in processes, `jobs` at a time; on a signal, end those that run and start no more.

    A run in which another process trains is started when that one has ended, or left out if it takes too long.
    """
    waiting = list(folders)
    running: dict[int, subprocess.Popen[bytes]] = {}
    received: list[int] = []
    patience_ends = time.monotonic() + IN_USE_SECONDS
    with signals_handled(lambda number, frame: received.append(number)):
        while running or (waiting and not received):
            free = [] if received else [seed for seed in waiting if not is_in_use(folders[seed])]
            for seed in free[: jobs - len(running)]:
                waiting.remove(seed)
                running[seed] = _start_process(folders[seed], flags)
            if running:
                patience_ends = time.monotonic() + IN_USE_SECONDS
            elif time.monotonic() >= patience_ends:
                log.warning("left out, because another process trains in them: seeds %s", waiting)
                return
            progress.show(waiting, running)
            time.sleep(0.05)
            if received:
                for process in running.values():
                    process.terminate()
                for process in running.values():
                    process.wait()
            for seed in [seed for seed, process in running.items() if process.poll() is not None]:
                code = running.pop(seed).returncode
                if code not in (0, EXIT_INTERRUPTED):
                    for process in running.values():
                        process.terminate()
                    raise TrainingError(f"seed {seed} ended with exit code {code}; see {folders[seed] / 'log.txt'}")
        progress.show(waiting, running)


def _start_process(folder: Path, flags: Sequence[str]) -> "subprocess.Popen[bytes]":
    with open_log(folder / "log.txt") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rl_training", "resume", str(folder), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # As many processes as cores leave one thread each.
            env={**os.environ, "OMP_NUM_THREADS": "1", PARENT_PID: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches the children once, through this process
        )
