"""An ensemble of dynamics models that MBPO and MOPO fit to transitions.

    minimise  mean of (mu - y)^2 / sigma^2 + log sigma^2,   y = (s' - s, r)      (twice the negative log-likelihood)

on bootstrapped data for each member, until no member improves on the held-out set; the best members are elites.

Chua et al. 2018, Deep reinforcement learning in a handful of trials; the details are those of Janner et al. 2019, When
to trust your model. Deviations are in docs/algorithms/mbpo.md.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.acceleration.steps import accelerate
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field, observation_field
from rl_training.core.types import Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.mbpo import ModelHParams
from rl_training.learners.checks import FLOATS, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_seeded
from rl_training.learners.optim import ClippedAdam, descend
from rl_training.learners.saved_state import load_tensors
from rl_training.models.mlp_mopo import MLPMOPOEnsembleModel, Prediction, is_member_parameter, pick_members

WEIGHT_DECAYS = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)  # per layer, of four hidden ones and the last
BOUNDS_COEF = 0.01  # weight of the distance between the bounds of the log-variances
MAX_HELD_OUT = 5_000  # transitions
MIN_IMPROVEMENT = 0.01  # share by which a member's error must fall
TINY_STD = 1e-6  # inputs that vary less count as constant
HOLDOUT_ROWS = 256  # evaluated at a time

MEMBER_ROWS = {
    "obs": Expected(FLOATS, "members rows obs"),
    "actions": Expected(FLOATS, "members rows actions"),
    "targets": Expected(FLOATS, "members rows outputs"),
    "terminated": Expected(FLOATS, "members rows"),
}

OnEpoch = Callable[[Metrics], None]  # called after every epoch of a fit with the metrics so far


def weight_decays(num_layers: int) -> list[float]:
    """Spread the paper's weight decays, which grow towards the last of five layers, over any number of layers."""
    places = np.linspace(0.0, 1.0, num_layers), np.linspace(0.0, 1.0, len(WEIGHT_DECAYS))
    return [float(decay) for decay in np.interp(*places, WEIGHT_DECAYS)]


def ensemble_loss(
    params: Tensor, batch: Batch, model: FlatModule, decays: Sequence[float], statistics: Mapping[str, Tensor]
) -> Metrics:
    """Compute the loss of one minibatch of every member and its metrics.

    `batch`: obs, actions, targets (members, rows, numbers), terminated (members, rows) of 0 and 1; the targets are
    next_obs - obs and, last, the reward. Means over rows and outputs are summed over the members: each then learns as
    if it were alone. `decays`: weight decay of each layer, halved as is usual; `statistics`: the model's buffers.
    """
    check_tensors("ensemble_loss", batch, MEMBER_ROWS)
    prediction: Prediction = model.apply(params, batch["obs"], batch["actions"], buffers=statistics)
    squared_error = (prediction.mean - batch["targets"]).square()
    likelihood_loss = (squared_error * (-prediction.log_variance).exp() + prediction.log_variance).mean((1, 2)).sum()
    named = model.named(params)
    weights = [value for name, value in named.items() if is_member_parameter(name) and name.endswith(".weight")]
    decay_loss = sum(0.5 * decay * weight.square().sum() for decay, weight in zip(decays, weights, strict=True))
    bounds_loss = BOUNDS_COEF * (named["max_log_variance"].sum() - named["min_log_variance"].sum())
    metrics = {"model_mse": squared_error.detach().mean(), "likelihood_loss": likelihood_loss.detach()}
    loss = likelihood_loss + bounds_loss + decay_loss
    if prediction.termination_logit is not None:
        rows = F.binary_cross_entropy_with_logits(prediction.termination_logit, batch["terminated"], reduction="none")
        termination_loss = rows.mean(1).sum()
        loss, metrics["termination_loss"] = loss + termination_loss, termination_loss.detach()
    return {"loss": loss, **metrics}


class DynamicsEnsemble:
    """Learns from all transitions at each `fit`, from where the previous fit ended."""

    def __init__(self, model: MLPMOPOEnsembleModel, setup: Setup[ModelHParams], *, identity: str | None) -> None:
        self.hparams = hparams = setup.hparams
        self.num_fits = 0
        self._device = setup.device
        self.generator = setup.streams.numpy("model")
        self.model = FlatModule(model.to(setup.device))
        self._decays = weight_decays(len(hparams.model_hidden_sizes) + 1)
        self._optimizer = ClippedAdam(learning_rate=hparams.model_learning_rate, eps=1e-8, max_grad_norm=None)
        self.state = {
            **self._optimizer.state(self.model.params),
            "input_mean": model.input_mean,  # the module's own, so that it follows
            "input_std": model.input_std,
            "elites": torch.arange(hparams.num_elites, device=setup.device),
        }
        obs_size = model.num_outputs - 1
        action_size = len(model.input_mean) - obs_size
        self._columns = [obs_size, action_size, obs_size + 1, 1]  # of a table: obs, actions, targets, terminated
        shape = (hparams.num_ensembles * hparams.model_batch_size, sum(self._columns))
        self._minibatch = torch.zeros(shape, device=setup.device)
        self._learn = accelerate(self._learning_step, setup.acceleration, "model update", identity=identity)
        self._evaluate = accelerate(self._holdout_step, setup.acceleration, "model evaluation", identity=identity)

    def fit(self, transitions: Mapping[str, np.ndarray], on_epoch: OnEpoch | None = None) -> UpdateResult:
        """Learn from N >= 2 transitions: obs, actions, rewards, next_obs, terminated, each of N rows."""
        table = self._table(transitions)
        order = torch.from_numpy(self.generator.permutation(len(table))).to(self._device)
        held_out = max(1, min(int(self.hparams.model_holdout_ratio * len(table)), MAX_HELD_OUT))
        holdout, training = table[order[:held_out]], table[order[held_out:]]
        self._set_statistics(training)
        members = self.hparams.num_ensembles
        bootstraps = self.generator.integers(len(training), size=(members, len(training)))
        best, least_errors = self.model.params.clone(), np.full(members, np.inf)
        epochs, steps, fruitless = 0, 0, 0
        while epochs < self.hparams.model_max_epochs and fruitless < self.hparams.model_patience:
            history = [self._learn(self.state, {"rows": rows}) for rows in self._minibatches(training, bootstraps)]
            errors = self.holdout_errors(holdout)
            # The first epoch always counts as better: the old weights may have seen rows that are held out now.
            improved = errors < (1.0 - MIN_IMPROVEMENT) * least_errors
            self._copy_members(self.model.params, best, improved)
            least_errors = np.where(improved, errors, least_errors)
            epochs, steps, fruitless = epochs + 1, steps + len(history), 0 if improved.any() else fruitless + 1
            elites = np.argsort(least_errors, kind="stable")[: self.hparams.num_elites]
            metrics = {name: torch.stack([step[name] for step in history]).mean() for name in history[0]}
            metrics["model_loss"] = metrics.pop("loss")
            metrics["holdout_mse"] = torch.tensor(least_errors[elites].mean())
            metrics["model_epochs"] = torch.tensor(epochs)
            if on_epoch is not None:
                on_epoch(metrics)
        self._copy_members(best, self.model.params, np.ones(members, np.bool_))
        self.state["elites"].copy_(torch.from_numpy(elites))
        self.num_fits += 1
        return UpdateResult(metrics, num_gradient_steps=steps)

    def holdout_errors(self, table: Tensor) -> np.ndarray:
        """Return each member's squared error on rows of a table, mean over rows and outputs: (members,)."""
        total = torch.zeros(self.hparams.num_ensembles, device=self._device)
        batch = {
            "rows": self._minibatch.new_zeros(HOLDOUT_ROWS, table.shape[1]),
            "weights": total.new_zeros(HOLDOUT_ROWS),
        }
        for rows in torch.split(table, HOLDOUT_ROWS):
            batch["rows"][: len(rows)] = rows
            batch["weights"].copy_(torch.arange(HOLDOUT_ROWS) < len(rows))  # the last part is not whole
            total += self._evaluate(self.state, batch)["errors"]
        errors: np.ndarray = (total / len(table)).cpu().numpy().astype(np.float64)
        return errors

    def elites_error(self, transitions: Mapping[str, np.ndarray]) -> float:
        """Return the elites' squared error on any transitions, mean over rows and outputs."""
        errors = self.holdout_errors(self._table(transitions))
        return float(errors[self.state["elites"].cpu().numpy()].mean())

    def predict(self, state: State, obs: Tensor, actions: Tensor, members: Tensor) -> Prediction:
        """Predict each group of rows by one member: (groups, rows, numbers), members (groups,). Pure."""
        named = pick_members(self.model.named(state["params"]), members)
        values = {**named, **_statistics(state)}
        prediction: Prediction = torch.func.functional_call(self.model.module, values, (obs, actions))
        return prediction

    def predict_by_all(self, state: State, obs: Tensor, actions: Tensor) -> Prediction:
        """Predict all rows by every member: (rows, numbers) -> (members, rows, ...). Pure."""
        prediction: Prediction = self.model.apply(state["params"], obs, actions, buffers=_statistics(state))
        return prediction

    def state_dict(self) -> StateDict:
        return {**self.state, "num_fits": self.num_fits, "generator": generator_state(self.generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.state, state)
        self.num_fits = int(state["num_fits"])
        set_generator_state(self.generator, state["generator"])

    def _table(self, transitions: Mapping[str, np.ndarray]) -> Tensor:
        """Return a table with one row per transition: everything that a fit needs."""
        obs, next_obs, actions = (
            torch.from_numpy(transitions[name]).flatten(1) for name in ("obs", "next_obs", "actions")
        )
        rewards, terminated = (torch.from_numpy(transitions[name])[:, None] for name in ("rewards", "terminated"))
        return torch.cat((obs, actions, next_obs - obs, rewards, terminated), 1).float().to(self._device)

    def _set_statistics(self, table: Tensor) -> None:
        inputs = table[:, : sum(self._columns[:2])].double()
        std = inputs.std(0, correction=0)
        self.state["input_mean"].copy_(inputs.mean(0))
        self.state["input_std"].copy_(torch.where(std < TINY_STD, 1.0, std))

    def _minibatches(self, table: Tensor, bootstraps: np.ndarray) -> Iterator[Tensor]:
        """Yield each member's bootstrap once in a new order; the last minibatch is filled up from the first."""
        size = self.hparams.model_batch_size
        order = self.generator.permuted(bootstraps, axis=1)
        order = np.pad(order, ((0, 0), (0, -order.shape[1] % size)), mode="wrap")
        parts = order.reshape(len(order), -1, size).swapaxes(0, 1)  # (minibatches, members, size)
        for indices in torch.from_numpy(parts.reshape(len(parts), -1)).to(self._device):
            torch.index_select(table, 0, indices, out=self._minibatch)
            yield self._minibatch

    def _copy_members(self, source: Tensor, target: Tensor, members: np.ndarray) -> None:
        """Copy the weights of the members marked with True; all members share the bounds of the variances."""
        marked = torch.from_numpy(members).to(self._device)
        views = self.model.named(target)
        for name, value in self.model.named(source).items():
            if is_member_parameter(name):
                views[name][marked] = value[marked]

    def _learning_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        named = self._named(batch["rows"].view(self.hparams.num_ensembles, -1, sum(self._columns)))

        def loss(params: Tensor) -> Metrics:
            return ensemble_loss(params, named, self.model, self._decays, _statistics(state))

        return descend(loss, state, self._optimizer)

    def _holdout_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        rows = self._named(batch["rows"])
        prediction = self.predict_by_all(state, rows["obs"], rows["actions"])
        errors = (prediction.mean - rows["targets"]).square().mean(2)  # (members, rows)
        return {}, {"errors": (errors * batch["weights"]).sum(1)}

    def _named(self, rows: Tensor) -> Batch:
        obs, actions, targets, terminated = torch.split(rows, self._columns, -1)
        return {"obs": obs, "actions": actions, "targets": targets, "terminated": terminated.squeeze(-1)}


def _statistics(state: State) -> State:
    """Return the model's buffers, which normalise its inputs."""
    return {name: state[name] for name in ("input_mean", "input_std")}


def build_ensemble(
    setup: Setup[ModelHParams], *, learned_termination: bool, identity: str | None = None
) -> DynamicsEnsemble:
    """Build an ensemble for the run's spaces; `identity` is handed to `accelerate`."""

    def build() -> MLPMOPOEnsembleModel:
        return MLPMOPOEnsembleModel(
            math.prod(observation_field(setup.spaces.observation).shape),
            math.prod(action_field(setup.spaces.action).shape),
            setup.hparams.model_hidden_sizes,
            num_members=setup.hparams.num_ensembles,
            learned_termination=learned_termination,
        )

    model = build_seeded(setup.streams.integer("model"), build, setup.device)
    return DynamicsEnsemble(model, setup, identity=identity)
