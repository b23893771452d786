"""Short rollouts through an ensemble of dynamics models, started from real observations.

    a ~ pi(s),   (s' - s, r) ~ N(mu_i(s, a), sigma_i(s, a)^2)   with a new random elite i for each step

Rewards may be reduced by a penalty on the predictions of all members (mopo.py).

Janner et al. 2019, When to trust your model, algorithm 2.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.steps import accelerate
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field, observation_field
from rl_training.core.types import Batch, Metrics, State
from rl_training.envs.terminations import TerminationRule
from rl_training.hparams.mbpo import ModelHParams
from rl_training.learners.dynamics import DynamicsEnsemble
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.random_inputs import RandomInput, RandomInputs, normal, uniform
from rl_training.models.mlp_mopo import Prediction

MAX_ROWS_PER_ELITE = {"cpu": 512, "cuda": 32_768}  # at a time: on the CPU, activations should stay in the cache

Act = Callable[[Tensor, Tensor, Tensor], Tensor]  # (the actor's parameters, obs, standard normal noise) -> actions
Penalty = Callable[[Prediction], Tensor]  # predictions of all members, (members, batch, ...) -> (batch,)


class ModelRollouts:
    """Rolls out many rows at a time, an equal part of them by each elite, and drops rows that have ended."""

    def __init__(
        self,
        ensemble: DynamicsEnsemble,
        actor: FlatModule,
        act: Act,
        rule: TerminationRule | None,
        setup: Setup[ModelHParams],
        *,
        identity: str | None,
        penalty: Penalty | None = None,
    ) -> None:
        """`actor`: its present parameters are used. `rule`: where rollouts terminate; None: as the ensemble predicts.
        `penalty`: subtracted from rewards.
        """
        self._ensemble, self._act, self._rule, self._penalty = ensemble, act, rule, penalty
        self._obs_shape = observation_field(setup.spaces.observation).shape
        self._action_shape = action_field(setup.spaces.action).shape
        self._actor = actor
        self._model_state = {name: ensemble.state[name] for name in ("params", "input_mean", "input_std", "elites")}
        obs_size, action_size = int(np.prod(self._obs_shape)), int(np.prod(self._action_shape))
        members_per_row = 1 if penalty is None else setup.hparams.num_ensembles
        elites, rows = setup.hparams.num_elites, _rows_per_elite(setup, members_per_row)
        self._obs = torch.zeros(elites, rows, obs_size, device=setup.device)
        random_inputs = {
            "order": RandomInput((elites,), _permutation, np.int64),
            "action_noise": RandomInput((elites * rows, action_size), normal),
            "noise": RandomInput((elites, rows, obs_size + 1), normal),
        }
        if rule is None:
            random_inputs["termination_noise"] = RandomInput((elites, rows), uniform)
        self._random_inputs = RandomInputs(random_inputs, setup.device)
        self._step = accelerate(self._model_step, setup.acceleration, "rollout step", identity=identity)

    def run(self, obs: Tensor, horizon: int) -> Iterator[dict[str, np.ndarray]]:
        """Roll out from every row of `obs`; yield the transitions of one step of some of the rows at a time.

        A rollout ends at its termination, or at a prediction that is not finite. `penalties` is what was subtracted
        from the rewards, if anything was.
        """
        elites, rows, _ = self._obs.shape
        state = {**self._model_state, "actor_params": self._actor.params}
        for part in torch.split(obs.flatten(1), elites * rows):
            places = self._obs.view(elites * rows, -1)
            places[: len(part)] = part  # places beyond are computed but never yielded
            alive = np.arange(len(places)) < len(part)
            for _ in range(horizon):
                result = self._step(state, {"obs": self._obs, **self._random_inputs.fill(self._ensemble.generator)})
                step = {name: values.flatten(0, 1).cpu().numpy() for name, values in result.items()}
                alive &= step["finite"]
                before = places.cpu().numpy()[alive]
                yield {
                    "obs": before.reshape(-1, *self._obs_shape),
                    "actions": step["actions"][alive].reshape(-1, *self._action_shape),
                    "next_obs": step["next_obs"][alive].reshape(-1, *self._obs_shape),
                    **{name: step[name][alive] for name in ("rewards", "penalties", "terminated") if name in step},
                }
                alive &= ~step["terminated"]
                if not alive.any():
                    break
                self._obs.copy_(result["next_obs"])

    def _model_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take one step of all rows, each group of them by one elite: (elites, rows, numbers)."""
        obs = batch["obs"]
        flat_obs = obs.reshape(-1, *self._obs_shape)
        actions = self._act(state["actor_params"], flat_obs, batch["action_noise"]).view(*obs.shape[:2], -1)
        elites = state["elites"][batch["order"]]  # the one of each group
        more: Metrics = {}
        if self._penalty is None:
            prediction = self._ensemble.predict(state, obs, actions, members=elites)
        else:
            of_all = self._ensemble.predict_by_all(state, obs.flatten(0, 1), actions.flatten(0, 1))
            prediction = _by_group(of_all, elites)
            more["penalties"] = self._penalty(of_all).view(obs.shape[:2])
        sample = prediction.mean + (0.5 * prediction.log_variance).exp() * batch["noise"]
        next_obs, rewards = obs + sample[..., :-1], sample[..., -1]
        if more:
            rewards = rewards - more["penalties"]
        if self._rule is not None:
            terminated = self._rule(obs, actions, next_obs)
        else:
            assert prediction.termination_logit is not None
            terminated = batch["termination_noise"] < prediction.termination_logit.sigmoid()
        return {}, {
            "actions": actions,
            "rewards": rewards,
            "next_obs": next_obs,
            "terminated": terminated,
            "finite": sample.isfinite().all(-1) & rewards.isfinite(),
            **more,
        }


def _by_group(of_all: Prediction, members: Tensor) -> Prediction:
    """Pick one member's prediction for each group of rows: -> (groups, rows, ...)."""
    groups = torch.arange(len(members), device=members.device)

    def pick(values: Tensor) -> Tensor:  # (members, groups * rows, ...)
        return values.view(len(values), len(members), -1, *values.shape[2:])[members, groups]

    logit = of_all.termination_logit
    return Prediction(pick(of_all.mean), pick(of_all.log_variance), None if logit is None else pick(logit))


def _rows_per_elite(setup: Setup[ModelHParams], members_per_row: int) -> int:
    """Return the rows of a group, chosen so that all groups of all parts are about equally full."""
    needed = -(-setup.hparams.rollout_batch_size // setup.hparams.num_elites)
    parts = -(-needed // max(1, MAX_ROWS_PER_ELITE[setup.device.type] // members_per_row))
    return -(-needed // parts)


def _permutation(generator: np.random.Generator, out: np.ndarray) -> None:
    out[:] = generator.permutation(len(out))
