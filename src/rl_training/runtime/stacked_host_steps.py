"""The off-policy loop of a stack whose members step environments on the host: ordinary ones, each in its collector.

    choose    each member draws its exploration; on a GPU, one call evaluates the networks of all of them
    learn     each member samples from its replay buffer; one step per update for all of them
    step      each member steps its environments, and stores the transitions

This is the order on a GPU, which learns while the host steps the environments. On a CPU, as in `run_off_policy`, the
environments are stepped before the updates.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from rl_training.acceleration.acting import meanwhile
from rl_training.core.types import Metrics, UpdateResult
from rl_training.data.member_batches import MemberMemory, MemberReplays
from rl_training.errors import TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.learners.stack import Stack
from rl_training.learners.stacked_acting import StackedActor, StackedOutputs, StackedStatistics
from rl_training.runtime.collector import Collector
from rl_training.runtime.loops import MAX_UPDATES_AT_ONCE, learns_meanwhile
from rl_training.runtime.run import Run


class StackedHostSteps:
    """The work of a stack with environments on the host: one step of every environment, and the updates due."""

    def __init__(self, config: TrainConfig, runs: Sequence[Run], learners: Sequence[StackedActor]) -> None:
        hparams: Any = config.hparams
        self._config, self._runs, self._ended = config, runs, set[int]()
        self._failed: dict[int, str] = {}
        self._collectors = [cast(Collector, run.collector) for run in runs]
        self._memories = [cast(MemberMemory, run.memory) for run in runs]
        self._learners = learners
        self._stack = Stack(self._learners, config.spec.per_member, config.acceleration)
        self.state, self.alive = self._stack.state, self._stack.alive
        device = next(iter(self.state.values())).device
        self._outputs = StackedOutputs(self._learners, self.state, device, config.acceleration)
        scalings = [learner.scaling for learner in self._learners if learner.scaling is not None]
        self._statistics = StackedStatistics(scalings, self.state, device)
        self._batches = MemberReplays(self._memories, hparams.batch_size, device)
        self._updates_until = partial(config.spec.updates_until, hparams)
        self._at_once = MAX_UPDATES_AT_ONCE if config.spec.updates_at_once else 1
        self._metrics: Metrics = {}  # the latest of each: not every update includes the actor
        self._updates = 0

    @property
    def _live(self) -> list[int]:
        return [number for number in range(len(self._runs)) if number not in self._ended]

    def advance(self, step: int) -> tuple[int, UpdateResult]:
        """Take one step in every environment, and make the updates due."""
        run, end, self._updates = self._runs[self._live[0]], step + self._config.num_envs, 0
        if run.learned:
            self._choose(step)
        else:
            with meanwhile(partial(self._learn, run.previous_step, step)):
                self._choose(step)
        for number in self._live:
            transitions = self._collectors[number].step(self._runs[number].algorithm, step=step)
            self._memories[number].add(transitions)
            self._statistics.add(number, transitions)
        self._statistics.write()
        learned = not learns_meanwhile(self._config)
        if learned:
            self._learn(step, end)
        for number in self._live:
            self._runs[number].learned = learned
        return end, UpdateResult(self._metrics, num_gradient_steps=self._updates)

    def failed(self) -> dict[int, str]:
        failed, self._failed = self._failed, {}
        return failed

    def end(self, number: int) -> None:
        """Stop stepping the environments of this member."""
        self._ended.add(number)

    def publish(self, run: Run, number: int, metrics: Metrics) -> None:
        if metrics:  # else those that its checkpoint holds
            run.last_metrics = self._learners[number].keep(metrics)

    def _choose(self, step: int) -> None:
        """Choose the actions of all members."""
        pending = {}
        for number in self._live:
            begun = self._collectors[number].begin_choice(self._learners[number], step=step)
            if begun is not None:
                pending[number] = begun
        for number, outputs in self._outputs.of(pending).items():
            try:
                self._collectors[number].end_choice(pending[number].finish(outputs), step=step)
            except TrainingError as error:
                self._fail(number, error)

    def _learn(self, before: int, step: int) -> None:
        """Make the updates that are due after env step `step` and were not yet after `before`."""
        due = self._updates_until(step) - self._updates_until(before)
        # Until the first n-step return of each member is complete there is nothing to learn from.
        if not all(len(self._memories[number]) for number in self._live):
            due = 0
        for done in range(0, due, self._at_once):
            count = min(self._at_once, due - done)
            self._metrics = self._metrics | self._stack.update(self._batches.draw(count, self._ended), count)
            self._updates += count
            if self._stack.errors is not None:
                self._update_priorities()

    def _update_priorities(self) -> None:
        assert self._stack.errors is not None
        errors = self._stack.errors.cpu()
        for number in self._live:
            try:
                self._batches.update_priorities(errors, number)
            except TrainingError as error:
                self._fail(number, error)

    def _fail(self, number: int, error: TrainingError) -> None:
        self._failed[number] = str(error)
        self.end(number)
