"""`train` and `resume`: from a config, or a checkpoint, to a finished run."""

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.acceleration.determinism import describe_device
from rl_training.core.durable_files import check_free_space
from rl_training.core.state_checks import loading
from rl_training.envs.factory import modules_of
from rl_training.envs.hang_watch import hangs_end
from rl_training.envs.packages import package_versions
from rl_training.errors import CheckpointError, ConfigError, TrainingError, exits_are_errors
from rl_training.experiment.checkpointing import checkpoint_names, resumable_names
from rl_training.experiment.config import TrainConfig, check_config
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.run_dir import (
    METADATA,
    RunDir,
    correct_resume_claim,
    create_run_dir,
    locked,
    make_run_dir,
    read_run_config,
    write_metadata,
)
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.experiment.state_files import num_bytes
from rl_training.hparams.fields import expand_home
from rl_training.runtime.callbacks import (
    Callback,
    Checkpointing,
    EpisodeLog,
    Evaluation,
    MetricsLog,
)
from rl_training.runtime.changed_settings import changed_parts, with_settings
from rl_training.runtime.collector import Collector
from rl_training.runtime.dataset_loading import keep_arrays, with_dataset
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.device_loop import run_on_device
from rl_training.runtime.device_replay_loop import run_replay_on_device
from rl_training.runtime.loops import run_off_policy, run_offline, run_on_policy
from rl_training.runtime.malloc_tuning import keep_freed_memory
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.progress import Progress
from rl_training.runtime.replaying import RepeatEpisodes, check_envs, claim_of
from rl_training.runtime.result import TrainResult, end_run
from rl_training.runtime.resuming import (
    ResumePoint,
    check_memory_size,
    find_resume_point,
    fork,
    is_same_run,
    is_unsaved_run,
    remove_checkpoints,
    rewind_run_dir,
    run_dir_of,
)
from rl_training.runtime.run import Run, SavedValues
from rl_training.runtime.setup import PreparedRun, RunOptions, make_collector, prepare_run, resolve
from rl_training.runtime.short_runs import report_short_run
from rl_training.runtime.signals import signals_stop
from rl_training.runtime.torch_settings import torch_defaults, torch_settings
from rl_training.tracking.sending import forget_sent_steps, tracked

__all__ = ["RunOptions", "TrainResult", "resume", "train"]

LOOPS: dict[str, Callable[..., None]] = {
    "off_policy": run_off_policy,
    "on_policy": run_on_policy,
    "offline": run_offline,
}

DEVICE_LOOPS: dict[str, Callable[..., None]] = {"off_policy": run_replay_on_device, "on_policy": run_on_device}

log = logging.getLogger("rl_training")


@exits_are_errors()
@torch_defaults()
def train(config: TrainConfig, options: RunOptions | None = None, *, run_dir: Path | None = None) -> TrainResult:
    """Train from the start in a new run folder (or in `run_dir`)."""
    check_config(config, "train")
    options = options or RunOptions()
    config = options.remembered_in(resolve(with_dataset(config, options.dataset)))
    _check_holds_no_run(run_dir)
    # Absolute before any code of the user runs, which may change the working folder.
    run_dir, output_dir = run_dir and run_dir.absolute(), config.output_dir.absolute()
    with hangs_end(config.worker_timeout):
        factory = options.factory_for(config)
        prepared = prepare_run(config, options, factory, folder=run_dir)  # before the folder is created
        report_held_out(prepared)
        report_short_run(prepared)
        config.spec.begin_run(prepared, options)
    check_free_space(checkpoint_bytes(prepared), run_dir or output_dir, "a checkpoint of this run")
    path = create_run_dir(prepared.config, output_dir=output_dir) if run_dir is None else make_run_dir(run_dir)
    with locked(path), hangs_end(config.worker_timeout, path):
        if run_dir is not None:  # only with the lock: another process may have trained in it meanwhile
            _check_holds_no_run(run_dir)
            if not is_same_run(run_dir, prepared.config):
                forget_sent_steps(run_dir)
            create_run_dir(prepared.config, run_dir)
        keep_arrays(prepared.arrays, prepared.spaces, path, replace_existing=options.dataset is not None)
        remove_checkpoints(path, checkpoint_names(path / "checkpoints"))
        with contextlib.closing(make_collector(prepared, replayable=True, crash_dir=path / "crash")) as collector:
            return _run(prepared, collector, path, options)


def _check_holds_no_run(run_dir: Path | None) -> None:
    if run_dir is not None and resumable_names(run_dir / "checkpoints"):
        raise ConfigError(f"{run_dir} holds a run already: resume it, or train in another folder")


@exits_are_errors()
@torch_defaults()
def resume(
    path: str | Path,
    options: RunOptions | None = None,
    *,
    total_timesteps: int | None = None,
    output_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Continue a run from its newest checkpoint, or a copy of it in `output_dir`, exactly as if never stopped.

    `total_timesteps` extends the run. With changed `settings`, such as `{"algo_kwargs": {"learning_rate": 1e-4}}`, it
    continues in a new run folder; those that the saved state depends on are rejected. A run that was killed before its
    first checkpoint starts again from its config; one that was killed after its last step only finishes. A checkpoint
    outside of a run folder, such as one of `agent.save`, continues in a new one.
    """
    options = options or RunOptions()
    path = expand_home(path).absolute()
    changes = {"total_timesteps": total_timesteps, "output_dir": output_dir}
    changes = {name: value for name, value in changes.items() if value is not None}
    if is_unsaved_run(path):
        if (path / METADATA).is_file():  # else it has not started before, as in the folder of a sweep
            log.warning("%s holds no checkpoint yet: the run starts again from its config", path)
        config = with_settings(read_run_config(path).updated(**changes), settings or {})
        in_place = not output_dir and not settings
        return train(config.as_own() if options.allow_code else config, options, run_dir=path if in_place else None)
    resume_point = find_resume_point(path, options, changes=changes, settings=settings or {})
    config, checkpoint = resume_point.config, resume_point.checkpoint
    runs = config.output_dir.absolute()
    with hangs_end(config.worker_timeout):
        prepared = prepare_run(config, options, options.factory_for(config), folder=run_dir_of(checkpoint))
    run_dir = resume_point.run_dir
    if run_dir is None:
        run_dir, resume_point = _fork(prepared, resume_point, runs)
    with locked(run_dir), hangs_end(config.worker_timeout, run_dir):
        keep_arrays(prepared.arrays, prepared.spaces, run_dir, replace_existing=False)
        collector = make_collector(prepared, replayable=resume_point.replayable, crash_dir=run_dir / "crash")
        with contextlib.closing(collector):
            rewind_run_dir(run_dir, resume_point)
            return _run(prepared, collector, run_dir, options, resume_point)


def _fork(prepared: PreparedRun, resume_point: ResumePoint, output_dir: Path) -> tuple[Path, ResumePoint]:
    """Create the folder in which a run continues, with the changed settings if there are any."""
    checkpoint, config, changed = resume_point.checkpoint, resume_point.config, resume_point.changed
    if not changed:
        return fork(checkpoint, config, output_dir=output_dir), resume_point
    parts = changed_parts(checkpoint, prepared, resume_point.before, changed)
    run_dir = fork(checkpoint, config, output_dir=output_dir, parts=parts)
    for name, (old, new) in changed.items():
        log.info(
            "%s changes from %s to %s at step %d; the run continues in %s", name, old, new, checkpoint.step, run_dir
        )
    return run_dir, replace(resume_point, checkpoint=open_checkpoint(find_checkpoint(run_dir)))


def report_held_out(prepared: PreparedRun) -> None:
    """Warn that a part of the dataset is held out although the user did not ask for it."""
    learned, held_out = prepared.setup.dataset, prepared.setup.held_out
    if held_out is not None and learned is not None and prepared.setup.hparams.held_out is None:
        count = len(held_out.episode_ends)
        log.warning(
            "there is no environment to evaluate in: %d of %d episodes are held out for that; held_out sets the share",
            count,
            count + len(learned.episode_ends),
        )


def checkpoint_bytes(prepared: PreparedRun) -> int:
    """Return the size of a checkpoint at the start of the run; it grows with the replay buffer."""
    algorithm, memory = prepared.algorithm, prepared.memory
    return sum(map(num_bytes, (algorithm.policy_state_dict(), algorithm.state_dict(), memory.state_dict())))


def _run(
    prepared: PreparedRun,
    collector: Collector | DeviceCollector | NoCollector,
    path: Path,
    options: RunOptions,
    resume_point: ResumePoint | None = None,
) -> TrainResult:
    """Start the run, or load its state, and train to the end."""
    with opened_run(prepared, collector, path, options, resume_point) as run, signals_stop(run):
        if run.step == 0:
            check_envs(run)
        write_metadata(path, facts_of(run, prepared, resume_point))
        with tracked(path, options.track, tensorboard=run.config.tensorboard):
            _loop(run, options)
            return end_run(run)


@contextlib.contextmanager
def opened_run(
    prepared: PreparedRun,
    collector: Collector | DeviceCollector | NoCollector,
    path: Path,
    options: RunOptions,
    resume_point: ResumePoint | None = None,
) -> Iterator[Run]:
    """Open the logs of a run folder; yield the run before its first step, or as its checkpoint has it."""
    checkpoint = resume_point.checkpoint if resume_point else None
    training = checkpoint.load(TRAINING) if checkpoint else {}
    positions = {}
    if checkpoint:
        with loading(checkpoint.path):
            positions = SavedValues.read(training).log_positions
    folder = RunDir(path, positions)
    keep_freed_memory()
    with contextlib.closing(folder), torch_settings(prepared.config):
        run = Run(
            config=prepared.config,
            streams=prepared.setup.streams,
            folder=folder,
            env_factory=prepared.env_factory,
            algorithm=prepared.algorithm,
            memory=prepared.memory,
            collector=collector,
            spaces=prepared.spaces,
            callbacks=options.callbacks,
            stop_reason=resume_point.stop_reason if resume_point else "",
        )
        if checkpoint is None:
            collector.start()
        else:
            parts = {POLICY: checkpoint.load(POLICY), TRAINING: training, MEMORY: checkpoint.load(MEMORY)}
            with loading(checkpoint.path):
                run.load(checkpoint.manifest["counters"], parts)
                check_memory_size(checkpoint, len(run.memory))
        if collector.inexact_restores:
            log.warning("%s", collector.exactness)
            correct_resume_claim(path, f"at an episode boundary: the resume at step {run.step} found a difference")
        yield run


def facts_of(run: Run, prepared: PreparedRun, resume_point: ResumePoint | None) -> dict[str, Any]:
    """Return what metadata.json records about this start of the run."""
    facts: dict[str, Any] = {
        "seed_streams": run.streams.seeds(),
        "device": describe_device(prepared.setup.device),
        "obs_max": prepared.config.obs_max,
        "env_packages": package_versions(modules_of(prepared.env_factory)) if prepared.env_factory else {},
        "step": run.step,
        "resume": claim_of(run),
    }
    if resume_point is not None and resume_point.changed:
        changed = resume_point.changed.items()
        facts["changed_settings"] = {name: {"old": old, "new": new} for name, (old, new) in changed}
    return facts


def _loop(run: Run, options: RunOptions) -> None:
    checkpointing = Checkpointing()
    evaluation = Evaluation(checkpointing)
    views: list[Callback] = [Progress(evaluation)] if options.show_progress else []
    own = run.config.spec.build_callbacks(run)
    users = options.callbacks
    callbacks: list[Callback] = [
        EpisodeLog(),
        RepeatEpisodes(),
        *own,
        *users,
        MetricsLog(),
        checkpointing,
        evaluation,
        *views,
    ]
    started: list[Callback] = []
    try:
        for callback in callbacks:
            callback.on_start(run)
            started.append(callback)
        run.callback_states()  # one that cannot be saved is rejected before the first step
        evaluation.catch_up(run)
        loops = DEVICE_LOOPS if run.config.execution_backend == "tensor" else LOOPS
        loop = loops[run.config.spec.loop]
        loop(run, run.config.hparams, callbacks)
        checkpointing.save(run)  # a signal may have come after the last callback
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            _save_after_error(run, error, checkpointing)
        raise
    finally:
        with contextlib.ExitStack() as stack:  # calls all of them, even if one fails
            for callback in reversed(started):
                stack.callback(callback.on_end, run)


def _save_after_error(run: Run, error: BaseException, checkpointing: Checkpointing) -> None:
    """Write the traceback of an error to the run folder and save the run, if it can continue from there."""
    with contextlib.suppress(OSError):
        run.folder.crash.mkdir(exist_ok=True)
        file = run.folder.crash / "traceback.txt"
        file.unlink(missing_ok=True)  # it may be a link to another file
        file.write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
    if isinstance(error, TrainingError | CheckpointError) or run.step == 0:
        return
    if run.mid_step:
        log.warning(
            "the error came in the middle of step %d, which is not saved; earlier checkpoints are complete", run.step
        )
        return
    try:
        checkpointing.save(run)
        log.warning("the run was saved at step %d; resume continues it from %s", run.step, run.folder.path)
    except Exception as another:
        log.warning("the run could not be saved after the error: %s", another)
