"""C51: the distribution of the return, as probabilities of fixed atoms z_1 < ... < z_N.

    y = projection of r + gamma * z, with the probabilities p_target(s', a*), onto the atoms
    minimise the cross-entropy of y and p(s, a)        (a* has the largest mean)

With double selection, dueling streams, noisy layers, three-step returns and prioritized replay it is Rainbow.

Bellemare et al. 2017, A distributional perspective on reinforcement learning; Hessel et al. 2018, Rainbow: combining
improvements in deep reinforcement learning.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.c51_dqn import C51HParams
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.distributional import project
from rl_training.learners.q_learning import (
    Apply,
    QLearner,
    build_q_network,
    check_per_action,
    greedy_actions,
    noisy_copies,
    pick,
    weighted_mean,
)
from rl_training.learners.targets import td_target
from rl_training.models.layers import Expectation
from rl_training.models.mlp_c51_q_network import MLPC51QNetwork


def c51_loss(params: Tensor, target_params: Tensor, batch: Batch, hparams: C51HParams, apply_logits: Apply) -> Metrics:
    """Compute the cross-entropy of one batch and its metrics; `apply_logits(params, obs)`: (batch, actions, atoms).

    The TD error of a row is the KL divergence of its prediction from its target, which Rainbow uses as the priority.
    """
    check_tensors("c51_loss", batch, CHOICES)
    online, target, selection = noisy_copies(apply_logits, batch)
    atoms = support(hparams).to(params.device)
    log_probs = pick(online(params, batch["obs"]), batch["actions"]).log_softmax(1)
    next_probs = target(target_params, batch["next_obs"]).softmax(2)
    selected = selection(params.detach(), batch["next_obs"]).softmax(2) if hparams.double_q else next_probs
    next_probs = pick(next_probs, greedy_actions((selected * atoms).sum(2), batch))
    discounts = batch["discounts"][:, None] if "discounts" in batch else hparams.gamma
    positions = td_target(batch["rewards"][:, None], batch["terminated"][:, None], atoms, discounts)
    targets = project(next_probs, positions, atoms).detach()
    losses = -(targets * log_probs).sum(1)
    entropy = -(targets * targets.clamp(min=1e-12).log()).sum(1)
    td_errors = (losses.detach() - entropy).clamp(min=0.0)
    return {
        "loss": weighted_mean(losses, batch),
        "q_value_mean": (log_probs.detach().exp() * atoms).sum(1).mean(),
        "target_mean": (targets * atoms).sum(1).mean(),
        "td_error_mean": td_errors.mean(),
        # Much mass at an end: returns lie beyond v_min or v_max, where the atoms cannot distinguish them.
        "mass_at_v_min": targets[:, 0].mean(),
        "mass_at_v_max": targets[:, -1].mean(),
        "td_errors": td_errors,
    }


def support(hparams: C51HParams) -> Tensor:
    """Return the atoms, (num_atoms,)."""
    return torch.linspace(hparams.v_min, hparams.v_max, hparams.num_atoms)


class C51DQN:
    """The recipe with a categorical distribution per action."""

    random_inputs: ClassVar[Mapping[str, int]] = {}
    loss = staticmethod(c51_loss)

    def __init__(self, network: nn.Module, hparams: C51HParams) -> None:
        self.network = network
        self.q_values = nn.Sequential(network, Expectation(support(hparams)))


def build_c51_dqn(setup: Setup[C51HParams]) -> QLearner:
    check = check_per_action(setup, "num_atoms")
    network = build_q_network(setup, MLPC51QNetwork, check=check, num_atoms=setup.hparams.num_atoms)
    return QLearner(C51DQN(network, setup.hparams), setup)
