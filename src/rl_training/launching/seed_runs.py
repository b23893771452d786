"""Manage runs: start, resume or read a run in a given folder; run several seeds of one config with one summary.

The same call after an interruption continues: finished seeds are read, unfinished ones resumed.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rl_training.core.durable_files import write_atomic
from rl_training.errors import ConfigError, EnvError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import RunInUseError, create_run_dir, env_name, mean_score, read_result
from rl_training.launching.pool import LaunchOptions, flags_of, run_all
from rl_training.results.statistics import Summary, summarize
from rl_training.runtime.trainer import RunOptions, resume, train
from rl_training.tracking.sending import choose_trackers

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True)
class SeedsResult:
    """The scores of several seeds; `results` holds the mean of the final evaluation of each finished seed."""

    folder: Path
    results: dict[int, float]
    interrupted: bool  # some seeds are neither finished nor failed
    failed: dict[int, str] = field(default_factory=dict)  # why

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
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    options: RunOptions | None = None,
    launch: LaunchOptions | None = None,
) -> SeedsResult:
    """Run `config` once per seed, in one folder named after the experiment; `jobs` seeds at a time.

    With several jobs each seed runs in its own process (`rl-training resume`), which writes to `log.txt`. `launch`, in
    place of `jobs`, says more about these processes; its root folder is replaced by that of the experiment.
    """
    if not config.env_id:
        raise ConfigError("env_id is empty: seeds are compared by the returns of their evaluations in an environment")
    if options is not None and options.dataset is not None:
        raise ConfigError("the folder of several seeds is named by their config: give the dataset there, dataset_path")
    folder = config.output_dir.absolute() / f"{config.algo}__{env_name(config)}__{config.digest()}"
    folders = {seed: folder / f"seed{seed}" for seed in seeds}
    launch = replace(launch or LaunchOptions(root=folder, jobs=jobs), root=folder)
    if launch.jobs == 1 and launch.launcher == "local":
        failed = _run_in_turn(config, folders, fail_fast=launch.fail_fast, options=options)
    elif options is not None and (options.env_factory or options.network or options.callbacks):
        raise ConfigError(
            "several jobs run in their own processes, which cannot take an env factory, network or callbacks; leave "
            "jobs at 1, or name a function that makes the environment by env_factory in the config"
        )
    else:
        options = options or RunOptions()
        flags = flags_of(allow_entry_points=options.allow_entry_points, allow_code=options.allow_code)
        launch = replace(launch, flags=flags, quiet=not options.show_progress)
        failed = _run_in_pool(config, folders, launch, options.track)
    done = {seed: result for seed, path in folders.items() if (result := read_result(path)) is not None}
    scores = {seed: mean_score(result) for seed, result in done.items()}
    outcome = SeedsResult(folder, scores, len(scores) + len(failed) < len(seeds), failed)
    if outcome.summary is not None:
        record = {"config": config.digest(), "seeds": scores, "summary": asdict(outcome.summary)}
        write_atomic(folder / "summary.json", json.dumps(record, indent=1))
    return outcome


def _run_in_turn(
    config: TrainConfig, folders: dict[int, Path], *, fail_fast: bool, options: RunOptions | None
) -> dict[int, str]:
    """Run the seeds in this process; return those that failed and why."""
    failed: dict[int, str] = {}
    for seed, folder in folders.items():
        try:
            if run_in(folder, config.updated(seed=seed), options) is None:
                break
        except RunInUseError as error:
            log.warning("seed %d is left out: %s", seed, error)
        except (EnvError, TrainingError) as error:  # others may do without it; a wrong setting ends all
            if fail_fast:
                raise
            log.warning("seed %d failed: %s", seed, error)
            failed[seed] = str(error)
    return failed


def _run_in_pool(
    config: TrainConfig, folders: dict[int, Path], launch: LaunchOptions, track: Sequence[str]
) -> dict[int, str]:
    """Run the seeds in processes; return those that failed and why."""
    unfinished = {seed: folder for seed, folder in folders.items() if read_result(folder) is None}
    for seed, folder in unfinished.items():
        if not (folder / "config.yaml").is_file():
            create_run_dir(config.updated(seed=seed).resolved(), folder)
        choose_trackers(folder, track)
    ended = run_all(list(unfinished.values()), launch, labels=[f"seed {seed}" for seed in unfinished])
    return {seed: end.message for seed, end in zip(unfinished, ended, strict=True) if end.status == "failed"}
