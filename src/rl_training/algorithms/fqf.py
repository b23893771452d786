"""FQF: IQN whose fractions 0 = tau_0 < ... < tau_N = 1 are proposed by a network, where the quantile function bends.

    Q(s, a) = sum over i of (tau_i+1 - tau_i) * Z(tau_hat_i),  tau_hat_i = (tau_i + tau_i+1) / 2
    quantile network: the quantile regression loss at tau_hat, with targets weighted by their widths; it does not reach
        the fractions
    fraction network: the 1-Wasserstein distance between the quantile function and its steps; it reaches nothing else
        d W1 / d tau_i = |Z(tau_i) - Z(tau_hat_i-1)| - |Z(tau_i) - Z(tau_hat_i)|

Yang et al. 2019, Fully parameterized quantile function for distributional reinforcement learning.
Deviations: the paper's 2 Z(tau_i) - Z(tau_hat_i) - Z(tau_hat_i-1) is the same where Z rises, but a learned Z may fall.
It weighs all targets alike, which is right for even fractions only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.qr_dqn import quantile_metrics
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError
from rl_training.hparams.fqf import FQFHParams
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.optim import ClippedAdam, rmsprop
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, greedy_actions, noisy_copies, pick, weighted_mean
from rl_training.learners.q_networks import build_q_network, q_optimizer
from rl_training.models.mlp_fqf_network import MLPFQFNetwork


def fqf_loss(params: Tensor, target_params: Tensor, batch: Batch, hparams: FQFHParams, apply_fqf: Apply) -> Metrics:
    """Compute the sum of both losses, which share no parameter, and their metrics; `apply_fqf` returns `FQFOutput`s."""
    check_tensors("fqf_loss", batch, CHOICES)
    online, target, selection = noisy_copies(apply_fqf, batch)
    actions, next_obs = batch["actions"], batch["next_obs"]
    output = online(params, batch["obs"], None, True)  # at its own fractions, with the values at their edges
    quantiles = pick(output.values, actions)
    proposal = selection(params.detach(), next_obs)  # the online network proposes the successor's fractions, too
    next_output = target(target_params, next_obs, proposal.taus)
    best_actions = greedy_actions(proposal.q_values if hparams.double_q else next_output.q_values, batch)
    metrics = quantile_metrics(
        quantiles,
        pick(next_output.values, best_actions),
        output.tau_hats.detach(),
        batch,
        hparams,
        widths=output.widths,
        next_widths=next_output.widths,
    )
    values, edge_values = quantiles.detach(), pick(output.edge_values, actions)
    slopes = (edge_values - values[:, :-1]).abs() - (edge_values - values[:, 1:]).abs()
    fraction_loss = weighted_mean((slopes * output.taus[:, 1:-1]).sum(1), batch)
    entropy_loss = -hparams.entropy_coef * output.entropy.mean()
    return {
        **metrics,
        "loss": metrics["loss"] + fraction_loss + entropy_loss,
        "quantile_loss": metrics["loss"].detach(),
        "fraction_loss": fraction_loss.detach(),
        "entropy_loss": entropy_loss.detach(),
        "fraction_entropy": output.entropy.mean().detach(),
    }


@dataclass(frozen=True, slots=True)
class FQFOptimizer:
    """Adam for the quantile network, RMSprop for the fractions, which are the last `num_fraction_params` parameters.

    The state has one learning rate, Adam's. That of RMSprop is in a fixed ratio to it, so a schedule scales both.
    """

    quantile: ClippedAdam
    num_fraction_params: int
    fraction_learning_rate: float

    def state(self, params: Tensor) -> State:
        quantile, fraction = params[: -self.num_fraction_params], params[-self.num_fraction_params :]
        return {**self.quantile.state(quantile), "params": params, "fraction_square": torch.zeros_like(fraction)}

    def step(self, gradient: Tensor, state: State) -> tuple[State, Metrics]:
        sizes = [len(gradient) - self.num_fraction_params, self.num_fraction_params]
        quantile, fraction = torch.split(state["params"], sizes)
        quantile_gradient, fraction_gradient = torch.split(gradient, sizes)
        new_state, metrics = self.quantile.step(quantile_gradient, {**state, "params": quantile})
        fraction, square = rmsprop(
            fraction,
            fraction_gradient,
            state["fraction_square"],
            learning_rate=state["learning_rate"] * (self.fraction_learning_rate / self.quantile.learning_rate),
            alpha=0.95,
            eps=1e-5,
        )
        return {**new_state, "params": torch.cat((new_state["params"], fraction)), "fraction_square": square}, metrics


class FQF:
    """The recipe with values at proposed fractions."""

    random_inputs: ClassVar[Mapping[str, int]] = {}
    loss = staticmethod(fqf_loss)

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.q_values = _WeightedValues(network)


class _WeightedValues(nn.Module):
    """(batch, *obs) -> (batch, actions)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor) -> Tensor:
        q_values: Tensor = self.network(obs).q_values
        return q_values


def build_fqf(setup: Setup[FQFHParams]) -> QLearner:
    hparams = setup.hparams
    network = build_q_network(
        setup, MLPFQFNetwork, num_quantiles=hparams.num_quantiles, embedding_dim=hparams.embedding_dim
    )
    if not isinstance(network, MLPFQFNetwork):
        raise ConfigError(f"fqf trains an MLPFQFNetwork or a subclass, got {type(network).__name__}")
    *_, (last, _) = network.named_parameters()
    if not last.startswith("fraction."):  # the optimizer separates the two parts by their place
        raise ConfigError(
            f"fqf needs the layer `fraction` to be the network's last, but {last} comes after it; "
            "put your own layers into the encoder"
        )
    num_fraction_params = sum(parameter.numel() for parameter in network.fraction.parameters())
    optimizer = FQFOptimizer(q_optimizer(network.quantile, setup), num_fraction_params, hparams.fraction_learning_rate)
    return QLearner(FQF(network), setup, optimizer)
