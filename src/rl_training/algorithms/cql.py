"""CQL: SAC on a dataset, whose critics learn low values for actions that the dataset does not contain.

    a' ~ pi(s')
    y = r + gamma * min_i Q_target_i(s', a')                                  (no second term after a termination)
    minimise  sum_i (Q_i(s, a) - y)^2 + w * sum_i (log sum_j exp(Q_i(s, a_j)) / q(a_j) - Q_i(s, a))
              a_j: N uniform actions, N of pi(s) and N of pi(s'), all valued at s; q: their densities
    minimise  alpha * log pi(a|s) - min_i Q_i(s, a),   a ~ pi(s)
    alpha     as in SAC

The sum estimates the integral of exp Q over all actions: w lowers the values of all of them and raises those of the
dataset. With w = 0 and entropy in the target it is SAC.

Cal-QL: in the sum, max(Q_i(s, a_j), G) replaces Q_i(s, a_j) for the actions of pi, where G is the return that follows
(s, a) in the data (data/returns_to_go.py). Values then do not fall below those of the policy that collected the data,
and do not have to rise again when learning continues in the environment.

Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning. Deviations: docs/algorithms/cql.md.
Nakamoto et al. 2023, Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning: cal_ql.md there.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from rl_training.algorithms.sac import (
    SAC,
    ApplyActor,
    ApplyCritics,
    CriticEstimate,
    minimum_over_critics,
    sac_critic_loss,
)
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.cql import ConservativeHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import action_size, build_model
from rl_training.learners.checks import FLOATS, Expected, check_tensors
from rl_training.learners.random_inputs import RandomInput, normal, uniform
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.mlp_sac import MLPSACModel

SAMPLES = {
    "uniform_numbers": Expected(FLOATS, "batch actions numbers"),
    "policy_noise": Expected(FLOATS, "batch actions numbers"),
    "next_policy_noise": Expected(FLOATS, "batch actions numbers"),
}


def sampled_actions(
    actor_params: Tensor, batch: Batch, *, policy: SquashedGaussian, apply_actor: ApplyActor
) -> tuple[Tensor, Tensor]:
    """Return N uniform actions, N of the policy at obs and N at next_obs per row, and their log-densities.

    (batch, 3 N, numbers) and (batch, 3 N). `batch`: obs, next_obs, uniform_numbers in [0, 1) and the two noises, each
    (batch, N, numbers).
    """
    check_tensors("cql_critic_loss", batch, SAMPLES)
    shares = batch["uniform_numbers"]
    actions, log_densities = [shares * 2.0 - 1.0], [shares.new_full(shares.shape[:2], -math.log(2.0) * shares.shape[2])]
    for obs, noise in ((batch["obs"], batch["policy_noise"]), (batch["next_obs"], batch["next_policy_noise"])):
        outputs = apply_actor(actor_params, obs).repeat_interleave(noise.shape[1], 0)
        drawn, log_probs = policy.rsample(outputs, noise.flatten(0, 1))
        actions.append(drawn.view(noise.shape))
        log_densities.append(log_probs.view(noise.shape[:2]))
    return torch.cat(actions, 1).detach(), torch.cat(log_densities, 1).detach()


def conservative_gap(
    params: Tensor, actions: Tensor, log_densities: Tensor, batch: Batch, apply_critics: ApplyCritics
) -> Tensor:
    """Return log sum exp of the critics' values of sampled actions minus the value of the dataset's: (critics, batch).

    `actions`: (batch, samples, numbers). `log_densities`: (batch, samples). If the batch has `returns_to_go`, (batch,),
    they are a floor under the values of all sampled actions but the uniform ones, which come first.
    """
    rows, samples = log_densities.shape
    repeated = batch["obs"].repeat_interleave(samples, 0)
    values: Tensor = apply_critics(params, repeated, actions.flatten(0, 1)).unflatten(1, (rows, samples))
    if "returns_to_go" in batch:
        num_uniform = batch["uniform_numbers"].shape[1]
        floored = values[..., num_uniform:].maximum(batch["returns_to_go"][:, None])
        values = torch.cat([values[..., :num_uniform], floored], 2)
    return torch.logsumexp(values - log_densities, 2) - apply_critics(params, batch["obs"], batch["actions"])


def cql_critic_loss(
    params: Tensor,
    target_params: Tensor,
    actor_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    weight: float,
    gamma: float,
    policy: SquashedGaussian,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
    estimate: CriticEstimate = minimum_over_critics,
) -> Metrics:
    """Compute the critics' loss and its metrics. `batch`: as in `sac_critic_loss` and `sampled_actions`."""
    metrics = sac_critic_loss(
        params,
        target_params,
        actor_params,
        alpha,
        batch,
        gamma=gamma,
        policy=policy,
        apply_actor=apply_actor,
        apply_critics=apply_critics,
        estimate=estimate,
    )
    actions, log_densities = sampled_actions(actor_params, batch, policy=policy, apply_actor=apply_actor)
    gaps = conservative_gap(params, actions, log_densities, batch, apply_critics)
    loss = metrics["loss"] + weight * gaps.sum(0).mean()
    return {**metrics, "loss": loss, "conservative_gap": gaps.detach().mean()}


def build_cql(setup: Setup[ConservativeHParams]) -> ActorCritic:
    hparams, numbers = setup.hparams, action_size(setup)

    def random_inputs(rounds: int, actor: bool) -> Mapping[str, RandomInput]:
        shape = (rounds * hparams.batch_size, hparams.num_sampled_actions, numbers)
        fills = {"uniform_numbers": uniform, "policy_noise": normal, "next_policy_noise": normal}
        return {name: RandomInput(shape, fill) for name, fill in fills.items()}

    recipe = SAC(
        build_model(setup, MLPSACModel, num_critics=2),
        setup,
        critic_loss=partial(cql_critic_loss, weight=hparams.conservative_weight),
        entropy_in_target=hparams.entropy_in_target,
        extra_random_inputs=random_inputs,
    )
    return ActorCritic(recipe, setup)
