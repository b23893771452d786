"""MBPO: a soft actor-critic that learns mostly from short rollouts through an ensemble of learned models.

    every `model_train_frequency` env steps       fit the ensemble to all real transitions (dynamics.py)
    every `rollout_refresh_interval` env steps    roll out k steps from real states by the policy (model_rollouts.py)
    at every env step                             G updates of SAC, on batches of which a small share is real

runtime/model_training.py schedules them. Rollouts terminate where the environment would: by its own rule if that is
known (envs/terminations.py), else as the ensemble predicts.

Janner et al. 2019, When to trust your model: model-based policy optimization. Deviations: docs/algorithms/mbpo.md.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.sac import SAC, build_sac
from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_field
from rl_training.core.types import ActResult, Batch, Metrics, StateDict, UpdateResult
from rl_training.data.mixed_source import MixedSource
from rl_training.envs.terminations import NEVER, TerminationRule, termination_rule
from rl_training.errors import SpaceError
from rl_training.hparams.mbpo import MBPOHParams, ModelHParams
from rl_training.hparams.schedules import synthetic_rows
from rl_training.learners.actor_critic import ActorCritic, actor_policy
from rl_training.learners.dynamics import DynamicsEnsemble, OnEpoch, build_ensemble
from rl_training.learners.model_rollouts import ModelRollouts, Penalty
from rl_training.learners.policies import NetworkPolicy

log = logging.getLogger("rl_training")


class MBPO:
    """A policy and the models that its rollouts go through."""

    def __init__(self, policy: ActorCritic, ensemble: DynamicsEnsemble, rollouts: ModelRollouts) -> None:
        self.policy, self.ensemble, self.rollouts = policy, ensemble, rollouts
        self.device = policy.state["actor.params"].device
        self._model_status: dict[str, float] = {}

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        return self.policy.act(obs, step=step, explore=explore, action_mask=action_mask)

    def update(self, batch: Batch) -> UpdateResult:
        return self.policy.update(batch)

    def update_model(self, transitions: Mapping[str, np.ndarray], on_epoch: OnEpoch | None = None) -> UpdateResult:
        """Fit the ensemble to transitions, at least two."""
        result = self.ensemble.fit(transitions, on_epoch)
        self._model_status |= {name: float(value) for name, value in result.metrics.items()}
        return result

    def rollout(self, memory: MixedSource, horizon: int) -> int:
        """Refresh the model's part of the memory by rollouts from real states; return the number of transitions."""
        hparams: ModelHParams = self.ensemble.hparams
        starts = memory.real.sample(hparams.rollout_batch_size)["obs"]
        keep, rows, sums = synthetic_rows(hparams, horizon), 0, defaultdict[str, float](float)
        for transitions in self.rollouts.run(starts, horizon):
            memory.add_model_rows(transitions, keep=keep)
            rows += len(transitions["rewards"])
            for name in transitions.keys() & {"rewards", "penalties"}:
                sums[name] += float(transitions[name].sum(dtype=np.float64))
        self._model_status |= {
            "rollout_horizon": float(horizon),
            "rollout_length": rows / hparams.rollout_batch_size,
            "rollout_reward": (sums["rewards"] + sums.get("penalties", 0.0)) / max(rows, 1),
            "synthetic_transitions": float(len(memory.model)),
        }
        if "penalties" in sums:
            self._model_status["rollout_penalty"] = sums["penalties"] / max(rows, 1)
        return rows

    @torch.no_grad()
    def evaluate_offline(self, batch: Batch) -> Metrics:
        """Return how well held-out transitions are predicted, and how far the policy's actions are from theirs.

        `action_error`: the mean squared difference to the actions of the dataset, which need not be good ones.
        """
        transitions = {name: values.cpu().numpy() for name, values in batch.items()}
        differences = self.act(transitions["obs"]).actions - transitions["actions"]
        errors = {
            "model_mse": self.ensemble.elites_error(transitions),
            "action_error": float(np.square(differences).mean()),
        }
        return {name: torch.tensor(error) for name, error in errors.items()}

    def status(self, step: int) -> dict[str, float]:
        return {**self.policy.status(step), **self._model_status}

    def policy_state_dict(self) -> StateDict:
        return self.policy.policy_state_dict()

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_policy_state_dict(state)

    def state_dict(self) -> StateDict:
        return {
            "policy": self.policy.state_dict(),
            "ensemble": self.ensemble.state_dict(),
            "model_status": dict(self._model_status),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.ensemble.load_state_dict(state["ensemble"])
        self._model_status = {name: float(value) for name, value in state["model_status"].items()}


def mbpo_policy(mbpo: MBPO) -> NetworkPolicy:
    return actor_policy(mbpo.policy)


def build_mbpo(setup: Setup[MBPOHParams]) -> MBPO:
    return compose(setup)


def compose(setup: Setup[ModelHParams], penalty: Penalty | None = None) -> MBPO:
    """Build a soft actor-critic, an ensemble and rollouts through it; `penalty` is subtracted from their rewards."""
    field = observation_field(setup.spaces.observation)
    if not np.issubdtype(field.dtype, np.floating):
        raise SpaceError(
            f"learned models predict observations of real numbers, but these are {setup.spaces.observation}"
        )
    policy = build_sac(setup)
    assert isinstance(policy.recipe, SAC)
    actor, distribution = policy.recipe.actor, policy.recipe.policy

    def act(params: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
        return distribution.rsample(actor.apply(params, obs), noise)[0]

    rule = _find_rule(setup)
    identity = f"{setup.identity} {rule!r}" if setup.identity else None
    ensemble = build_ensemble(setup, learned_termination=rule is None, identity=identity)
    rollouts = ModelRollouts(ensemble, actor, act, rule, setup, identity=identity, penalty=penalty)
    return MBPO(policy, ensemble, rollouts)


def _find_rule(setup: Setup[ModelHParams]) -> TerminationRule | None:
    if setup.hparams.termination == "never":
        return NEVER
    rule = termination_rule(setup.env_id, setup.env_kwargs) if setup.hparams.termination == "auto" else None
    if rule is None:
        log.info("the ensemble learns where rollouts terminate")
    return rule
