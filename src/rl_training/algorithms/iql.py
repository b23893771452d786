"""IQL: values of the dataset's actions, and a policy that imitates the better ones; no other action is evaluated.

    minimise  E_tau(min_i Q_target_i(s, a) - V(s)),    E_tau(u) = |tau - 1{u < 0}| u^2     (V: the tau-expectile of Q)
    maximise  min(exp(beta * A), 100) * log pi(a|s),   A = min_i Q_target_i(s, a) - V(s)
    minimise  sum_i (Q_i(s, a) - y)^2,                 y = r + gamma * V(s')   (no second term after a termination)

in this order, each with the result of the one before; then the target critics move. Kostrikov et al. 2022, Offline
reinforcement learning with implicit Q-learning. Deviations are in docs/algorithms/iql.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import Batch, Metrics, State, without_td_errors
from rl_training.hparams.iql import ExpectileHParams
from rl_training.learners.checks import BOX_ACTIONS, FLOATS, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.member_settings import hparams_in
from rl_training.learners.networks import build_network, check_output, submodules
from rl_training.learners.offline import OfflineLearner, trial_inputs
from rl_training.learners.optim import clipped_adam, descend_part, named_part, polyak
from rl_training.learners.targets import critic_metrics, td_target
from rl_training.models.distributions import Distribution
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.models.mlp_policy import policy_distribution

ROWS = Expected(FLOATS, "batch")
IQL_BATCH = {**BOX_ACTIONS, "q_values": ROWS, "advantages": ROWS, "next_values": ROWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """The networks as functions of their parameters, and the distribution that the policy's outputs stand for."""

    actor: Callable[[Tensor, Tensor], Tensor]  # (params, obs) -> (batch, outputs)
    critics: Callable[[Tensor, Tensor, Tensor], Tensor]  # (params, obs, actions) -> (critics, batch)
    value: Callable[[Tensor, Tensor], Tensor]  # (params, obs) -> (batch,)
    policy: Distribution


def expectile_loss(values: Tensor, targets: Tensor, expectile: float) -> Tensor:
    """Compute the asymmetric squared error, whose minimiser is the expectile of `targets`. Both (batch,).

    0.5 gives half the mean squared error; above 0.5, a value that is too small costs more than one that is too large.
    """
    check_tensors("expectile_loss", {"values": values, "targets": targets}, {"values": ROWS, "targets": ROWS})
    errors = targets - values
    weights = torch.where(errors < 0.0, 1.0 - expectile, expectile)
    return (weights * errors.square()).mean()


def iql_value_loss(
    params: Tensor, q_values: Tensor, batch: Batch, hparams: ExpectileHParams, networks: Networks
) -> Metrics:
    """Compute V's loss and its metrics. `q_values`: (batch,), the critic estimate of the dataset's actions."""
    check_tensors("iql_value_loss", {**batch, "q_values": q_values}, IQL_BATCH)
    values = networks.value(params, batch["obs"])
    return {"loss": expectile_loss(values, q_values, hparams.expectile), "value_mean": values.detach().mean()}


def iql_actor_loss(
    params: Tensor, advantages: Tensor, batch: Batch, hparams: ExpectileHParams, networks: Networks
) -> Metrics:
    """Compute the policy's loss: the log-likelihood of the dataset's actions, weighted by `advantages`, (batch,)."""
    check_tensors("iql_actor_loss", {**batch, "advantages": advantages}, IQL_BATCH)
    # Clipped before the exponential, which would overflow: the same weights.
    exponents = (hparams.beta * advantages).clamp(max=math.log(hparams.max_advantage_weight))
    weights = exponents.exp()
    log_probs, _ = networks.policy.evaluate(networks.actor(params, batch["obs"]), batch["actions"], None)
    return {
        "loss": -(weights * log_probs).mean(),
        "log_likelihood": log_probs.detach().mean(),
        "advantage_mean": advantages.mean(),
        "advantage_weight_mean": weights.mean(),
    }


def iql_critic_loss(
    params: Tensor, next_values: Tensor, batch: Batch, hparams: ExpectileHParams, networks: Networks
) -> Metrics:
    """Compute the critics' loss and its metrics. `next_values`: (batch,), V of the next observations."""
    check_tensors("iql_critic_loss", {**batch, "next_values": next_values}, IQL_BATCH)
    targets = td_target(batch["rewards"], batch["terminated"], next_values, hparams.gamma)
    metrics = critic_metrics(networks.critics(params, batch["obs"], batch["actions"]), targets, batch)
    return without_td_errors(metrics)


def minimum_of_targets(target_params: Tensor, batch: Batch, networks: Networks) -> Tensor:
    """Return the smaller of the target critics' values of the dataset's actions, (batch,)."""
    return networks.critics(target_params, batch["obs"], batch["actions"]).amin(0)


def iql_loss(state: State, batch: Batch, hparams: ExpectileHParams, networks: Networks) -> Metrics:
    """Compute all three losses with the present parameters, and their sum; used to evaluate held-out data.

    `state`: actor.params, critic.params, value.params, target_critic. `batch`: obs, next_obs, actions, rewards
    (batch,), terminated (batch,) bool.
    """
    q_values, values = minimum_of_targets(state["target_critic"], batch, networks), state["value.params"]
    advantages = (q_values - networks.value(values, batch["obs"])).detach()
    next_values = networks.value(values, batch["next_obs"]).detach()
    parts = {
        "value": iql_value_loss(values, q_values.detach(), batch, hparams, networks),
        "actor": iql_actor_loss(state["actor.params"], advantages, batch, hparams, networks),
        "critic": iql_critic_loss(state["critic.params"], next_values, batch, hparams, networks),
    }
    metrics = {f"{part}_loss" if key == "loss" else key: m for part, ms in parts.items() for key, m in ms.items()}
    return {"loss": metrics["value_loss"] + metrics["actor_loss"] + metrics["critic_loss"], **metrics}


class IQL:
    """The recipe."""

    def __init__(self, model: nn.Module, setup: Setup[ExpectileHParams]) -> None:
        self.hparams = setup.hparams
        self.actor, self.critics = FlatModule(model.actor), FlatModule(model.critics)  # type: ignore[arg-type]
        self.value = FlatModule(model.value)  # type: ignore[arg-type]
        self.networks = Networks(
            actor=self.actor.apply,
            critics=self.critics.apply,
            value=self.value.apply,
            policy=policy_distribution(setup.spaces.action),
        )
        self._optimizer = clipped_adam(setup.hparams, setup.hparams.learning_rate)

    def state(self) -> State:
        state = {"target_critic": self.critics.params.clone()}
        for name, module in (("value", self.value), ("actor", self.actor), ("critic", self.critics)):
            state |= named_part(name, self._optimizer.state(module.params))
        return state

    def learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        hparams, networks, optimizer = hparams_in(state, self.hparams), self.networks, self._optimizer
        q_values = minimum_of_targets(state["target_critic"], batch, networks)
        new, metrics = descend_part(
            "value", lambda params: iql_value_loss(params, q_values, batch, hparams, networks), state, optimizer
        )
        both = torch.cat((batch["obs"], batch["next_obs"]))
        values, next_values = networks.value(new["value.params"], both).chunk(2)
        actor, more = descend_part(
            "actor",
            lambda params: iql_actor_loss(params, q_values - values, batch, hparams, networks),
            state,
            optimizer,
        )
        critic, most = descend_part(
            "critic", lambda params: iql_critic_loss(params, next_values, batch, hparams, networks), state, optimizer
        )
        target = polyak(state["target_critic"], critic["critic.params"], hparams.tau)
        return {**new, **actor, **critic, "target_critic": target}, {**metrics, **more, **most}

    def evaluate_offline(self, state: State, batch: Batch) -> Metrics:
        metrics = iql_loss(state, batch, self.hparams, self.networks)
        return {"log_likelihood": metrics["log_likelihood"], "value_error": metrics["td_error_mean"]}


def build_iql(setup: Setup[ExpectileHParams]) -> OfflineLearner:
    return OfflineLearner(IQL(build_iql_model(setup), setup), setup)


def build_iql_model(setup: Setup[ExpectileHParams]) -> nn.Module:
    """Return the user's networks, or new ones for the run's spaces."""
    hparams, spaces = setup.hparams, setup.spaces

    def build() -> nn.Module:
        return MLPIQLModel(
            lambda: build_encoder(spaces.observation),
            spaces.action,  # type: ignore[arg-type]
            hparams.hidden_sizes,
            layer_norm=hparams.layer_norm,
            residual=hparams.network == "simba",
            orthogonal=hparams.orthogonal_init,
            log_std_init=hparams.log_std_init,
        )

    return build_network(setup, build, lambda network: _check_networks(network, setup))


def _check_networks(network: nn.Module, setup: Setup[ExpectileHParams]) -> None:
    actor, critics, value = submodules(network, ("actor", "critics", "value"))
    obs = trial_inputs(setup)
    actions = torch.zeros((len(obs), *action_field(setup.spaces.action).shape), device=setup.device)
    outputs = policy_distribution(setup.spaces.action).num_outputs
    check_output(actor, (obs,), {"observations": 2, "outputs": outputs}, "actor")
    check_output(critics, (obs, actions), {"critics": 2, "observations": 2}, "critics")
    check_output(value, (obs,), {"observations": 2}, "value")
