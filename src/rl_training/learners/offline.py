"""Learning from a dataset, as far as it is the same for all algorithms: acting, updating, state, judging held-out data.

A recipe (iql.py, bc.py) brings the networks and one pure step. What is known of the dataset (the observations' mean and
deviation, the rewards' scale) is part of the state: the step normalises what it is given, and a checkpoint has it all.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import accelerate_rounds
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_field, observation_kind
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import CheckpointError, ConfigError, SpaceError
from rl_training.hparams.offline import LearnerHParams
from rl_training.learners.normalization import ObsNormalizer, fitted_normalizer, normalized
from rl_training.learners.optim import ClippedAdam, FlatModule
from rl_training.learners.user_networks import zero_obs
from rl_training.models.distributions import Gaussian
from rl_training.models.mlp_policy import policy_distribution

RETURN_RANGE = 1_000.0  # that of the scaled rewards' episode returns, with reward_scale: return (Kostrikov et al. 2022)


class Recipe(Protocol):
    """What an algorithm brings."""

    @property
    def actor(self) -> FlatModule: ...

    def state(self) -> State:
        """Give all that learns and how: `actor.params` and `actor.learning_rate` among it."""
        ...

    def learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take one step: the entries of the state that change, and metrics."""
        ...

    def evaluate_offline(self, state: State, batch: Batch) -> Metrics:
        """Say how well transitions that were not learnt from are predicted: means over the rows."""
        ...


class OfflineLearner:
    """Acts by its policy; a call of `update` makes one update per `batch_size` rows."""

    def __init__(self, recipe: Recipe, setup: Setup[LearnerHParams]) -> None:
        self.recipe = recipe
        self.hparams = setup.hparams
        self.num_updates = 0
        self.device = setup.device
        self._policy = policy_distribution(setup.spaces.action)
        self._generator = setup.streams.numpy("action")
        self._normalizer = _obs_normalizer(setup)
        self._total_updates = max(1, setup.hparams.updates_until(setup.total_timesteps))
        scale = reward_scale(setup.hparams, setup.dataset)
        known = {"reward_scale": torch.tensor(scale), "reward_shift": torch.tensor(setup.hparams.reward_shift)}
        if self._normalizer is not None:
            known["obs_mean"], known["obs_scale"] = self._normalizer.constants()
        # A tensor, because a number would be part of the compiled step, whatever the length of the next run.
        known["total_updates"] = torch.tensor(float(self._total_updates))
        self.state = recipe.state() | {name: value.clone().to(setup.device) for name, value in known.items()}
        self._outputs = act_function(recipe.actor.module, setup.device, setup.acceleration)
        self._learn = accelerate_rounds(self._step, setup.acceleration, identity=setup.identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        outputs = self._outputs(self._normalizer.rows(obs) if self._normalizer is not None else obs)
        if explore:
            actions = self._policy.sample(outputs, self._generator, action_mask)
            # What is learnt from is what the env was given, as in the dataset.
            return ActResult(np.clip(actions, -1.0, 1.0) if isinstance(self._policy, Gaussian) else actions)
        return ActResult(self._policy.mode(outputs, action_mask))

    def update(self, batch: Batch) -> UpdateResult:
        rounds = len(batch["rewards"]) // self.hparams.batch_size
        metrics = self._learn(self.state, batch, rounds)
        self.num_updates += rounds
        means = metrics if rounds == 1 else {name: values.mean() for name, values in metrics.items()}
        return UpdateResult(means, num_gradient_steps=rounds)

    @torch.no_grad()
    def evaluate_offline(self, batch: Batch) -> Metrics:
        """Say how well transitions that were not learnt from are predicted: means over the rows."""
        return self.recipe.evaluate_offline(self.state, self._scaled(self.state, batch))

    def status(self, step: int) -> dict[str, float]:
        share = min(1.0, self.num_updates / self._total_updates)
        left = 0.5 * (1.0 + math.cos(math.pi * share)) if self._is_cosine else 1.0
        return {"learning_rate": self.hparams.learning_rate * left}

    def policy_state_dict(self) -> StateDict:
        """The policy's parameters, and the statistics without which they mean nothing."""
        state: StateDict = dict(self.recipe.actor.named(self.state["actor.params"]))
        if self._normalizer is not None:
            state["obs_moments"] = self._normalizer.moments.state_dict()
        return state

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        actor = dict(state)
        moments = actor.pop("obs_moments", None) if self._normalizer is not None else None
        if self._normalizer is not None:
            if moments is None:
                raise CheckpointError("the saved policy has no obs_moments: it was trained on observations as they are")
            self._normalizer.load_state_dict(moments)
            for name, value in zip(("obs_mean", "obs_scale"), self._normalizer.constants(), strict=True):
                self.state[name].copy_(value)
        self.recipe.actor.load(self.state["actor.params"], actor)

    def state_dict(self) -> StateDict:
        kept = {name: value for name, value in self.state.items() if name not in _ELSEWHERE}
        return {**kept, "num_updates": self.num_updates, "generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self.state.items():
            if name not in _ELSEWHERE:
                value.copy_(torch.as_tensor(state[name]))
        self.num_updates = int(state["num_updates"])
        set_generator_state(self._generator, state["generator"])

    def start_from(self, policy: Mapping[str, Any], training: Mapping[str, Any]) -> None:
        """Take up what another run has learnt, its optimizers' moments included, but not its step sizes and counts."""
        self.load_policy_state_dict(policy)
        for name, value in self.state.items():
            if name not in _ELSEWHERE and not name.endswith("learning_rate"):
                value.copy_(torch.as_tensor(training[name]))

    @property
    def _is_cosine(self) -> bool:
        return self.hparams.learning_rate_schedule == "cosine"

    def _step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        now = dict(state)
        if self._is_cosine:
            share = (state["actor.adam_count"] / state["total_updates"]).clamp(max=1.0)
            now["actor.learning_rate"] = state["actor.learning_rate"] * (0.5 + 0.5 * torch.cos(torch.pi * share))
        return self.recipe.learn(now, self._scaled(state, batch))

    def _scaled(self, state: State, batch: Batch) -> Batch:
        """The batch as the networks see it, with rewards as they are learnt from."""
        scaled = {**batch, "rewards": batch["rewards"] * state["reward_scale"] + state["reward_shift"]}
        if self._normalizer is not None:
            for name in ("obs", "next_obs"):
                scaled[name] = normalized(batch[name], state["obs_mean"], state["obs_scale"])
        return scaled


# Parts of the policy, or of the run's length: no part of what learning on needs besides them.
_ELSEWHERE = ("actor.params", "obs_mean", "obs_scale", "total_updates")


# --- What is known of the dataset ------------------------------------------------------------------------------------


def reward_scale(hparams: LearnerHParams, dataset: TransitionDataset | None) -> float:
    """Give what rewards are multiplied by; without the dataset that tells it, a checkpoint will."""
    if isinstance(hparams.reward_scale, float):
        return hparams.reward_scale
    if hparams.reward_scale == "none" or dataset is None:
        return 1.0
    returns = dataset.episode_returns()
    span = float(returns.max() - returns.min())
    if span <= 0.0:
        raise ConfigError(
            f"reward_scale: return needs episodes of different returns, but all {len(returns)} of the dataset have "
            f"{returns[0]:g}; give a number, or none"
        )
    return RETURN_RANGE / span


def _obs_normalizer(setup: Setup[LearnerHParams]) -> ObsNormalizer | None:
    if not setup.hparams.normalize_observations:
        return None
    space = setup.spaces.observation
    if observation_kind(space) != "vector":
        raise SpaceError(f"normalize_observations needs vector observations, but these are {space}")
    if setup.dataset is None:  # the statistics come from a checkpoint
        return ObsNormalizer(observation_field(space).shape)
    return fitted_normalizer(setup.dataset.obs)


# --- What the recipes share ------------------------------------------------------------------------------------------


def adam_of(hparams: LearnerHParams) -> ClippedAdam:
    return ClippedAdam(learning_rate=hparams.learning_rate, eps=hparams.adam_eps, max_grad_norm=hparams.max_grad_norm)


def trial_obs(setup: Setup[LearnerHParams]) -> Tensor:
    """Give observations with which to try a network, as it will see them: normalised ones are float32."""
    return zero_obs(setup, np.float32 if setup.hparams.normalize_observations else None)
