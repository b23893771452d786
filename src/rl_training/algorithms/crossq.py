"""CrossQ: SAC without target networks. Critics value both ends of a transition in one pass, with batch normalisation.

    a' ~ pi(s')
    [Q_i(s, a); Q_i(s', a')] = critic i of the rows [(s, a); (s', a')], normalised by the moments of all of them
    y = r + gamma * (min_i Q_i(s', a') - alpha * log pi(a'|s'))             (no second term after a termination)
    minimise  sum_i (Q_i(s, a) - y)^2
    minimise  alpha * log pi(a|s) - min_i Q_i(s, a),   a ~ pi(s),   at every `policy_delay`-th update
    alpha     as in SAC

Only y is a constant: the gradient flows through the moments into the rows of both halves. The networks normalise by
the moments of the batch where they learn (the critics in the pass above, the actor in its own loss), and their running
moments move there alone. Elsewhere they normalise by their running moments: the actor when it acts and for a', the
critics in the actor's loss.

Bhatt et al. 2024, CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
simplicity. Deviations: docs/algorithms/crossq.md.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from rl_training.algorithms.sac import (
    ApplyActor,
    ApplyCritics,
    first_state,
    learn_temperature,
    learning_rates,
    sac_actor_loss,
)
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError
from rl_training.hparams.crossq import CrossQHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import action_size
from rl_training.learners.checks import BOX_ACTIONS, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network
from rl_training.learners.optim import clipped_adam, descend_part
from rl_training.learners.random_inputs import RandomInput, normal
from rl_training.learners.targets import clip_to_returns, critic_metrics, td_target
from rl_training.models.batch_renorm import FlatMoments
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_crossq import MLPCrossQModel

ByBatch = Callable[..., tuple[Tensor, Tensor]]  # (params, *inputs) -> (outputs, moments of the batch)


def crossq_critic_loss(
    params: Tensor,
    actor_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    gamma: float,
    policy: SquashedGaussian,
    apply_actor: ApplyActor,
    apply_critics: ByBatch,
    clip_targets: bool = False,
) -> Metrics:
    """Compute the critics' loss, its metrics and the `moments` of the joint batch.

    `batch`: as in `sac_critic_loss`.
    """
    check_tensors("crossq_critic_loss", batch, BOX_ACTIONS)
    next_actions, next_log_probs = policy.rsample(apply_actor(actor_params, batch["next_obs"]), batch["next_noise"])
    actions = batch["actions"].reshape(next_actions.shape)
    joint_values, moments = apply_critics(
        params, torch.cat((batch["obs"], batch["next_obs"])), torch.cat((actions, next_actions))
    )
    values, next_values = joint_values.chunk(2, 1)  # (critics, batch) each
    next_values = next_values.amin(0) - alpha * next_log_probs
    discounts = batch.get("discounts", gamma)
    targets = td_target(batch["rewards"], batch["terminated"], next_values, discounts).detach()
    if clip_targets:
        targets = clip_to_returns(targets, gamma)
    return {**critic_metrics(values, targets, batch), "moments": moments}


def crossq_actor_loss(
    params: Tensor,
    critic_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    policy: SquashedGaussian,
    apply_actor: ByBatch,
    apply_critics: ApplyCritics,
) -> Metrics:
    """Compute the actor's loss, its entropy and the `moments` of the batch. `batch`: as in `sac_actor_loss`."""
    outputs, moments = apply_actor(params, batch["obs"])
    metrics = sac_actor_loss(
        params,
        critic_params,
        alpha,
        batch,
        policy=policy,
        apply_actor=lambda params, obs: outputs,
        apply_critics=apply_critics,
    )
    return {**metrics, "moments": moments}


class CrossQ:
    """The recipe. `critic.moments` and `actor.moments` of the state are the running moments of their layers."""

    def __init__(self, model: MLPCrossQModel, setup: Setup[CrossQHParams]) -> None:
        self.hparams = setup.hparams
        self.actor, self.critics = FlatModule(model.actor), FlatModule(model.critics)
        self._networks = {"actor": self.actor, "critic": self.critics}
        self._moments = {"actor": FlatMoments(model.actor), "critic": FlatMoments(model.critics)}
        self.policy = SquashedGaussian(action_field(setup.spaces.action).shape)
        self.explore, self.best = self.policy.sample, self.policy.mode
        target = self.hparams.target_entropy
        self._target_entropy = -float(action_size(setup)) if target == "auto" else target
        betas = {"critic": self.hparams.adam_beta1, "actor": self.hparams.adam_beta1}
        self._optimizers = {
            name: clipped_adam(self.hparams, rate, beta1=betas.get(name, 0.9))
            for name, rate in learning_rates(self.hparams).items()
        }

    def state(self) -> State:
        state = first_state(self.hparams, self.actor, self.critics, self._optimizers)
        for name, moments in self._moments.items():
            count = torch.zeros((), dtype=torch.int64, device=moments.values.device)
            state |= {f"{name}.moments": moments.values, f"{name}.moments_count": count}
        return state

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        noise = RandomInput((rounds * rows, self.policy.size), normal)
        return {"next_noise": noise, **({"noise": noise} if actor else {})}

    def values(self, state: State, obs: Tensor, actions: Tensor) -> Tensor:
        return self._by_running_moments("critic", state)(state["critic.params"], obs, actions)

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> Metrics:
            return crossq_critic_loss(
                params,
                state["actor.params"],
                state["temperature.params"].exp(),
                batch,
                gamma=self.hparams.gamma,
                clip_targets=self.hparams.clip_targets,
                policy=self.policy,
                apply_actor=self._by_running_moments("actor", state),
                apply_critics=self._by_batch("critic", state),
            )

        new, metrics = descend_part("critic", loss, state, self._optimizers["critic"])
        return new | self._moved("critic", state, metrics.pop("moments")), metrics

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        alpha = state["temperature.params"].exp()

        def loss(params: Tensor) -> Metrics:
            return crossq_actor_loss(
                params,
                state["critic.params"],
                alpha,
                batch,
                policy=self.policy,
                apply_actor=self._by_batch("actor", state),
                apply_critics=self._by_running_moments("critic", state),
            )

        new, metrics = descend_part("actor", loss, state, self._optimizers["actor"])
        new |= self._moved("actor", state, metrics.pop("moments"))
        metrics["alpha"] = alpha
        if self.hparams.alpha == "auto":
            excess = metrics["entropy"] - self._target_entropy
            new |= learn_temperature(state, excess, self._optimizers["temperature"])
        return new, metrics

    def _by_running_moments(self, name: str, state: State) -> Callable[..., Tensor]:
        return partial(self._networks[name].apply, buffers=self._moments[name].named(state[f"{name}.moments"]))

    def _by_batch(self, name: str, state: State) -> ByBatch:
        # A tensor, not a Python branch: the compiled and captured step stays the same when warm-up ends.
        corrects = state[f"{name}.moments_count"] >= self.hparams.norm_warmup
        buffers = self._moments[name].named(state[f"{name}.moments"])
        return lambda params, *inputs: self._networks[name].apply(params, *inputs, corrects, buffers=buffers)

    def _moved(self, name: str, state: State, batch_moments: Tensor) -> State:
        """Return the running moments after a batch."""
        return {
            f"{name}.moments": torch.lerp(state[f"{name}.moments"], batch_moments, self.hparams.norm_rate),
            f"{name}.moments_count": state[f"{name}.moments_count"] + 1,
        }


def build_crossq(setup: Setup[CrossQHParams]) -> ActorCritic:
    if setup.network is not None:
        raise ConfigError("crossq does not accept a network: the running moments of its layers are part of its state")

    def build() -> MLPCrossQModel:
        return MLPCrossQModel(
            lambda: build_encoder(setup.spaces.observation),
            action_size(setup),
            setup.hparams.hidden_sizes,
            setup.hparams.critic_hidden_sizes,
        )

    model = build_network(setup, build)
    assert isinstance(model, MLPCrossQModel)
    return ActorCritic(CrossQ(model, setup), setup)
