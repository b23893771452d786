"""ReBRAC and TD3+BC: TD3 on a dataset, with penalties that keep the policy near the dataset's actions.

    a' = clip(pi_target(s') + clip(noise, -c, c), -1, 1)
    y = r + gamma * (min_i Q_target_i(s', a') - beta_2 * |a' - a'_data|^2)   (no second term after a termination)
    minimise  sum_i (Q_i(s, a) - y)^2
    minimise  beta_1 * |pi(s) - a|^2 - Q(s, pi(s)) / mean |Q(s, pi(s))|,     Q = min_i Q_i
              at every `policy_delay`-th update; the target networks move then, too

The divisor is a constant of the batch: beta_1 means the same for rewards of any size. TD3+BC has Q = Q_1, beta_2 = 0
and beta_1 = 1 / (alpha * dim(A)): its own loss is alpha times this one, and Adam's steps do not depend on a factor.

Tarasov et al. 2023, Revisiting the minimalist approach to offline reinforcement learning; Fujimoto and Gu 2021, A
minimalist approach to offline reinforcement learning. Deviations: docs/algorithms/rebrac.md.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from rl_training.algorithms.sac import CriticEstimate, minimum_over_critics
from rl_training.algorithms.td3 import TD3, ApplyActor, ApplyCritics, smoothed_actions
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.rebrac import ReBRACHParams, TD3BCHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import action_size, build_model
from rl_training.learners.checks import BOX_ACTIONS, check_tensors
from rl_training.learners.targets import critic_metrics, td_target
from rl_training.models.mlp_rebrac import MLPReBRACModel
from rl_training.models.mlp_td3 import MLPTD3Model

REBRAC_BATCH = {**BOX_ACTIONS, "next_actions": BOX_ACTIONS["actions"]}


def squared_distances(actions: Tensor, data_actions: Tensor) -> Tensor:
    """Return the sum of squared differences over the numbers of an action: (batch, numbers), (batch, *action)."""
    return (actions - data_actions.reshape(len(data_actions), -1)).square().sum(1)


def rebrac_critic_loss(
    params: Tensor,
    target_params: Tensor,
    target_actor_params: Tensor,
    batch: Batch,
    hparams: ReBRACHParams,
    *,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
) -> Metrics:
    """Compute the critics' loss and its metrics.

    `batch`: obs, next_obs, actions, next_actions, rewards (batch,), terminated (batch,) bool, next_noise (batch,
    numbers).
    """
    check_tensors("rebrac_critic_loss", batch, REBRAC_BATCH)
    next_actions = smoothed_actions(target_actor_params, batch, hparams, apply_actor)
    next_q = apply_critics(target_params, batch["next_obs"], next_actions).amin(0)
    penalties = hparams.critic_penalty * squared_distances(next_actions, batch["next_actions"])
    targets = td_target(batch["rewards"], batch["terminated"], next_q - penalties, hparams.gamma).detach()
    return critic_metrics(apply_critics(params, batch["obs"], batch["actions"]), targets, batch)


def rebrac_actor_loss(
    params: Tensor,
    critic_params: Tensor,
    batch: Batch,
    *,
    penalty: float,
    estimate: CriticEstimate,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
) -> Metrics:
    """Compute the actor's loss, and the mean squared error to the dataset's actions. `batch`: obs, actions."""
    check_tensors("rebrac_actor_loss", batch, {name: BOX_ACTIONS[name] for name in ("obs", "actions")})
    actions = apply_actor(params, batch["obs"]).tanh()
    q_values = estimate(partial(apply_critics, critic_params, batch["obs"], actions), batch)
    distances = squared_distances(actions, batch["actions"])
    return {
        "loss": penalty * distances.mean() - q_values.mean() / q_values.detach().abs().mean(),
        "action_error": distances.detach().mean() / actions.shape[1],
    }


def first_critic(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    return values_of(slice(0, 1)).squeeze(0)


def build_rebrac(setup: Setup[ReBRACHParams]) -> ActorCritic:
    actor_loss = partial(rebrac_actor_loss, penalty=setup.hparams.actor_penalty, estimate=minimum_over_critics)
    model = build_model(setup, MLPReBRACModel, num_critics=2)
    return ActorCritic(TD3(model, setup, critic_loss=rebrac_critic_loss, actor_loss=actor_loss), setup)


def build_td3_bc(setup: Setup[TD3BCHParams]) -> ActorCritic:
    penalty = 1.0 / (setup.hparams.alpha * action_size(setup))
    actor_loss = partial(rebrac_actor_loss, penalty=penalty, estimate=first_critic)
    model = build_model(setup, MLPTD3Model, num_critics=2, by_member=True)
    return ActorCritic(TD3(model, setup, actor_loss=actor_loss), setup)
