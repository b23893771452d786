"""Train the members of a stack together: one update for all of them, and an ordinary run folder for each.

A member is a `Run` like any other. Its algorithm's state is a row of the stacked state (learners/stack.py), so that
logs, evaluations and checkpoints are those of a single run. Checkpoints are written for all members first; then
population.json names the step, and only then are older ones removed: a kill at any moment leaves one step that all
members have.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from torch import Tensor

from rl_training.core.counted import counted
from rl_training.core.types import Metrics
from rl_training.envs.hang_watch import hangs_end
from rl_training.errors import TrainingError, exits_are_errors
from rl_training.experiment.population import MemberState, PopulationDir
from rl_training.experiment.run_dir import locked, read_run_config
from rl_training.learners.stack import to_host
from rl_training.results.population_summary import write_summary
from rl_training.runtime.callbacks import MAX_SHARE_OF_SAVES, Callback
from rl_training.runtime.progress import Progress
from rl_training.runtime.replaying import check_envs
from rl_training.runtime.result import end_run
from rl_training.runtime.setup import RunOptions, resolve, resolve_device
from rl_training.runtime.signals import signals_stop
from rl_training.runtime.stacked_members import Member, check_options, described_member, opened_member, prepare_members
from rl_training.runtime.stacked_work import work_of
from rl_training.runtime.torch_settings import torch_defaults

SAVING_THREADS = 8  # each waits for the disk

log = logging.getLogger("rl_training")


@exits_are_errors()
@torch_defaults()
def train_stack(
    population: PopulationDir, folders: Sequence[Path], options: RunOptions, *, until: int | None = None
) -> bool:
    """Train the members in these folders, from the start or from their last common checkpoint.

    They must differ only in their seeds and in settings per member. `until`: a step at which they are saved and wait,
    in place of their end. Returns whether a signal interrupted them.
    """
    states = population.states()
    step = max(states[folder.name].step for folder in folders)
    configs = [read_run_config(folder) for folder in folders]
    # One small update is no work for a GPU, but a stack of them is.
    configs = [resolve(config.updated(device=str(resolve_device(config.device)))) for config in configs]
    if options.allow_code:
        configs = [config.as_own() for config in configs]
    check_options(options)
    with contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(locked(folder))
        stack.enter_context(hangs_end(configs[0].worker_timeout, folders[0]))
        prepared, points = prepare_members(folders, configs, step, options)
        runs = [
            stack.enter_context(opened_member(*one, options)) for one in zip(prepared, points, folders, strict=True)
        ]
        stack.enter_context(signals_stop(*runs))
        if step == 0:
            check_envs(*runs)
        members = [
            stack.enter_context(described_member(*one, f"member {number} of {len(runs)}, stacked", options))
            for number, one in enumerate(zip(runs, prepared, points, strict=True))
        ]
        return StackedTraining(population, members, options, until=until).run()


class StackedTraining:
    """The loop over all members of a stack."""

    def __init__(
        self,
        population: PopulationDir,
        members: Sequence[Member],
        options: RunOptions,
        *,
        until: int | None = None,
    ) -> None:
        self._population, self._members = population, members
        self._config = config = members[0].run.config
        self._until = config.total_timesteps if until is None else min(until, config.total_timesteps)
        self._views: list[Callback] = [Progress(members[0].evaluation)] if options.show_progress else []
        self._has_callbacks = bool(options.callbacks)
        self._stack = work_of(config, [member.run for member in members])
        self._save_due = monotonic() + 60 * config.checkpoint_minutes
        self._saved_step = self._looked_step = members[0].run.step
        self._latest: Metrics = {}

    def run(self) -> bool:
        """Train to the end, or to where the members wait; return whether a signal interrupted it."""
        members = self._members
        log.info("a stack of %s is trained: %s", counted(len(members), "member"), self._population.path)
        with contextlib.ExitStack() as ends:
            for member in members:
                self._start(member, ends)
                member.run.callback_states()
            for view in self._views:
                view.on_start(members[0].run)
                ends.callback(view.on_end, members[0].run)
            for member in self._live():
                member.evaluation.catch_up(member.run)
            step = members[0].run.step
            while step < self._until and self._live() and not self._is_interrupted():
                step = self._advance(step)
            if self._looked_step != step:  # a signal came, or the members wait here, between two logs
                self._look(step)
            self._save(by_time=False)
        for member in self._live() if self._until >= self._config.total_timesteps else ():
            end_run(member.run)
        return self._is_interrupted()

    def _start(self, member: Member, ends: contextlib.ExitStack) -> None:
        """Start the callbacks of a member, and leave it to `ends` to end them; a training error ends it alone."""
        try:
            for callback in (*member.logs, member.checkpoints, member.evaluation):
                callback.on_start(member.run)
                ends.callback(callback.on_end, member.run)
        except TrainingError as error:
            self._end(member, str(error))

    def _live(self) -> list[Member]:
        return [member for member in self._members if not member.ended]

    def _is_interrupted(self) -> bool:
        return any(member.run.interrupted for member in self._members)

    def _advance(self, step: int) -> int:
        """Do the next piece of work and what is due after it; return the new step."""
        config = self._config
        end, result = self._stack.advance(step)
        for number, reason in self._stack.failed().items():
            self._end(self._members[number], reason)
        if not self._live():
            return end
        for member in self._live():
            run = member.run
            run.previous_step, run.step = step, end
            run.gradient_step += result.num_gradient_steps
        run = self._live()[0].run
        ends = end >= config.total_timesteps or self._is_interrupted()
        saves = ends or run.crossed(config.checkpoint_interval)
        by_time = not saves and bool(config.checkpoint_minutes) and monotonic() >= self._save_due
        own = (getattr(config.hparams, name) for name in config.spec.intervals)
        intervals = (config.log_interval, config.eval_interval, *own)
        logs = saves or self._has_callbacks or any(run.crossed(interval) for interval in intervals)
        self._latest = result.metrics
        if logs or by_time:  # else nobody looks at the metrics: the device is not waited for
            self._look(end)
        if saves or by_time:
            self._save(by_time=by_time)
        if end >= config.total_timesteps or run.crossed(config.eval_interval):
            for member in self._live():
                self._call(member, [member.evaluation])
            write_summary(self._population)
        self._finish_stopped()
        for view in self._views:
            view.on_step(run)
        return end

    def _look(self, step: int) -> None:
        """Write the logs of the members, which ends those that have diverged."""
        self._looked_step = step
        self._publish(self._latest)
        for member in self._live():
            self._call(member, member.logs)

    def _finish_stopped(self) -> None:
        """End the members that a callback or an evaluation stopped; the others go on."""
        stopped = [member for member in self._live() if member.run.stop_reason and not member.run.interrupted]
        if stopped:
            self._save(by_time=False)
        for member in stopped:
            end_run(member.run)
            self._leave_out(member)

    def _leave_out(self, member: Member) -> None:
        member.ended = True
        self._stack.end(self._members.index(member))

    def _publish(self, metrics: Metrics) -> None:
        """Copy the metrics to the host and give each member its own; end those that have diverged."""
        values = to_host(metrics) if metrics else {}  # none before the first update
        for number, (member, alive) in enumerate(zip(self._members, self._stack.alive(), strict=True)):
            if member.ended:
                continue
            self._stack.publish(member.run, number, _row(values, number))
            if not alive:
                self._end(member, f"its numbers stopped being finite before step {member.run.step}")

    def _call(self, member: Member, callbacks: Sequence[Callback]) -> None:
        """Call the callbacks of a member; a training error ends it alone."""
        if member.ended:
            return
        try:
            for callback in callbacks:
                callback.on_step(member.run)
        except TrainingError as error:
            self._end(member, str(error))

    def _end(self, member: Member, reason: str) -> None:
        self._leave_out(member)
        advice = "training has diverged; a smaller learning_rate or max_grad_norm usually helps"
        reason = reason if "diverged" in reason else f"{reason}: {advice}"
        log.warning("member %s ends: %s", member.name, reason)
        state = MemberState(state="diverged", step=self._saved_step, reason=reason)
        self._population.write_states({member.name: state})

    def _save(self, *, by_time: bool) -> None:
        """Write the checkpoints of all members, then name their step, then remove older ones."""
        members = [member for member in self._live() if not member.checkpoints.is_saved(member.run)]
        if not members:
            return
        started = monotonic()
        parts = [member.run.parts() for member in members]
        with ThreadPoolExecutor(SAVING_THREADS) as pool:
            list(pool.map(lambda one: one[0].checkpoints.write(one[0].run, one[1]), zip(members, parts, strict=True)))
        step = members[0].run.step
        self._population.write_states({m.name: MemberState(state="running", step=step) for m in members})
        for member in members:
            member.checkpoints.remove_older(member.run, by_time=by_time)
        self._saved_step = step
        seconds = monotonic() - started
        self._save_due = monotonic() + max(60 * self._config.checkpoint_minutes, seconds / MAX_SHARE_OF_SAVES)


def _row(values: Mapping[str, Tensor], number: int) -> Metrics:
    return {name: value.view(-1)[number] for name, value in values.items()}  # 0-d in a stack of one on the device
