"""Learn from rollouts of tensor environments: the steps of an on-policy update, where no value leaves the device.

Everything is a tensor at a fixed place that changes in place, so that a CUDA graph can hold whole iterations
(runtime/device_loop.py). Shuffles and actions are functions of counters.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rl_training.acceleration.steps import InPlaceStep, accelerate
from rl_training.core.counters import Keys
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics, State, UpdateResult
from rl_training.learners.normalization import (
    ObsNormalizer,
    RewardScaler,
    deviation,
    merged_moments,
    normalized,
    scaled_rewards,
)

LANE = 2**15  # environments use lower lanes
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


class RolloutLearner:
    """Acts and learns as its algorithm does, with tensors of the device only."""

    def __init__(
        self,
        setup: Setup[OnDeviceSettings],
        state: State,
        step: InPlaceStep,
        estimate: Estimate,
        draw: Draw,
        *,
        acting: State,
        estimates: Sequence[str],
        learned: Sequence[str],
        refreshed: Sequence[str] = (),
        summary: Callable[[Batch], Metrics] = lambda rollout: {},
        obs_normalizer: ObsNormalizer | None = None,
        reward_scaler: RewardScaler | None = None,
    ) -> None:
        """`state`: what `step` changes in place, on the rows `indices` of a batch of `learned` entries.

        `estimate`, `draw`: pure. `acting`: what `draw` reads. `estimates`: what `estimate` returns before the first
        epoch, `refreshed`: before every other one. `summary`: metrics of the estimates.
        """
        self._hparams, self._shape = setup.hparams, (setup.hparams.num_steps, setup.num_envs)
        self._seed = setup.streams.integer("shuffle")
        self._state, self._step, self._draw, self._acting = state, step, draw, acting
        self._estimates, self._learned_names, self._refreshed = estimates, learned, refreshed
        self._summary = summary
        self._obs_normalizer, self._reward_scaler = obs_normalizer, reward_scaler
        self._memory: Batch = {}  # what an update computes about each row of a rollout

        def scale(state: State, batch: Batch) -> tuple[State, Metrics]:
            return self._scaled(state, batch), {}

        def estimated(state: State, batch: Batch) -> tuple[State, Metrics]:
            found = estimate(batch, state)
            return {name: found[name] for name in state}, {}

        self._scale_in_place = accelerate(scale, setup.acceleration, "scaling", identity=setup.identity)
        self._estimate_in_place = accelerate(estimated, setup.acceleration, "estimates", identity=setup.identity)

    @property
    def acting_state(self) -> State:
        """The tensors that `draw` reads; updates change them in place."""
        state = dict(self._acting)
        if self._obs_normalizer:
            state["obs_mean"], state["obs_variance"] = self._obs_normalizer.moments.tensors[:2]
        return state

    @property
    def changed(self) -> list[Tensor]:
        """All tensors that `learn` changes and a resumed run needs."""
        parts = [part.tensors for part in (self._reward_scaler,) if part]
        parts += [part.moments.tensors for part in (self._obs_normalizer,) if part]
        return [*self._state.values(), *(tensor for tensors in parts for tensor in tensors)]

    def draw(self, state: State, obs: Tensor, keys: Keys) -> Tensor:
        """Sample actions for observations by counters: a pure function."""
        if self._obs_normalizer:
            obs = normalized(obs, state["obs_mean"].float(), (1.0 / deviation(state["obs_variance"])).float())
        return self._draw(state, obs, keys)

    def learn(self, rollout: Batch, update: Tensor) -> UpdateResult:
        """Take all gradient steps on a rollout.

        `rollout`: rows, (steps * envs, ...), step by step, with the true `next_obs` of each. `update`: the number of
        this update, 0-d int64.
        """
        hparams = self._hparams
        self._scale(rollout, update)
        history: list[Metrics] = []
        for epoch in range(hparams.update_epochs):
            names = self._refreshed if epoch else self._estimates
            if names:
                self._estimate(rollout, names)
            for indices in self._order(epoch).view(-1, hparams.minibatch_size):
                history.append(self._step(self._state, self._learned(rollout) | {"indices": indices}))
        means = {name: torch.stack([metrics[name] for metrics in history]).mean() for name in history[0]}
        return UpdateResult(means | self._summary(self._memory), num_gradient_steps=len(history))

    def phases(self, rollout: Batch, update: Tensor) -> dict[str, Callable[[], object]]:
        """Return the parts of `learn` by name, to measure them one by one."""
        indices = torch.arange(self._hparams.minibatch_size, device=update.device)
        return {
            "scaling": lambda: self._scale(rollout, update),
            "estimates": lambda: self._estimate(rollout, self._estimates),
            "shuffle": lambda: self._order(0),
            "one minibatch": lambda: self._step(self._state, self._learned(rollout) | {"indices": indices}),
        }

    def _scale(self, rollout: Batch, update: Tensor) -> None:
        self._memory = self._memory or self._empty_memory(rollout)
        self._scale_in_place(self._scaling_state(), rollout | {"update": update, "row": self._memory["row"]})

    def _estimate(self, rollout: Batch, names: Sequence[str]) -> None:
        batch = {name: self._memory.get(name, rollout[name]) for name in _ROWS}
        self._estimate_in_place({name: self._memory[name] for name in names}, batch | {"params": self._state["params"]})

    def _order(self, epoch: int) -> Tensor:
        return self._memory["words"][epoch].argsort(stable=True)

    def _learned(self, rollout: Batch) -> Batch:
        return {name: self._memory[name] if name in self._memory else rollout[name] for name in self._learned_names}

    def _empty_memory(self, rollout: Batch) -> Batch:
        rewards = rollout["rewards"]
        memory = {name: torch.zeros_like(rewards) for name in (*self._estimates, "rewards")}
        words = torch.zeros((self._hparams.update_epochs, len(rewards)), dtype=torch.int32, device=rewards.device)
        if self._obs_normalizer:
            memory |= {name: torch.zeros_like(rollout[name], dtype=torch.float32) for name in ("obs", "next_obs")}
        # In memory, because a compiled step on a GPU computes with its own row numbers in 32 bits.
        return memory | {"words": words, "row": torch.arange(len(rewards), device=rewards.device)}

    def _scaling_state(self) -> State:
        """Return what `_scaled` changes: the statistics, and the memory of its results."""
        names = ("rewards", "obs", "next_obs", "words")
        state: State = {name: self._memory[name] for name in names if name in self._memory}
        if self._obs_normalizer:
            state |= _numbered("obs_moments", self._obs_normalizer.moments.tensors)
        if self._reward_scaler:
            state |= _numbered("reward_moments", self._reward_scaler.tensors)
        return state

    def _scaled(self, state: State, batch: Batch) -> State:
        """Normalise a rollout, and draw the words whose order shuffles each epoch."""
        row = batch["row"]
        keys = Keys(torch.full_like(row, self._seed), row, torch.zeros_like(row), batch["update"].expand_as(row))
        new: State = {"words": (keys.words(LANE, self._hparams.update_epochs).T - 2**31).int()}
        new["rewards"] = batch["rewards"]
        if self._obs_normalizer:
            old = _parts("obs_moments", state)
            merged = merged_moments(old, batch["obs"])
            # The first rollout is collected without statistics, and learned with its own.
            mean, variance = (torch.where(old[2] == 0, merged[part], old[part]) for part in (0, 1))
            scale = (1.0 / deviation(variance)).float()
            new |= {name: normalized(batch[name], mean.float(), scale) for name in ("obs", "next_obs")}
            new |= _numbered("obs_moments", merged)
        if self._reward_scaler:
            ended = (batch["terminated"] | batch["truncated"]).view(self._shape)
            old, rewards = _parts("reward_moments", state), batch["rewards"].view(self._shape)
            scaled, statistics = scaled_rewards(old, rewards, ended, self._hparams.gamma)
            new |= {"rewards": scaled.flatten(), **_numbered("reward_moments", statistics)}
        return new


def fit(rollout: Batch) -> Metrics:
    """Return the share of the returns' variance that the values explain: 1 is all of it, 0 what a constant does."""
    unexplained = (rollout["returns"] - rollout["values"]).var(correction=0)
    return {"explained_variance": 1.0 - unexplained / (rollout["returns"].var(correction=0) + 1e-8)}


def _numbered(name: str, tensors: Sequence[Tensor]) -> State:
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}


def _parts(name: str, state: State) -> list[Tensor]:
    return [state[key] for key in sorted(state) if key.startswith(f"{name}.")]
