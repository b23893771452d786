"""The off-policy loop of tensor environments: steps, replay and updates without the host.

    for each of ROUNDS rounds:  act, step the environments, add to the replay buffer     compiled, no value on the host
        for each update due:    sample, learn                                             compiled steps

On CUDA the rounds of an iteration are captured in one CUDA graph; there is one per pattern of updates, such as that of
the warm-up. Which updates are due is known on the host.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.stacking import stacked
from rl_training.acceleration.steps import accelerate
from rl_training.core.spaces import Field
from rl_training.core.types import TD_ERRORS, Batch, DeviceAlgorithm, Metrics, UpdateResult
from rl_training.data.device_replay import DeviceReplay
from rl_training.data.device_rollout import DeviceRollout
from rl_training.experiment.config import TrainConfig
from rl_training.learners.replay_on_device import ReplayLearner
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.device_loop import (
    COMPILED,
    OUT,
    act_and_step,
    alive_members,
    captured,
    joined_states,
    restoring,
    run_iterations,
)
from rl_training.runtime.run import Run

ROUNDS = 16  # steps of every environment in one iteration
_EPISODES = {"ended": np.bool_, "episode": np.int32, "episode_return": np.float32, "episode_length": np.int32}

Pattern = tuple[tuple[str, ...], ...]  # for each round, the kinds of its updates


class DeviceReplayLoop:
    """One iteration at a time: `ROUNDS` steps of every environment and the updates that are due, in place."""

    def __init__(
        self,
        algorithms: Sequence[DeviceAlgorithm],
        collectors: Sequence[DeviceCollector],
        replays: Sequence[DeviceReplay],
        config: TrainConfig,
    ) -> None:
        """`config.acceleration`: `cuda_graph` captures iterations; in the other modes the host calls their steps.

        Several algorithms are the members of a stack: one program works on all of them, and each of them and of the
        collectors is then a part of the stack. The replay buffers are stacked already.
        """
        self._algorithms, self._num_envs = algorithms, config.num_envs
        self._learners = [algorithm.on_device() for algorithm in algorithms]
        self._updates_until = partial(config.spec.updates_until, config.hparams)
        self._device, self._captures = collectors[0].envs.device, config.acceleration == "cuda_graph"
        self.state, self._env_state = joined_states(algorithms, collectors)
        self._replay = replays[0] if replays[0].stack is None else replays[0].stack
        self.rows = ROUNDS * config.num_envs
        self._make_steps(collectors[0], COMPILED if self._captures else config.acceleration)
        fields = {name: Field((), np.dtype(kind)) for name, kind in _EPISODES.items()}
        axes = self._replay.count.shape
        self.episodes = DeviceRollout(ROUNDS, config.num_envs, fields, axes=axes, device=self._device)
        # Numbers of each member: episodes that ended, the next update, what the host decides about acting.
        self.num_ended, self._update = (torch.zeros(axes, dtype=torch.int64, device=self._device) for _ in range(2))
        self._exploration = torch.zeros(axes, device=self._device)
        self._seed = torch.tensor([learner.seed for learner in self._learners], device=self._device).view(axes)
        self._rates = {
            name: torch.tensor([learner.rates[name] for learner in self._learners], device=self._device).view(axes)
            for name in self._learners[0].rates
        }
        self._graphs: dict[Pattern, Callable[[], Metrics]] = {}

    def _make_steps(self, collector: DeviceCollector, mode: str) -> None:
        learner: ReplayLearner = self._learners[0]
        act, steps = act_and_step(learner.draw, collector.envs), dict(learner.steps)
        if len(self._algorithms) > 1:
            act = torch.func.vmap(act, randomness="error")
            steps = {kind: stacked(step) for kind, step in steps.items()}
        self._act = accelerate(act, mode, "environment step")
        self._replay.accelerate(mode)
        self._steps = {kind: accelerate(step, mode, f"{kind} update") for kind, step in steps.items()}

    def iteration(self, step: int) -> UpdateResult:
        """Take the rounds after env step `step`; the metrics are those of the last update, of all members."""
        pattern, learner = self._pattern(step), self._learners[0]
        self._update.fill_(self._algorithms[0].num_updates)
        self._exploration.fill_(learner.exploration(step))
        for name, rates in self._rates.items():
            self.state[name].copy_(rates * learner.rates_left())
        if not self._captures:
            metrics = self._run(pattern)
        else:
            if pattern not in self._graphs:
                changed = [*self._env_state.values(), *self.state.values(), self.num_ended, self._update]
                undo = restoring(changed), self._replay.undoing(ROUNDS)
                self._graphs[pattern] = captured(self._device, partial(self._run, pattern), *undo)
            metrics = self._graphs[pattern]()
        updates = sum(map(len, pattern))
        for algorithm in self._algorithms:
            algorithm.num_updates += updates
        return UpdateResult(metrics, num_gradient_steps=updates)

    def keep(self, metrics: Metrics, number: int = 0) -> Metrics:
        kept: Metrics = self._learners[number].keep(metrics)
        return kept

    def episodes_of(self, number: int) -> tuple[Batch, Tensor]:
        rows = {name: values.view(-1, self.rows)[number] for name, values in self.episodes.rows().items()}
        return rows, self.num_ended.view(-1)[number]

    def alive(self) -> list[bool]:
        return alive_members(self.state)

    def _pattern(self, step: int) -> Pattern:
        number, pattern = self._algorithms[0].num_updates, []
        for _ in range(ROUNDS):
            due = self._updates_until(step + self._num_envs) - self._updates_until(step)
            # Until the first n-step return is complete there is nothing to learn from.
            due = due if step >= self._replay.plan.delay else 0
            pattern.append(tuple(self._learners[0].kind_of(number + each) for each in range(due)))
            number, step = number + due, step + self._num_envs
        return tuple(pattern)

    @torch.no_grad()
    def _run(self, pattern: Pattern) -> Metrics:
        replay, metrics = self._replay, dict[str, Any]()
        acting = {"params": self.state[self._learners[0].params], "exploration": self._exploration}
        for number, kinds in enumerate(pattern):
            out = replay.incoming | self.episodes.at(number)
            self._act(self._env_state | {OUT + name: values for name, values in out.items()}, acting)
            replay.push()
            for kind in kinds:
                batch = replay.sample(self._update) | {"seed": self._seed}
                metrics = metrics | self._steps[kind](self.state, batch)
                replay.update_priorities(metrics.pop(TD_ERRORS))
                self._update += 1
        self.num_ended += self.episodes.rows()["ended"].sum(-1)
        return metrics


def run_replay_on_device(run: Run, hparams: object, callbacks: Sequence[Callback]) -> None:
    """Train an off-policy algorithm on the device."""
    algorithm, replay = cast(DeviceAlgorithm, run.algorithm), cast(DeviceReplay, run.memory)
    loop = DeviceReplayLoop([algorithm], [cast(DeviceCollector, run.collector)], [replay], run.config)
    run_iterations(run, loop, callbacks)
