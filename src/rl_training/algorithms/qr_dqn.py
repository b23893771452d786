"""QR-DQN: the distribution of the return as N quantiles, theta_i at the fraction tau_i = (i + 0.5) / N.

    T_j = r + gamma * theta_target_j(s', a*)                                 (a* has the largest mean)
    minimise sum over i, mean over j of |tau_i - 1{T_j < theta_i}| * Huber_kappa(T_j - theta_i) / kappa

Dabney et al. 2018, Distributional reinforcement learning with quantile regression.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.fqf import FQFHParams
from rl_training.hparams.iqn import IQNHParams
from rl_training.hparams.qr_dqn import QRDQNHParams
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.distributional import quantile_huber
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, greedy_actions, noisy_copies, pick, weighted_mean
from rl_training.learners.q_networks import build_q_network, check_per_action
from rl_training.learners.targets import clip_to_returns, td_target
from rl_training.models.layers import MeanOfLast
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork


def qr_dqn_loss(
    params: Tensor, target_params: Tensor, batch: Batch, hparams: QRDQNHParams, apply_quantiles: Apply
) -> Metrics:
    """Compute the quantile regression loss and metrics; `apply_quantiles(params, obs)`: (batch, actions, quantiles)."""
    check_tensors("qr_dqn_loss", batch, CHOICES)
    online, target, selection = noisy_copies(apply_quantiles, batch)
    quantiles = pick(online(params, batch["obs"]), batch["actions"])
    next_quantiles = target(target_params, batch["next_obs"])
    selected = selection(params.detach(), batch["next_obs"]) if hparams.double_q else next_quantiles
    next_quantiles = pick(next_quantiles, greedy_actions(selected.mean(2), batch))
    num_quantiles = quantiles.shape[1]
    taus = (torch.arange(num_quantiles, device=params.device) + 0.5) / num_quantiles
    return quantile_metrics(quantiles, next_quantiles, taus, batch, hparams)


def quantile_metrics(
    quantiles: Tensor,
    next_quantiles: Tensor,
    taus: Tensor,
    batch: Batch,
    hparams: QRDQNHParams | IQNHParams | FQFHParams,
    *,
    widths: Tensor | None = None,
    next_widths: Tensor | None = None,
) -> Metrics:
    """Compute the loss of quantiles (batch, n) at fractions `taus`, given those of the successor, (batch, m).

    The TD error of a row is the distance of the two means. `widths`, (batch, n) and (batch, m), are the probabilities
    that the quantiles stand for; without them all stand for the same.
    """
    discounts = batch["discounts"][:, None] if "discounts" in batch else hparams.gamma
    targets = td_target(batch["rewards"][:, None], batch["terminated"][:, None], next_quantiles, discounts).detach()
    if hparams.clip_targets:
        targets = clip_to_returns(targets, hparams.gamma)
    q_values = _mean(quantiles.detach(), widths)
    target_means = _mean(targets, next_widths)
    td_errors = (target_means - q_values).abs()
    return {
        "loss": weighted_mean(quantile_huber(quantiles, targets, taus, hparams.kappa, next_widths), batch),
        "q_value_mean": q_values.mean(),
        "target_mean": target_means.mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }


def _mean(quantiles: Tensor, widths: Tensor | None) -> Tensor:
    return quantiles.mean(1) if widths is None else (widths * quantiles).sum(1)


class QRDQN:
    """The recipe with N quantiles per action."""

    random_inputs: ClassVar[Mapping[str, int]] = {}
    loss = staticmethod(qr_dqn_loss)

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.q_values = nn.Sequential(network, MeanOfLast())


def build_qr_dqn(setup: Setup[QRDQNHParams]) -> QLearner:
    check = check_per_action(setup, "num_quantiles")
    network = build_q_network(setup, MLPQRQNetwork, check=check, num_quantiles=setup.hparams.num_quantiles)
    return QLearner(QRDQN(network), setup)
