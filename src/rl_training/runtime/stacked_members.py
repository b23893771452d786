"""The members of a stack: how each run is built or continued, opened and saved."""

import contextlib
import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rl_training.algorithms.mbpo import MBPO
from rl_training.core.counted import counted
from rl_training.core.durable_files import check_free_space
from rl_training.core.memory_limits import check_memory
from rl_training.core.types import RolloutAlgorithm
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.device_replay import DeviceReplay
from rl_training.data.device_rollout import DeviceRollout
from rl_training.data.mixed_source import MixedSource
from rl_training.data.replay_buffer import check_buffers, replay_bytes
from rl_training.data.row_storage import RowStorage
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import (
    checkpoint_name,
    checkpoint_names,
    prune_checkpoints,
    remove_checkpoint,
    save_checkpoint,
    step_of,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import create_run_dir, write_metadata
from rl_training.learners.on_device import RolloutLearner
from rl_training.learners.stack import check_stack, state_bytes
from rl_training.runtime.callbacks import Callback, Checkpointing, EpisodeLog, Evaluation, MetricsLog
from rl_training.runtime.dataset_loading import keep_arrays
from rl_training.runtime.replaying import RepeatEpisodes
from rl_training.runtime.resuming import ResumePoint, find_resume_point, remove_checkpoints, rewind_run_dir
from rl_training.runtime.run import Run
from rl_training.runtime.setup import PreparedRun, RunOptions, make_collector, prepare_run
from rl_training.runtime.short_runs import report_short_run
from rl_training.runtime.stacked_work import join_memories, learner_of
from rl_training.runtime.trainer import checkpoint_bytes, facts_of, opened_run, report_held_out
from rl_training.tracking.sending import tracked

log = logging.getLogger("rl_training")


class MemberCheckpoints(Checkpointing):
    """The checkpoints of a member; the stack says when they are written and when older ones are removed."""

    def on_step(self, run: Run) -> None:
        """Do nothing: all members are saved together."""

    def is_saved(self, run: Run) -> bool:
        return self._saved_step == run.step

    def write(self, run: Run, parts: dict[str, dict[str, Any]]) -> None:
        save_checkpoint(run.folder.checkpoints, config=run.config, counters=run.counters(), parts=parts)
        self._point_at_best(run)

    def remove_older(self, run: Run, *, by_time: bool) -> None:
        """Remove what the new checkpoint replaces, as a single run does when it has saved one."""
        folder, replaced = run.folder.checkpoints, self._saved_by_time
        if replaced is not None and replaced != run.best_step:
            remove_checkpoint(folder / checkpoint_name(replaced))
        prune_checkpoints(folder, run.config.keep_checkpoints + by_time)
        self._saved_step, self._saved_by_time = run.step, run.step if by_time else None


@dataclass(kw_only=True)
class Member:
    """One run of the stack, with its callbacks."""

    run: Run
    checkpoints: MemberCheckpoints
    evaluation: Evaluation
    logs: list[Callback]
    ended: bool = False  # before the others: its row of the stack is kept, but no longer looked at

    @property
    def name(self) -> str:
        return self.run.folder.path.name


def check_options(options: RunOptions) -> None:
    if options.network is not None:
        raise ConfigError("a population takes no network: each member has its own, drawn from its seed")
    if options.dataset is not None:
        raise ConfigError("the folder of a population is named by its config: give the dataset there, dataset_path")


def prepare_members(
    folders: Sequence[Path], configs: Sequence[TrainConfig], step: int, options: RunOptions
) -> tuple[list[PreparedRun], list[ResumePoint | None]]:
    """Build all members, which share the dataset; `step`: of the checkpoints that they continue from, or 0."""
    factory = options.factory_for(configs[0])
    prepared: list[PreparedRun] = []
    points: list[ResumePoint | None] = []
    for folder, config in zip(folders, configs, strict=True):
        point = None
        if step:
            _remove_newer(folder, step)
            saved = folder / "checkpoints" / checkpoint_name(step)
            point = find_resume_point(saved, options, changes={}, settings={})
        used = config if point is None else point.config
        prepared.append(prepare_run(used, options, factory, folder=folder, sharing=prepared[0] if prepared else None))
        points.append(point)
        if len(prepared) == 1:
            _check_sizes(prepared[0], len(folders), folder)
            report_held_out(prepared[0])
            report_short_run(prepared[0])
    join_memories([one.memory for one in prepared])
    return prepared, points


def _check_sizes(first: PreparedRun, members: int, folder: Path) -> None:
    """Raise `ConfigError` if the members do not fit into the memory of the device, or on the disk."""
    device = first.setup.device
    each, shared = state_bytes(learner_of(first.algorithm).state), 0
    if isinstance(first.algorithm, MBPO):
        each += state_bytes(first.algorithm.ensemble.state)
    if isinstance(first.memory, DeviceReplay):
        each += first.memory.plan.num_bytes
    elif isinstance(first.memory, DeviceRollout):
        learner: RolloutLearner = cast(RolloutAlgorithm, first.algorithm).on_device()
        each += first.memory.num_bytes + learner.memory_bytes(first.memory.rows())
    elif isinstance(first.memory, DatasetMemory):
        shared = first.memory.storage.memory.nbytes
    else:
        _check_host_memory(first, members, each if device.type == "cpu" else 0)
    check_stack(members, each, shared, device)
    check_free_space(members * checkpoint_bytes(first), folder, f"a checkpoint of {counted(members, 'member')}")


def _check_host_memory(first: PreparedRun, members: int, on_host: int) -> None:
    """Raise `ConfigError` if the memories of all members do not fit; `on_host`: what else each has there."""
    hparams = first.setup.hparams
    if isinstance(first.memory, MixedSource):
        rows = cast(RowStorage, first.memory.model.storage)
        on_host += rows.memory.nbytes
        transitions = counted(rows.capacity, "rollout transition")
        what = f"a stack of {counted(members, 'member')} with memories of {transitions} each"
        check_memory(members * on_host, what, "algo_kwargs.synthetic_buffer_capacity or the number of members")
    if first.config.spec.loop == "off_policy":
        needed = replay_bytes(first.setup) + (on_host if hparams.memory != "mmap" else 0)
        transitions = counted(hparams.buffer_capacity, "transition")
        what = f"a stack of {counted(members, 'member')} with replay buffers of {transitions} each"
        check_buffers(hparams, members * needed, what, members)


def _remove_newer(folder: Path, step: int) -> None:
    """Remove the checkpoints that only some members wrote before the process was killed."""
    names = [name for name in checkpoint_names(folder / "checkpoints") if step_of(name) > step]
    if names:
        log.warning("member %s goes back to step %d, the last one that all members have", folder.name, step)
    remove_checkpoints(folder, names)


@contextlib.contextmanager
def opened_member(prepared: PreparedRun, point: ResumePoint | None, folder: Path, options: RunOptions) -> Iterator[Run]:
    """Open the run of a member, with callbacks of its own."""
    own = replace(options, callbacks=copy.deepcopy(options.callbacks))
    keep_arrays(prepared.arrays, prepared.spaces, folder, replace_existing=False)
    if point is None:
        create_run_dir(prepared.config, folder)  # with what "auto" stands for here
        remove_checkpoints(folder, checkpoint_names(folder / "checkpoints"))
    else:
        rewind_run_dir(folder, point)
    collector = make_collector(prepared, replayable=True, crash_dir=folder / "crash")
    with contextlib.closing(collector), opened_run(prepared, collector, folder, own, point) as run:
        yield run


@contextlib.contextmanager
def described_member(
    run: Run, prepared: PreparedRun, point: ResumePoint | None, place: str, options: RunOptions
) -> Iterator[Member]:
    """Describe an open run in its folder, and yield it with its callbacks. `place`: which member it is."""
    folder = run.folder.path
    write_metadata(folder, facts_of(run, prepared, point) | {"population": place})
    checkpoints = MemberCheckpoints()
    evaluation = Evaluation(checkpoints)
    logs = [EpisodeLog(), RepeatEpisodes(), *run.config.spec.build_callbacks(run), *run.callbacks, MetricsLog()]
    with tracked(folder, options.track, tensorboard=run.config.tensorboard):
        yield Member(run=run, checkpoints=checkpoints, evaluation=evaluation, logs=logs)
