"""Learning from a dataset: what all members of the family share, which is acting, updating, state and evaluation.

A recipe (iql.py, bc.py) brings the networks and one pure step. The dataset's statistics (mean and standard deviation of
observations, scale of rewards) are part of the state: the step normalises its batch, and a checkpoint holds them.
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
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.offline import LearnerHParams
from rl_training.learners.dataset_rewards import reward_constants, scale_rewards
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import trial_obs
from rl_training.learners.normalization import (
    OBS_CONSTANTS,
    ObsNormalizer,
    dataset_normalizer,
    normalize_batch,
    take_moments,
)
from rl_training.learners.policies import NetworkPolicy
from rl_training.learners.random_inputs import RandomInput
from rl_training.learners.saved_state import load_tensors, tensors_to_save
from rl_training.models.distributions import Gaussian
from rl_training.models.mlp_policy import policy_distribution


class OfflineRecipe(Protocol):
    """What a member of the family brings."""

    @property
    def actor(self) -> FlatModule: ...

    def state(self) -> State:
        """Return the first values of everything an update changes, with `actor.params` and `actor.learning_rate`."""
        ...

    def learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take one step: return the entries of the state that change, and metrics."""
        ...

    def evaluate_offline(self, state: State, batch: Batch) -> Metrics:
        """Return how well transitions of the held-out set are predicted: means over the rows."""
        ...


class OfflineLearner:
    """Acts by its policy; a call of `update` makes one update per `batch_size` rows."""

    def __init__(self, recipe: OfflineRecipe, setup: Setup[LearnerHParams]) -> None:
        self.recipe, self.hparams = recipe, setup.hparams
        self.num_updates = 0
        self.device = setup.device
        self._policy = policy_distribution(setup.spaces.action)
        self._generator = setup.streams.numpy("action")
        self._normalizer = _obs_normalizer(setup)
        self._total_updates = max(1, setup.total_updates)
        known = reward_constants(setup)
        if self._normalizer is not None:
            known |= self._normalizer.constants()
        # A tensor, because a number would be compiled into the step and differ from run to run.
        known["total_updates"] = torch.tensor(float(self._total_updates))
        self.state = recipe.state() | {name: value.clone().to(setup.device) for name, value in known.items()}
        self._act_mode = setup.acceleration
        self._outputs = act_function(recipe.actor.module, setup.device, self._act_mode)

        def step(state: State, batch: Batch) -> tuple[State, Metrics]:
            now = dict(state)
            if self._is_cosine:
                share = (state["actor.adam_count"] / state["total_updates"]).clamp(max=1.0)
                now["actor.learning_rate"] = state["actor.learning_rate"] * (0.5 + 0.5 * torch.cos(torch.pi * share))
            return recipe.learn(now, self._scaled(state, batch))

        self.pure_steps = {"whole": step}
        self._step_in_place = accelerate_rounds(step, setup.acceleration, identity=setup.identity_with(recipe))

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        outputs = self._outputs(self._normalizer.rows(obs) if self._normalizer is not None else obs)
        if explore:
            actions = self._policy.sample(outputs, self._generator, action_mask)
            # Updates see the action that the env received, as in the dataset.
            return ActResult(np.clip(actions, -1.0, 1.0) if isinstance(self._policy, Gaussian) else actions)
        return ActResult(self._policy.mode(outputs, action_mask))

    def update(self, batch: Batch) -> UpdateResult:
        rounds = len(batch["rewards"]) // self.hparams.batch_size
        metrics = self._step_in_place(self.state, batch, rounds)  # writes the new weights into self.state
        self.num_updates += rounds
        means = metrics if rounds == 1 else {name: values.mean() for name, values in metrics.items()}
        return UpdateResult(means, num_gradient_steps=rounds)

    # --- As a member of a stack --------------------------------------------------------------------------------------

    @property
    def noise(self) -> np.random.Generator:
        return self._generator

    def scheduled_rates(self) -> dict[str, float]:
        """Return nothing: the rates of an update follow from the state."""
        return {}

    def kinds(self, rounds: int) -> list[tuple[str, int]]:
        """Return the kinds of the next updates: there is one."""
        return [("whole", rounds)]

    def random_inputs(self, kind: str, rounds: int) -> dict[str, RandomInput]:
        """Return what an update draws: nothing."""
        return {}

    def end_updates(self) -> None:
        """Do nothing: all of an update is in its step."""

    def keep(self, metrics: Metrics) -> Metrics:
        return metrics

    def use_state(self, state: State) -> None:
        """Act by, and save, these tensors in place of its own: the member's rows of a stacked state."""
        self.state = {name: state[name] for name in self.state}
        self.recipe.actor.use(self.state["actor.params"])
        self._outputs = act_function(self.recipe.actor.module, self.device, self._act_mode)

    @torch.no_grad()
    def evaluate_offline(self, batch: Batch) -> Metrics:
        """Return how well transitions of the held-out set are predicted: means over the rows."""
        return self.recipe.evaluate_offline(self.state, self._scaled(self.state, batch))

    def status(self, step: int) -> dict[str, float]:
        share = min(1.0, self.num_updates / self._total_updates)
        left = 0.5 * (1.0 + math.cos(math.pi * share)) if self._is_cosine else 1.0
        return {"learning_rate": self.hparams.learning_rate * left}

    def policy_state_dict(self) -> StateDict:
        """Return the policy's parameters and the statistics that its observations are normalised by."""
        state: StateDict = dict(self.recipe.actor.named(self.state["actor.params"]))
        if self._normalizer is not None:
            state["obs_moments"] = self._normalizer.moments.state_dict()
        return state

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        actor = dict(state)
        if self._normalizer is not None:
            self._normalizer.load_state_dict(take_moments(actor, "obs_moments"))
            for name, value in self._normalizer.constants().items():
                self.state[name].copy_(value)
        self.recipe.actor.load(self.state["actor.params"], actor)

    def state_dict(self) -> StateDict:
        kept = tensors_to_save(self.state, without=_ELSEWHERE)
        return {**kept, "num_updates": self.num_updates, "generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.state, state, without=_ELSEWHERE)
        self.num_updates = int(state["num_updates"])
        set_generator_state(self._generator, state["generator"])

    def start_from(self, policy: Mapping[str, Any], training: Mapping[str, Any]) -> None:
        """Load what another run has learned, with its optimizers' moments, but without learning rates and counts."""
        self.load_policy_state_dict(policy)
        rates = [name for name in self.state if name.endswith("learning_rate")]
        load_tensors(self.state, training, without=(*_ELSEWHERE, *rates))

    @property
    def _is_cosine(self) -> bool:
        return self.hparams.learning_rate_schedule == "cosine"

    def _scaled(self, state: State, batch: Batch) -> Batch:
        """Return the batch with normalised observations and scaled rewards."""
        scaled = scale_rewards(batch, state)
        return scaled if self._normalizer is None else normalize_batch(scaled, state)


def offline_policy(learner: OfflineLearner) -> NetworkPolicy:
    return NetworkPolicy(learner.recipe.actor.module, learner._policy, learner._normalizer)


# Saved with the policy, or given by the length of the run.
_ELSEWHERE = ("actor.params", *OBS_CONSTANTS, "total_updates")


# --- Statistics of the dataset ---------------------------------------------------------------------------------------


def _obs_normalizer(setup: Setup[LearnerHParams]) -> ObsNormalizer | None:
    if not setup.hparams.normalize_observations:
        return None
    return dataset_normalizer(setup.spaces.observation, None if setup.dataset is None else setup.dataset.obs)


# --- What the recipes share ------------------------------------------------------------------------------------------


def trial_inputs(setup: Setup[LearnerHParams]) -> Tensor:
    """Return two observations to try a network with: float32 if observations are normalised, else as stored."""
    return trial_obs(setup, np.float32 if setup.hparams.normalize_observations else None)
