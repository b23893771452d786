"""TQC: SAC whose critics learn the distribution of the return; the target leaves out its largest quantiles.

    a' ~ pi(s'),   z_1 <= z_2 <= ...: the M quantiles of each of the N target critics at (s', a'), sorted together
    y_j = r + gamma * (z_j - alpha * log pi(a'|s')),   j = 1 ... N (M - k)       (no second term after a termination)
    minimise  mean over critics n, their quantiles i and targets j of |tau_i - 1{u < 0}| * Huber(u),
              u = y_j - theta_ni(s, a),   tau_i = (i + 0.5) / M
    minimise  alpha * log pi(a|s) - mean over all N M quantiles of theta_ni(s, a),   a ~ pi(s)
    alpha     as in SAC

The k largest quantiles per critic are the ones that overestimate most. Only the target drops them, not the actor.

Kuznetsov et al. 2020, Controlling overestimation bias with truncated mixture of continuous distributional quantile
critics. Deviations are in docs/algorithms/tqc.md.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rl_training.algorithms.sac import SAC, ApplyActor, ApplyCritics, CriticEstimate
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.tqc import TQCHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import build_model
from rl_training.learners.checks import BOX_ACTIONS, FLOATS, Expected, check_tensors
from rl_training.learners.distributional import quantile_huber
from rl_training.learners.q_losses import weighted_mean
from rl_training.learners.targets import clip_to_returns, td_target
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.mlp_sac import MLPSACModel

QUANTILES = {"quantiles": Expected(FLOATS, "critics batch quantiles")}


def _by_row(quantiles: Tensor) -> Tensor:
    """Put the quantiles of all critics side by side: (critics, batch, quantiles) -> (batch, critics * quantiles)."""
    return quantiles.transpose(0, 1).flatten(1)


def pooled_quantiles(quantiles_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Return the quantiles of all critics, sorted together: (batch, critics * quantiles)."""
    return _by_row(quantiles_of()).sort(1).values


def mean_of_quantiles(quantiles_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Return the mean of all quantiles of all critics, (batch,)."""
    return quantiles_of().mean((0, 2))


def tqc_critic_loss(
    params: Tensor,
    target_params: Tensor,
    actor_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    dropped_quantiles: int,
    gamma: float,
    policy: SquashedGaussian,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
    estimate: CriticEstimate = pooled_quantiles,
    clip_targets: bool = False,
) -> Metrics:
    """Compute the critics' loss and its metrics. `apply_critics`: (critics, batch, quantiles).

    `batch`: as in `sac_critic_loss`. The TD error of a row is the mean distance of the critics' means to the target's.
    """
    check_tensors("tqc_critic_loss", batch, BOX_ACTIONS)
    quantiles = apply_critics(params, batch["obs"], batch["actions"])
    check_tensors("tqc_critic_loss", {"quantiles": quantiles}, QUANTILES)
    num_critics, _, num_quantiles = quantiles.shape
    next_actions, next_log_probs = policy.rsample(apply_actor(actor_params, batch["next_obs"]), batch["next_noise"])
    pooled = estimate(partial(apply_critics, target_params, batch["next_obs"], next_actions), batch)
    num_kept = num_critics * (num_quantiles - dropped_quantiles)
    kept, dropped = pooled[:, :num_kept], pooled[:, num_kept:]
    next_values = kept - (alpha * next_log_probs)[:, None]
    discounts = batch["discounts"][:, None] if "discounts" in batch else gamma
    targets = td_target(batch["rewards"][:, None], batch["terminated"][:, None], next_values, discounts).detach()
    if clip_targets:
        targets = clip_to_returns(targets, gamma)
    taus = (torch.arange(num_quantiles, device=quantiles.device) + 0.5) / num_quantiles
    # The authors' mean over the quantiles as well, to which their learning rate belongs; QR-DQN sums over them.
    losses = quantile_huber(_by_row(quantiles), targets, taus.repeat(num_critics), 1.0) / (num_critics * num_quantiles)
    td_errors = (quantiles.detach().mean(2) - targets.mean(1)).abs().mean(0)
    metrics = {
        "loss": weighted_mean(losses, batch),
        "q_value_mean": quantiles.detach().mean(),
        "target_mean": targets.mean(),
        "kept_quantile_mean": kept.detach().mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }
    return metrics | ({"dropped_quantile_mean": dropped.detach().mean()} if dropped_quantiles else {})


def build_tqc(setup: Setup[TQCHParams]) -> ActorCritic:
    hparams = setup.hparams
    model = build_model(
        setup,
        MLPSACModel,
        num_critics=hparams.num_critics,
        num_quantiles=hparams.num_quantiles,
    )
    recipe = SAC(
        model,
        setup,
        critic_loss=partial(tqc_critic_loss, dropped_quantiles=hparams.dropped_quantiles),
        target_estimate=pooled_quantiles,
        actor_estimate=mean_of_quantiles,
        value_of=lambda quantiles: quantiles.mean(2),
    )
    return ActorCritic(recipe, setup)
