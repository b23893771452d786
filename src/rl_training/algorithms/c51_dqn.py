"""C51: the distribution of the return, as probabilities of fixed atoms z_1 < ... < z_N.

    y = projection of r + gamma * z, with the probabilities p_target(s', a*), onto the atoms
    minimise the cross-entropy of y and p(s, a)        (a* has the largest mean)

With double selection, dueling streams, noisy layers, three-step returns and prioritized replay it is Rainbow. On images
the network can also learn to predict its own features (learners/self_prediction.py).

Bellemare et al. 2017, A distributional perspective on reinforcement learning; Hessel et al. 2018, Rainbow: combining
improvements in deep reinforcement learning.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.errors import ConfigError
from rl_training.hparams.c51_dqn import C51HParams
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.distributional import project
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, greedy_actions, noisy_copies, pick, weighted_mean
from rl_training.learners.q_networks import build_q_network, check_per_action
from rl_training.learners.self_prediction import values_and_losses
from rl_training.learners.targets import clip_to_returns, td_target
from rl_training.models.layers import Expectation
from rl_training.models.mlp_c51_q_network import MLPC51QNetwork
from rl_training.models.self_prediction import SelfPredictiveNetwork, predicted_steps


def c51_loss(params: Tensor, target_params: Tensor, batch: Batch, hparams: C51HParams, apply_logits: Apply) -> Metrics:
    """Compute the cross-entropy of one batch and its metrics; `apply_logits(params, obs)`: (batch, actions, atoms).

    The TD error of a row is the KL divergence of its prediction from its target, which Rainbow uses as the priority.
    """
    check_tensors("c51_loss", batch, CHOICES)
    online, target, selection = noisy_copies(apply_logits, batch)
    atoms = support(hparams, params.device)
    logits, self_prediction = values_and_losses(params, target_params, batch, online, target)
    log_probs = pick(logits, batch["actions"]).log_softmax(1)
    next_probs = target(target_params, batch["next_obs"]).softmax(2)
    selected = selection(params.detach(), batch["next_obs"]).softmax(2) if hparams.double_q else next_probs
    next_probs = pick(next_probs, greedy_actions((selected * atoms).sum(2), batch))
    discounts = batch["discounts"][:, None] if "discounts" in batch else hparams.gamma
    positions = td_target(batch["rewards"][:, None], batch["terminated"][:, None], atoms, discounts)
    if hparams.clip_targets:
        positions = clip_to_returns(positions, hparams.gamma)
    targets = project(next_probs, positions, atoms).detach()
    losses = -(targets * log_probs).sum(1)
    entropy = -(targets * targets.clamp(min=1e-12).log()).sum(1)
    td_errors = (losses.detach() - entropy).clamp(min=0.0)
    more = {} if self_prediction is None else {"self_prediction_loss": self_prediction.mean()}
    if self_prediction is not None:
        losses = losses + hparams.self_prediction_coef * self_prediction
    return {
        "loss": weighted_mean(losses, batch),
        "q_value_mean": (log_probs.detach().exp() * atoms).sum(1).mean(),
        "target_mean": (targets * atoms).sum(1).mean(),
        "td_error_mean": td_errors.mean(),
        # Much mass at an end: returns lie beyond v_min or v_max, where the atoms cannot distinguish them.
        "mass_at_v_min": targets[:, 0].mean(),
        "mass_at_v_max": targets[:, -1].mean(),
        **more,
        "td_errors": td_errors,
    }


def support(hparams: C51HParams, device: torch.device | None = None) -> Tensor:
    """Return the atoms, (num_atoms,)."""
    return torch.linspace(hparams.v_min, hparams.v_max, hparams.num_atoms, device=device)


class C51DQN:
    """The recipe with a categorical distribution per action."""

    random_inputs: ClassVar[Mapping[str, int]] = {}
    loss = staticmethod(c51_loss)

    def __init__(self, network: nn.Module, hparams: C51HParams) -> None:
        self.network = network
        self.q_values = nn.Sequential(network, Expectation(support(hparams)))


def _network_kind(setup: Setup[C51HParams]) -> Callable[..., nn.Module]:
    if not predicted_steps(setup):
        return MLPC51QNetwork
    if setup.network is not None:
        raise ConfigError(
            "algo_kwargs.self_prediction_steps needs the library's network, which predicts its own features; "
            "set it to 0 for a network of your own"
        )
    return lambda features, num_actions, *layers, **style: SelfPredictiveNetwork(
        MLPC51QNetwork(features, num_actions, *layers, **style), num_actions
    )


def build_c51_dqn(setup: Setup[C51HParams]) -> QLearner:
    check = check_per_action(setup, "num_atoms")
    network = build_q_network(setup, _network_kind(setup), check=check, num_atoms=setup.hparams.num_atoms)
    return QLearner(C51DQN(network, setup.hparams), setup)
