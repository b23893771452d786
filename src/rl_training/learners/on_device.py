"""Learn from rollouts of tensor environments: the steps of an on-policy update, where no value leaves the device.

Everything is a tensor at a fixed place that changes in place, so that a CUDA graph can hold whole iterations
(runtime/device_loop.py). Shuffles and actions are functions of counters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl_training.acceleration.steps import InPlaceStep, accelerate
from rl_training.core.counters import Keys
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics, State, UpdateResult
from rl_training.hparams.ppo import OnPolicyHParams
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.normalization import (
    ObsNormalizer,
    RewardScaler,
    deviation,
    merged_moments,
    normalized,
    scaled_rewards,
)
from rl_training.models.distributions import Distribution

LANE = 2**15  # environments use lower lanes
_LEARNED = ("obs", "actions", "log_probs", "values", "advantages", "returns")

# (rollout, old log-probabilities or None, parameters) -> values, log_probs, advantages, returns
Estimate = Callable[[Batch, Tensor | None, Tensor | None], Batch]


class RolloutLearner:
    """Acts and learns as its algorithm does, with tensors of the device only."""

    def __init__(
        self,
        setup: Setup[OnPolicyHParams],
        state: State,
        step: InPlaceStep,
        estimate: Estimate,
        *,
        network: FlatModule,
        distribution: Distribution,
        obs_normalizer: ObsNormalizer | None,
        reward_scaler: RewardScaler | None,
    ) -> None:
        """`state`: what `step` changes in place, on the rows `indices` of a batch. `estimate`: pure."""
        self._hparams, self._shape = setup.hparams, (setup.hparams.num_steps, setup.num_envs)
        self._seed = setup.streams.integer("shuffle")
        self._state, self._step, self._estimate = state, step, estimate
        self._network, self._distribution = network, distribution
        self._obs_normalizer, self._reward_scaler = obs_normalizer, reward_scaler
        self._memory: Batch = {}  # what an update computes about each row of a rollout

        def scale(state: State, batch: Batch) -> tuple[State, Metrics]:
            return self._scaled(state, batch), {}

        def estimated(state: State, batch: Batch) -> tuple[State, Metrics]:
            old_log_probs = None if "log_probs" in state else torch.zeros(())
            found = estimate(batch, old_log_probs, batch["params"])
            return {name: found[name] for name in state}, {}

        self._scale_in_place = accelerate(scale, setup.acceleration, "scaling", identity=setup.identity)
        self._estimate_in_place = accelerate(estimated, setup.acceleration, "advantages", identity=setup.identity)

    @property
    def acting_state(self) -> State:
        """The tensors that `draw` reads; updates change them in place."""
        state = {"params": self._state["params"]}
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
        return self._distribution.draw(self._network.apply(state["params"], obs), keys, LANE)

    def learn(self, rollout: Batch, update: Tensor) -> UpdateResult:
        """Take all gradient steps on a rollout.

        `rollout`: rows, (steps * envs, ...), step by step, with the true `next_obs` of each. `update`: the number of
        this update, 0-d int64.
        """
        hparams = self._hparams
        self._scale(rollout, update)
        history: list[Metrics] = []
        for epoch in range(hparams.update_epochs):
            if epoch == 0 or hparams.recompute_advantages:
                self._find_advantages(rollout, with_log_probs=epoch == 0)
            for indices in self._order(epoch).view(-1, hparams.minibatch_size):
                history.append(self._step(self._state, self._learned(rollout) | {"indices": indices}))
        means = {name: torch.stack([metrics[name] for metrics in history]).mean() for name in history[0]}
        return UpdateResult(means | fit(self._memory), num_gradient_steps=len(history))

    def phases(self, rollout: Batch, update: Tensor) -> dict[str, Callable[[], object]]:
        """Return the parts of `learn` by name, to measure them one by one."""
        indices = torch.arange(self._hparams.minibatch_size, device=update.device)
        return {
            "scaling": lambda: self._scale(rollout, update),
            "advantages": lambda: self._find_advantages(rollout, with_log_probs=True),
            "shuffle": lambda: self._order(0),
            "one minibatch": lambda: self._step(self._state, self._learned(rollout) | {"indices": indices}),
        }

    def _scale(self, rollout: Batch, update: Tensor) -> None:
        self._memory = self._memory or self._empty_memory(rollout)
        self._scale_in_place(self._scaling_state(), rollout | {"update": update})

    def _find_advantages(self, rollout: Batch, *, with_log_probs: bool) -> None:
        names = ("values", "advantages", "returns", *(("log_probs",) if with_log_probs else ()))
        inputs = ("obs", "next_obs", "actions", "rewards", "terminated", "truncated")
        batch = {name: self._memory.get(name, rollout[name]) for name in inputs}
        self._estimate_in_place({name: self._memory[name] for name in names}, batch | {"params": self._state["params"]})

    def _order(self, epoch: int) -> Tensor:
        return self._memory["words"][epoch].argsort(stable=True)

    def _learned(self, rollout: Batch) -> Batch:
        return {name: self._memory[name] if name in self._memory else rollout[name] for name in _LEARNED}

    def _empty_memory(self, rollout: Batch) -> Batch:
        rewards = rollout["rewards"]
        names = ("values", "log_probs", "advantages", "returns", "rewards")
        memory = {name: torch.zeros_like(rewards) for name in names}
        words = torch.zeros((self._hparams.update_epochs, len(rewards)), dtype=torch.int32, device=rewards.device)
        if self._obs_normalizer:
            memory |= {name: torch.zeros_like(rollout[name], dtype=torch.float32) for name in ("obs", "next_obs")}
        return memory | {"words": words}

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
        row = torch.arange(len(batch["rewards"]), device=batch["rewards"].device)
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
