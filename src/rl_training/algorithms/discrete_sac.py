"""Discrete SAC: SAC for choices; all expectations over actions are exact sums.

    V(s') = sum_a pi(a|s') (Q(s', a) - alpha * log pi(a|s')),   Q = min (or mean) over two target critics
    y = r + gamma * V(s')                                                  (no second term after a termination)
    minimise  sum_i (Q_i(s, a) - y)^2
    minimise  sum_a pi(a|s) (alpha * log pi(a|s) - Q(s, a)),   Q = min (or mean) over both critics
    alpha     rises while the entropy of pi is below c * log K, falls while it is above;   K: number of actions

Christodoulou 2019, Soft actor-critic for discrete action settings. Deviations are in docs/algorithms/discrete_sac.md.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.sac import first_state, learn_temperature, learning_rates
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics, State
from rl_training.hparams.discrete_sac import CriticsEstimate, DiscreteSACHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network, check_output, submodules, trial_obs
from rl_training.learners.optim import clipped_adam, descend_part, polyak
from rl_training.learners.random_inputs import RandomInput
from rl_training.learners.scaling import normalizes
from rl_training.learners.targets import clip_to_returns, critic_metrics, td_target
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_discrete_sac import MLPDiscreteSACModel

NUM_CRITICS = 2
# (params, obs) -> logits of the actor, (batch, actions); values of the critics, (critics, batch, actions).
Apply = Callable[[Tensor, Tensor], Tensor]


def target_entropy(hparams: DiscreteSACHParams, num_actions: int) -> float:
    """Return the entropy that `alpha: auto` aims at: a share of log K, that of the uniform policy."""
    ratio = hparams.target_entropy_ratio
    if ratio == "auto":
        ratio = 0.7 if num_actions <= 4 else 0.89  # of few actions a good policy needs to know better
    return ratio * math.log(num_actions)


def _reduced(values: Tensor, estimate: CriticsEstimate) -> Tensor:
    """Return one value per action: (critics, batch, actions) -> (batch, actions)."""
    return values.amin(0) if estimate == "min" else values.mean(0)


def _of_actions(values: Tensor, actions: Tensor) -> Tensor:
    """Return the values of one action per row: (critics, batch, actions), (batch,) -> (critics, batch).

    Not by `gather`: its gradient adds with atomics, which is slow in the deterministic mode of a GPU.
    """
    is_chosen = actions[:, None] == torch.arange(values.shape[2], device=values.device)
    return torch.where(is_chosen, values, 0.0).sum(2)


def discrete_sac_critic_loss(
    params: Tensor,
    target_params: Tensor,
    actor_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    gamma: float,
    estimate: CriticsEstimate,
    apply_actor: Apply,
    apply_critics: Apply,
    clip_targets: bool = False,
) -> Metrics:
    """Compute the critics' loss and its metrics.

    `batch`: obs, next_obs, actions (batch,) int64, rewards (batch,), terminated (batch,) bool, and optionally discounts
    and weights (batch,).
    """
    check_tensors("discrete_sac_critic_loss", batch, CHOICES)
    log_probs = apply_actor(actor_params, batch["next_obs"]).log_softmax(1)
    next_q = _reduced(apply_critics(target_params, batch["next_obs"]), estimate)
    next_values = (log_probs.exp() * (next_q - alpha * log_probs)).sum(1)
    discounts = batch.get("discounts", gamma)
    targets = td_target(batch["rewards"], batch["terminated"], next_values, discounts).detach()
    if clip_targets:
        targets = clip_to_returns(targets, gamma)
    values = _of_actions(apply_critics(params, batch["obs"]), batch["actions"])
    return critic_metrics(values, targets, batch)


def discrete_sac_actor_loss(
    params: Tensor,
    critic_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    estimate: CriticsEstimate,
    apply_actor: Apply,
    apply_critics: Apply,
) -> Metrics:
    """Compute the actor's loss and its entropy, summed over actions and averaged over rows. `batch`: obs."""
    log_probs = apply_actor(params, batch["obs"]).log_softmax(1)
    probs = log_probs.exp()
    q_values = _reduced(apply_critics(critic_params, batch["obs"]), estimate).detach()
    loss = (probs * (alpha * log_probs - q_values)).sum(1).mean()
    return {"loss": loss, "entropy": -(probs * log_probs).detach().sum(1).mean()}


class DiscreteSAC:
    """The recipe. It needs no random inputs."""

    def __init__(self, model: nn.Module, setup: Setup[DiscreteSACHParams]) -> None:
        self.hparams = hparams = setup.hparams
        self.actor, self.critics = FlatModule(model.actor), FlatModule(model.critics)  # type: ignore[arg-type]
        self._target_entropy = target_entropy(hparams, setup.spaces.num_actions)
        self._optimizers = {name: clipped_adam(hparams, rate) for name, rate in learning_rates(hparams).items()}

    def state(self) -> State:
        learned = first_state(self.hparams, self.actor, self.critics, self._optimizers)
        return {"target_critic": self.critics.params.clone(), **learned}

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        return {}

    def explore(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        actions: np.ndarray = (outputs + noise).argmax(1)
        return actions

    def best(self, outputs: np.ndarray) -> np.ndarray:
        actions: np.ndarray = outputs.argmax(1)
        return actions

    def values(self, state: State, obs: Tensor, actions: Tensor) -> Tensor:
        return _of_actions(self.critics.apply(state["critic.params"], obs), actions)

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        alpha, own = state["temperature.params"].exp(), self.hparams.critic_entropy

        def loss(params: Tensor) -> Metrics:
            return discrete_sac_critic_loss(
                params,
                state["target_critic"],
                state["actor.params"],
                alpha if own == "auto" else torch.full_like(alpha, own),
                batch,
                gamma=self.hparams.gamma,
                clip_targets=self.hparams.clip_targets,
                estimate=self.hparams.critics_estimate,
                apply_actor=self.actor.apply,
                apply_critics=self.critics.apply,
            )

        new, metrics = descend_part("critic", loss, state, self._optimizers["critic"])
        new["target_critic"] = polyak(state["target_critic"], new["critic.params"], self.hparams.tau)
        return new, metrics

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        alpha = state["temperature.params"].exp()

        def loss(params: Tensor) -> Metrics:
            return discrete_sac_actor_loss(
                params,
                state["critic.params"],
                alpha,
                batch,
                estimate=self.hparams.critics_estimate,
                apply_actor=self.actor.apply,
                apply_critics=self.critics.apply,
            )

        new, metrics = descend_part("actor", loss, state, self._optimizers["actor"])
        metrics["alpha"] = alpha
        if self.hparams.alpha == "auto":
            new |= learn_temperature(state, metrics["entropy"] - self._target_entropy, self._optimizers["temperature"])
            # Deviation: values grow with alpha, and alpha with the values, if the entropy cannot be reached.
            new["temperature.params"] = new["temperature.params"].clamp(max=math.log(self.hparams.max_alpha))
        return new, metrics


def build_discrete_sac(setup: Setup[DiscreteSACHParams]) -> ActorCritic:
    hparams = setup.hparams

    def build() -> nn.Module:
        return MLPDiscreteSACModel(
            lambda: build_encoder(setup.spaces.observation),
            setup.spaces.num_actions,
            hparams.hidden_sizes,
            num_critics=NUM_CRITICS,
            layer_norm=hparams.layer_norm,
            residual=hparams.network == "simba",
        )

    def check(network: nn.Module) -> None:
        actor, critics = submodules(network, ("actor", "critics"))
        obs = trial_obs(setup, np.float32 if normalizes(setup) else None)
        sizes = {"observations": 2, "actions": setup.spaces.num_actions}
        check_output(actor, (obs,), sizes, "actor")
        check_output(critics, (obs,), {"critics": NUM_CRITICS, **sizes}, "critics")

    return ActorCritic(DiscreteSAC(build_network(setup, build, check), setup), setup)
