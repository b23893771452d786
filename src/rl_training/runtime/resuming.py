"""Resume a run: from which checkpoint, with which settings, in which folder, and how that folder is changed."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.core.durable_files import copy_synced
from rl_training.core.types import StateDict
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import (
    checkpoint_name,
    checkpoint_names,
    clear_stop_reason,
    remove_checkpoint,
    resumable_names,
    save_checkpoint,
    step_of,
    write_pointer,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import TRAINING
from rl_training.experiment.run_dir import (
    CONFIG,
    RESULT,
    changed_versions,
    create_run_dir,
    read_result,
    read_run_config,
)
from rl_training.experiment.saved_checkpoint import Checkpoint, copy_checkpoint, find_checkpoint, open_checkpoint
from rl_training.hparams.ppo import OnPolicyHParams
from rl_training.runtime.changed_settings import Changed, changed_settings, differing_settings, with_settings
from rl_training.runtime.dataset_loading import with_dataset
from rl_training.runtime.setup import RunOptions, resolve
from rl_training.tracking.sending import note_parent

log = logging.getLogger("rl_training")


class RunFinishedError(ConfigError):
    """The run has taken all its steps and was evaluated: there is nothing to continue."""

    def __init__(self, path: Path, step: int, total_timesteps: int) -> None:
        self.step = step
        super().__init__(
            f"{path} is finished: {step:,} of {total_timesteps:,} steps; a larger total_timesteps continues it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A checkpoint and how the run continues from it."""

    checkpoint: Checkpoint
    config: TrainConfig
    run_dir: Path | None  # None: in a new folder
    ended: bool  # regularly; not killed or interrupted
    before: TrainConfig  # the settings of the run until now
    changed: Changed  # the settings that it continues with, where they differ

    @property
    def replayable(self) -> bool:
        return bool(self.checkpoint.manifest["counters"]["replayable"])

    @property
    def stop_reason(self) -> str:
        """Why the run ends at once: it was killed between its last checkpoint and its result, and had this reason."""
        return "" if self.ended else str(self.checkpoint.manifest["counters"].get("stop_reason", ""))


def is_unsaved_run(path: Path) -> bool:
    """Return whether a run started in the folder and was killed before its first checkpoint."""
    return (path / "config.yaml").is_file() and not resumable_names(path / "checkpoints")


def is_same_run(path: Path, config: TrainConfig) -> bool:
    """Return whether a run with exactly these settings began in the folder, so that it takes the same steps again."""
    try:
        before = read_run_config(path)
    except (CheckpointError, ConfigError):
        return False
    return (before.digest(), before.seed) == (config.digest(), config.seed)


def find_resume_point(
    path: Path, options: RunOptions, *, changes: Mapping[str, Any], settings: Mapping[str, Any]
) -> ResumePoint:
    """Find how to continue from a run folder or checkpoint.

    With an `output_dir` in `changes`, or changed `settings`, it continues in a new folder. A dataset in `options` says
    where the run's dataset is now; other data are refused when the run is loaded.
    """
    checkpoint = open_checkpoint(find_checkpoint(path))
    if not checkpoint.is_resumable:
        raise CheckpointError(
            f"{checkpoint.path} holds the policy only (a best evaluation); resume its run folder instead"
        )
    _check_num_envs(checkpoint)
    run_dir = run_dir_of(checkpoint) if "output_dir" not in changes else None
    config = before = checkpoint.config
    _report_changes(checkpoint)
    if run_dir is not None:  # an earlier resume may have lengthened it
        written = read_run_config(run_dir)
        config = before = config.updated(total_timesteps=written.total_timesteps, output_dir=written.output_dir)
    changed: Changed = {}
    if settings:
        config = resolve(with_settings(config, settings))
        changed, run_dir = changed_settings(before, config), None
    config = options.remembered_in(with_dataset(config.updated(**changes), options.dataset))
    if options.allow_code:  # from now on it is the user's own run
        config = config.as_own()
    ended = run_dir is None or read_result(run_dir) is not None
    if checkpoint.step >= config.total_timesteps and ended:
        raise RunFinishedError(path, checkpoint.step, config.total_timesteps)
    return ResumePoint(
        checkpoint=checkpoint, config=config, run_dir=run_dir, ended=ended, before=before, changed=changed
    )


def _report_changes(checkpoint: Checkpoint) -> None:
    """Warn if the software or the run's config.yaml changed since the checkpoint was written."""
    run_dir = run_dir_of(checkpoint)
    if run_dir is None:
        if checkpoint.path.resolve().parent.name == "checkpoints":
            log.warning(
                "%s has no config.yaml: the run continues in a new folder", checkpoint.path.resolve().parents[1]
            )
        return
    if changed := changed_versions(run_dir):
        log.warning("%s: the resumed run may differ from an uninterrupted one", ", ".join(changed))
    edited = differing_settings(checkpoint.config, read_run_config(run_dir))
    edited.pop("total_timesteps", None)  # an earlier resume may have lengthened the run
    if edited:
        found = ", ".join(f"{name} is {new!r}, was {old!r}" for name, (old, new) in edited.items())
        log.warning(
            "%s was edited (%s): the run continues with the settings of its checkpoint", run_dir / CONFIG, found
        )


def _check_num_envs(checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` unless the checkpoint holds as many open episodes as its settings name envs.

    Checked before any is made: a damaged number could be huge.
    """
    config = checkpoint.config
    episodes = checkpoint.manifest["values"][TRAINING].get("collector|numbers")
    found = len(episodes) if isinstance(episodes, list) else 0
    if config.spec.loop != "offline" and found != config.num_envs:
        raise CheckpointError(
            f"{checkpoint.path} is damaged: num_envs is {config.num_envs:,}, but it holds {found:,} open episodes"
        )


def check_memory_size(checkpoint: Checkpoint, rows: int) -> None:
    """Raise `CheckpointError` for a memory that does not fit the steps taken: empty, or a rollout of another length."""
    config, counters = checkpoint.config, checkpoint.manifest["counters"]
    if config.spec.loop == "off_policy" and counters["gradient_step"] and not rows:
        raise CheckpointError(f"the memory is empty, but {counters['gradient_step']:,} updates were made from it")
    if isinstance(config.hparams, OnPolicyHParams):
        expected = checkpoint.step // config.num_envs % config.hparams.num_steps * config.num_envs
        if rows != expected:
            raise CheckpointError(f"the rollout has {rows:,} rows, but {expected:,} at step {checkpoint.step:,}")


def run_dir_of(checkpoint: Checkpoint) -> Path | None:
    """Return the run folder that contains a checkpoint; None if it was saved or copied elsewhere."""
    folder = checkpoint.path.parent
    if folder.name != "checkpoints":  # as for the path "."
        folder = checkpoint.path.resolve().parent
    in_run = folder.name == "checkpoints" and (folder.parent / "config.yaml").is_file()
    return folder.parent if in_run else None


def fork(
    checkpoint: Checkpoint,
    config: TrainConfig,
    *,
    output_dir: Path | None = None,
    parts: Mapping[str, StateDict] | None = None,
) -> Path:
    """Create a run folder with the logs, which the run truncates, the best checkpoint so far, and this one.

    `parts`: those of the checkpoint for the changed settings of `config`, if any did.
    """
    path = create_run_dir(config, output_dir=output_dir)
    folder = path / "checkpoints"
    old = run_dir_of(checkpoint)
    for log_file in old.glob("*.jsonl") if old else ():
        try:
            copy_synced(log_file, path / log_file.name)
        except OSError as error:
            raise CheckpointError(f"{log_file} could not be copied to {path}: {error}") from error
    if old:
        note_parent(path, old, checkpoint.step)
    if old and (best := _best_before(checkpoint)):
        write_pointer(folder, "best", copy_checkpoint(open_checkpoint(best), folder / best.name, link=True).name)
    if parts is None:
        copied = copy_checkpoint(checkpoint, folder / checkpoint_name(checkpoint.step), link=True)
    else:
        copied = save_checkpoint(folder, config=config, counters=checkpoint.manifest["counters"], parts=parts)
    clear_stop_reason(copied)
    write_pointer(folder, "latest", copied.name)
    return path


def rewind_run_dir(run_dir: Path, resume_point: ResumePoint) -> None:
    """Restore a run folder to the state at its checkpoint; raise if that would delete a newer resumable one."""
    checkpoint = resume_point.checkpoint
    folder = run_dir / "checkpoints"
    newer = [name for name in checkpoint_names(folder) if step_of(name) > checkpoint.step]
    for name in reversed(newer):
        with contextlib.suppress(CheckpointError):
            if open_checkpoint(folder / name).is_resumable:
                raise ConfigError(
                    f"{checkpoint.path} is not the newest checkpoint of its run ({name} is); "
                    "resume with an output_dir continues from it in a new run folder"
                )
    current = folder / checkpoint_name(checkpoint.step)
    write_pointer(folder, "latest", current.name)
    if best := _best_before(checkpoint):  # the process may have been killed between a checkpoint and its pointers
        write_pointer(folder, "best", best.name)
    create_run_dir(resume_point.config, run_dir)
    remove_checkpoints(run_dir, newer)
    if resume_point.ended:  # so that the next process continues, too, if this one is killed at once
        clear_stop_reason(current)
        (run_dir / RESULT).unlink(missing_ok=True)


def remove_checkpoints(run_dir: Path, names: Sequence[str]) -> None:
    """Remove checkpoints that the run will write again, and the result of the run that ended with them."""
    for name in names:
        (run_dir / RESULT).unlink(missing_ok=True)
        remove_checkpoint(run_dir / "checkpoints" / name)


def _best_before(checkpoint: Checkpoint) -> Path | None:
    """Return the checkpoint of the best evaluation so far, if it still exists beside this one."""
    step = checkpoint.manifest["counters"].get("best_step")
    best = checkpoint.path.parent / checkpoint_name(step) if isinstance(step, int) else None
    return best if best is not None and best.is_dir() else None
