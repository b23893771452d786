"""Learn from rollouts of tensor environments: the steps of an on-policy update, where no value leaves the device.

`RolloutLearner` holds an algorithm's pure functions, `RolloutUpdate` runs them on the rollouts of one run or of all
members of a stack. Everything is a tensor at a fixed place that changes in place, so that a CUDA graph can hold whole
iterations (runtime/device_loop.py). Shuffles and actions are functions of counters.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.acceleration.stacking import stacked
from rl_training.acceleration.steps import Step, accelerate
from rl_training.core.counters import LEARNING_LANE, Keys
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics, State, UpdateResult
from rl_training.learners.normalization import deviation, merged_moments, normalized, scaled_rewards
from rl_training.learners.rollout_scaling import OBS, REWARDS, numbered, parts_of

# (rollout with the parameters as `params`, names of the estimates that are wanted) -> estimates, (rows,) each
Estimate = Callable[[Batch, Collection[str]], Batch]
Draw = Callable[[State, Tensor, Keys], Tensor]  # (acting state, observations, keys) -> actions
_ROWS = ("obs", "next_obs", "actions", "rewards", "terminated", "truncated")


class OnDeviceSettings(Protocol):
    """The settings that a learner on the device reads."""

    @property
    def num_steps(self) -> int: ...
    @property
    def update_epochs(self) -> int: ...
    @property
    def minibatch_size(self) -> int: ...
    @property
    def gamma(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLearner:
    """An on-policy algorithm as the device loop uses it: pure functions over the state of one run.

    `step`: changes the state by the rows `indices` of a batch of `learned` entries. `acting`: the entries of the state
    that `sample` reads. `estimates`: what `estimate` returns before the first epoch, `refreshed`: before every other
    one. `summary`: metrics of the estimates.
    """

    setup: Setup[OnDeviceSettings]
    step: Step
    estimate: Estimate
    sample: Draw
    acting: Sequence[str]
    estimates: Sequence[str]
    learned: Sequence[str]
    refreshed: Sequence[str] = ()
    summary: Callable[[Batch], Metrics] = lambda rollout: {}
    normalizes_obs: bool = False
    scales_rewards: bool = False

    @property
    def seed(self) -> int:
        """The seed of the shuffles."""
        return self.setup.streams.integer("shuffle")

    def acting_state(self, state: State) -> State:
        """Return what `draw` reads."""
        statistics = numbered(OBS, parts_of(OBS, state)[:2]) if self.normalizes_obs else {}
        return {name: state[name] for name in self.acting} | statistics

    def draw(self, state: State, obs: Tensor, keys: Keys) -> Tensor:
        """Sample actions for observations by counters."""
        if self.normalizes_obs:
            mean, variance = parts_of(OBS, state)
            obs = normalized(obs, mean.float(), (1.0 / deviation(variance)).float())
        return self.sample(state, obs, keys)

    def scale(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Normalise a rollout, and draw the words whose order shuffles each epoch."""
        row, hparams = batch["row"], self.setup.hparams
        keys = Keys(batch["seed"].expand_as(row), row, torch.zeros_like(row), batch["update"].expand_as(row))
        new: State = {"words": (keys.words(LEARNING_LANE, hparams.update_epochs).T - 2**31).int()}
        new["rewards"] = batch["rewards"]
        if self.normalizes_obs:
            old = parts_of(OBS, state)
            merged = merged_moments(old, batch["obs"])
            # The first rollout is collected without statistics, and learned with its own.
            mean, variance = (torch.where(old[2] == 0, merged[part], old[part]) for part in (0, 1))
            scale = (1.0 / deviation(variance)).float()
            new |= {name: normalized(batch[name], mean.float(), scale) for name in ("obs", "next_obs")}
            new |= numbered(OBS, merged)
        if self.scales_rewards:
            shape = (hparams.num_steps, self.setup.num_envs)
            ended = (batch["terminated"] | batch["truncated"]).view(shape)
            old, rewards = parts_of(REWARDS, state), batch["rewards"].view(shape)
            scaled, statistics = scaled_rewards(old, rewards, ended, hparams.gamma)
            new |= {"rewards": scaled.flatten(), **numbered(REWARDS, statistics)}
        return new, {}

    def estimated(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Compute those estimates that the state has places for."""
        found = self.estimate(batch, state)
        return {name: found[name] for name in state}, {}

    def empty_memory(self, rollout: Batch) -> Batch:
        """Return zeros for what an update computes about each row of a rollout, (..., rows)."""
        rewards = rollout["rewards"]
        memory = {name: torch.zeros_like(rewards) for name in (*self.estimates, "rewards")}
        shape = (*rewards.shape[:-1], self.setup.hparams.update_epochs, rewards.shape[-1])
        memory["words"] = torch.zeros(shape, dtype=torch.int32, device=rewards.device)
        if self.normalizes_obs:
            memory |= {name: torch.zeros_like(rollout[name], dtype=torch.float32) for name in ("obs", "next_obs")}
        return memory

    def memory_bytes(self, rollout: Batch) -> int:
        """Return the size of that memory, without allocating it."""
        empty = self.empty_memory({name: values.to("meta") for name, values in rollout.items()})
        return sum(values.nbytes for values in empty.values())


class RolloutUpdate:
    """Learns from a rollout in place: for one run, or for all members of a stack, each as it would alone."""

    def __init__(self, learners: Sequence[RolloutLearner], state: State, rollout: Batch, mode: str) -> None:
        """`state`: what learning changes and a resumed run needs. `rollout`: rows, step by step, with the true
        `next_obs` of each, (steps * envs, ...); in a stack, both have a leading axis of members."""
        self._learner, self._state, self._rollout = learners[0], state, rollout
        self._hparams, self._axes = learners[0].setup.hparams, (len(learners),) if len(learners) > 1 else ()
        rewards = rollout["rewards"]
        seeds = torch.tensor([learner.seed for learner in learners], device=rewards.device)
        # In memory, because a compiled step on a GPU computes with its own row numbers in 32 bits.
        row = torch.arange(rewards.shape[-1], device=rewards.device).expand(rewards.shape)
        self._numbers = {"seed": seeds.view(self._axes), "row": row}
        self._first = torch.arange(len(learners), device=rewards.device).view(-1, 1)
        self._memory = learners[0].empty_memory(rollout)
        learner, over_members = learners[0], torch.func.vmap if self._axes else _only
        identity = learner.setup.identity
        self._scale_in_place = accelerate(over_members(learner.scale), mode, "scaling", identity=identity)
        self._estimate_in_place = accelerate(over_members(learner.estimated), mode, "estimates", identity=identity)
        step = stacked(learner.step) if self._axes else learner.step
        self._step_in_place = accelerate(step, mode, "update", identity=identity)
        self._summary: Callable[[Batch], Metrics] = over_members(learner.summary)

    def learn(self, update: Tensor) -> UpdateResult:
        """Take all gradient steps on the rollout; `update`: the number of this update, int64, of each member."""
        history: list[Metrics] = []
        self._scale(update)
        for epoch in range(self._hparams.update_epochs):
            names = self._learner.refreshed if epoch else self._learner.estimates
            if names:
                self._estimate(names)
            for indices in self._order(epoch).split(self._hparams.minibatch_size, dim=-1):
                history.append(self._step(indices))
        names = list(history[0])
        values = torch.stack([metrics[name] for metrics in history for name in names])
        means = values.unflatten(0, (len(history), len(names))).mean(0).unbind()
        metrics = dict(zip(names, means, strict=True)) | self._summary(self._memory)
        return UpdateResult(metrics, num_gradient_steps=len(history))

    def phases(self, update: Tensor) -> dict[str, Callable[[], object]]:
        """Return the parts of `learn` by name, to measure them one by one."""
        indices = self._order(0)[..., : self._hparams.minibatch_size]
        return {
            "scaling": lambda: self._scale(update),
            "estimates": lambda: self._estimate(self._learner.estimates),
            "shuffle": lambda: self._order(0),
            "one minibatch": lambda: self._step(indices),
        }

    def _scale(self, update: Tensor) -> None:
        names = ("rewards", "obs", "next_obs", "words")
        places = {name: self._memory[name] for name in names if name in self._memory}
        statistics = {name: value for name, value in self._state.items() if name.startswith((OBS, REWARDS))}
        self._scale_in_place(places | statistics, self._rollout | self._numbers | {"update": update})

    def _estimate(self, names: Sequence[str]) -> None:
        batch = {name: self._memory.get(name, self._rollout[name]) for name in _ROWS}
        self._estimate_in_place({name: self._memory[name] for name in names}, batch | {"params": self._state["params"]})

    def _step(self, indices: Tensor) -> Metrics:
        rows = self._rollout | self._memory
        batch = {name: rows[name] for name in self._learner.learned}
        state = {name: value for name, value in self._state.items() if not name.startswith((OBS, REWARDS))}
        return self._step_in_place(state, batch | {"indices": indices})

    def _order(self, epoch: int) -> Tensor:
        """Return the shuffled numbers of each member's rows: the order of their words."""
        words = self._memory["words"].select(-2, epoch)
        if not self._axes:
            return words.argsort(stable=True)
        # One sort for all members, which come one after the other. Sorting them one by one takes many more kernels.
        rows = words.shape[1]
        order = (words.long() + (self._first << 32)).flatten().argsort(stable=True)
        return order.view_as(words) - self._first * rows


def fit(rollout: Batch) -> Metrics:
    """Return the share of the returns' variance that the values explain: 1 is all of it, 0 what a constant does."""
    unexplained = (rollout["returns"] - rollout["values"]).var(correction=0)
    return {"explained_variance": 1.0 - unexplained / (rollout["returns"].var(correction=0) + 1e-8)}


def _only(pure: Callable[..., Any]) -> Callable[..., Any]:
    return pure
