"""IQN: the quantile function Z_tau(s, a) of the return, learned at fractions tau that are drawn for every update.

    T_j = r + gamma * Z_target_tau'_j(s', a*),  tau'_j ~ U(0, 1)             (a* by the mean over K fractions)
    minimise sum over i, mean over j of |tau_i - 1{T_j < Z_i}| * Huber_kappa(T_j - Z_i) / kappa,  tau_i ~ U(0, 1)

With `munchausen`, r has a bonus and the target is the expectation over a softmax policy (learners/munchausen.py).

Dabney et al. 2018, Implicit quantile networks for distributional reinforcement learning.
Deviation: greedy actions, when acting and in the target, use K evenly spaced fractions instead of random ones. Their
mean is closer to the true one, and equal observations always get equal actions.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.qr_dqn import quantile_metrics
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.iqn import IQNHParams
from rl_training.learners.checks import CHOICES, FLOATS, Expected, check_tensors
from rl_training.learners.munchausen import bonus, soft_values
from rl_training.learners.networks import check_output, trial_obs
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, greedy_actions, noisy_copies, pick
from rl_training.learners.q_networks import build_q_network, check_munchausen_setup
from rl_training.models.mlp_iqn_network import MLPIQNetwork

FRACTIONS = {"taus": Expected(FLOATS, "batch n"), "target_taus": Expected(FLOATS, "batch m")}


def iqn_loss(
    params: Tensor, target_params: Tensor, batch: Batch, hparams: IQNHParams, apply_quantiles: Apply
) -> Metrics:
    """Compute the quantile regression loss and its metrics.

    `apply_quantiles(params, obs, taus)` returns values (batch, actions, n) and taus; without taus, at K fixed ones.
    `batch` also has the drawn fractions: taus (batch, N), target_taus (batch, N').
    """
    check_tensors("iqn_loss", batch, CHOICES | FRACTIONS)
    online, target, selection = noisy_copies(apply_quantiles, batch)
    next_obs, taus = batch["next_obs"], batch["taus"]
    quantiles = pick(online(params, batch["obs"], taus)[0], batch["actions"])
    selected, _ = selection(params.detach(), next_obs) if hparams.double_q else target(target_params, next_obs)
    next_quantiles, _ = target(target_params, next_obs, batch["target_taus"])
    if hparams.munchausen:
        q_values = target(target_params, batch["obs"])[0].mean(2)
        batch = batch | {"rewards": batch["rewards"] + bonus(q_values, batch["actions"], hparams)}
        next_quantiles = soft_values(selected.mean(2), next_quantiles, hparams.munchausen_tau)
    else:
        next_quantiles = pick(next_quantiles, greedy_actions(selected.mean(2), batch))
    return quantile_metrics(quantiles, next_quantiles, taus, batch, hparams)


class IQN:
    """The recipe with a value for every action and fraction."""

    loss = staticmethod(iqn_loss)

    def __init__(self, network: nn.Module, hparams: IQNHParams) -> None:
        self.network = network
        self.q_values = _MeanValues(network)
        self.random_inputs: Mapping[str, int] = {
            "taus": hparams.num_tau_samples,
            "target_taus": hparams.num_tau_samples,
        }


def _values_of(outputs: Any) -> Any:
    """Return the values of a user's network, which must return a tuple (values, taus)."""
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise TypeError(f"it must return a tuple (values, taus), but returned {type(outputs).__name__}")
    return outputs[0]


class _MeanValues(nn.Module):
    """(batch, *obs) -> (batch, actions)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.network(obs)[0]
        return values.mean(2)


def build_iqn(setup: Setup[IQNHParams]) -> QLearner:
    check_munchausen_setup(setup)
    hparams = setup.hparams

    def check(network: nn.Module) -> None:
        obs = trial_obs(setup)
        taus = torch.full((len(obs), hparams.num_tau_samples), 0.5, device=setup.device)
        sizes = {"observations": 2, "actions": setup.spaces.num_actions, "taus": taus.shape[1]}
        check_output(lambda *inputs: _values_of(network(*inputs)), (obs, taus), sizes)

    network = build_q_network(
        setup, MLPIQNetwork, check=check, num_quantiles=hparams.num_quantiles, embedding_dim=hparams.embedding_dim
    )
    return QLearner(IQN(network, hparams), setup)
