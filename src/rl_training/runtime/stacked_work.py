"""What the members of a stack do together: the work between two looks at them, in one of three ways.

StackedUpdates     they learn from one dataset on the device, or from it and the model rollouts of each
StackedSteps       their environments, too, are on the device
StackedHostSteps   each steps its own environments on the host (stacked_host_steps.py)
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch

from rl_training.acceleration.stacking import ALIVE
from rl_training.algorithms.mbpo import MBPO
from rl_training.core.types import Algorithm, DeviceAlgorithm, Memory, Metrics, RolloutAlgorithm, State, UpdateResult
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.device_replay import DeviceReplay, stack_replays
from rl_training.data.device_rollout import DeviceRollout
from rl_training.data.member_batches import MemberBatches, MemberReplays
from rl_training.data.mixed_source import MixedSource
from rl_training.experiment.config import TrainConfig
from rl_training.learners.stack import Stack, StackedLearner
from rl_training.learners.stacked_acting import StackedActor
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.device_loop import DeviceLoop, Iterations, read_episodes
from rl_training.runtime.device_replay_loop import DeviceReplayLoop
from rl_training.runtime.loops import end_of_group
from rl_training.runtime.run import Run
from rl_training.runtime.stacked_host_steps import StackedHostSteps


class StackedWork(Protocol):
    """The work of a stack."""

    @property
    def state(self) -> State:
        """The stacked state."""
        ...

    def advance(self, step: int) -> tuple[int, UpdateResult]:
        """Do the next piece of work; return the step after it, and the metrics of all members."""
        ...

    def failed(self) -> Mapping[int, str]:
        """Return the members that cannot go on since the last call, with the reasons."""
        ...

    def end(self, number: int) -> None:
        """Leave out a member from now on, where that saves work. Its row of the stack stays."""
        ...

    def alive(self) -> list[bool]:
        """Return which members have had finite numbers only; waits for the device."""
        ...

    def publish(self, run: Run, number: int, metrics: Metrics) -> None:
        """Set what callbacks see of a member, from its metrics."""
        ...


class StackedUpdates:
    """The work of a stack that learns from one dataset: groups of updates."""

    def __init__(self, config: TrainConfig, runs: Sequence[Run]) -> None:
        self._learners = [learner_of(run.algorithm) for run in runs]
        self._config, self._stack = config, Stack(self._learners, config.spec.per_member, config.acceleration)
        self.state, self.alive = self._stack.state, self._stack.alive
        self._batches = _batches_of([run.memory for run in runs], config, self.state[ALIVE].device)

    def advance(self, step: int) -> tuple[int, UpdateResult]:
        """Make the updates of one group."""
        updates = end_of_group(self._config, step) - step
        metrics = self._stack.update(self._batches.draw(updates), updates)
        return step + updates, UpdateResult(metrics, num_gradient_steps=updates)

    def failed(self) -> dict[int, str]:
        return {}

    def end(self, number: int) -> None:
        """Do nothing: leaving out a member saves no time."""

    def publish(self, run: Run, number: int, metrics: Metrics) -> None:
        run.last_metrics = self._learners[number].keep(metrics)


def learner_of(algorithm: Algorithm) -> StackedLearner:
    """Return what a stack updates: of an algorithm with models its policy, else all of it."""
    return algorithm.policy if isinstance(algorithm, MBPO) else cast(StackedLearner, algorithm)


def _batches_of(memories: Sequence[Memory], config: TrainConfig, device: torch.device) -> MemberBatches | MemberReplays:
    batch_size: int = config.hparams.batch_size  # type: ignore[attr-defined]
    if isinstance(memories[0], MixedSource):
        return MemberReplays([cast(MixedSource, memory) for memory in memories], batch_size, device)
    return MemberBatches([cast(DatasetMemory, memory) for memory in memories], batch_size)


class StackedSteps:
    """The work of a stack with tensor environments: iterations of steps and updates on the device."""

    def __init__(self, config: TrainConfig, runs: Sequence[Run]) -> None:
        collectors = [cast(DeviceCollector, run.collector) for run in runs]
        self._loop = loop_of(runs, collectors, config)
        self.state, self.alive = self._loop.state, self._loop.alive
        ended = torch.tensor([run.num_episodes for run in runs])
        self._loop.num_ended.copy_(ended.view(self._loop.num_ended.shape))

    def advance(self, step: int) -> tuple[int, UpdateResult]:
        return step + self._loop.rows, self._loop.iteration(step)

    def failed(self) -> dict[int, str]:
        return {}

    def end(self, number: int) -> None:
        """Do nothing: leaving out a member saves no time."""

    def publish(self, run: Run, number: int, metrics: Metrics) -> None:
        run.last_metrics = self._loop.keep(metrics, number)
        read_episodes(run, *self._loop.episodes_of(number))


def join_memories(memories: Sequence[Memory]) -> None:
    """Make replay buffers on the device parts of one, before they load rows: these would be in memory twice."""
    replays = [memory for memory in memories if isinstance(memory, DeviceReplay)]
    if len(replays) > 1:
        stack_replays(replays)


def loop_of(runs: Sequence[Run], collectors: Sequence[DeviceCollector], config: TrainConfig) -> Iterations:
    """Return the loop of all members on the device, whose memories are joined."""
    if config.spec.loop == "on_policy":
        learners = [cast(RolloutAlgorithm, run.algorithm) for run in runs]
        return DeviceLoop(learners, collectors, [cast(DeviceRollout, run.memory) for run in runs], config)
    algorithms = [cast(DeviceAlgorithm, run.algorithm) for run in runs]
    return DeviceReplayLoop(algorithms, collectors, [cast(DeviceReplay, run.memory) for run in runs], config)


def work_of(config: TrainConfig, runs: Sequence[Run]) -> StackedWork:
    """Return the work of these members."""
    if config.spec.loop == "offline":
        return StackedUpdates(config, runs)
    if config.execution_backend == "tensor":
        return StackedSteps(config, runs)
    return StackedHostSteps(config, runs, [cast(StackedActor, learner_of(run.algorithm)) for run in runs])
