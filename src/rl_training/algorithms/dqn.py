"""DQN: Q-learning with a deep network, experience replay and a target network.

    y = r + gamma * max_a' Q_target(s', a')        (no second term after a termination)
    minimise Huber(Q(s, a) - y)

With `munchausen`, r has a bonus and the maximum is soft (learners/munchausen.py).

With `double_q` the online network picks a' and the target network values it (van Hasselt et al. 2016).

Mnih et al. 2015, Human-level control through deep reinforcement learning.
Deviations: Adam instead of RMSProp, a global gradient-norm clip, optional layer normalisation. The reasons are in
docs/algorithms/dqn.md.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.dqn import DQNHParams
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.munchausen import bonus, soft_values
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, greedy_actions, noisy_copies, pick, weighted_mean
from rl_training.learners.q_networks import build_q_network, check_munchausen_setup
from rl_training.learners.targets import clip_to_returns, td_loss, td_target
from rl_training.models.mlp_q_network import MLPQNetwork


def dqn_loss(params: Tensor, target_params: Tensor, batch: Batch, hparams: DQNHParams, apply_q: Apply) -> Metrics:
    """Compute the loss of one batch and its metrics.

    `apply_q(params, obs)` returns (batch, actions). `batch`: obs, next_obs, actions (batch,) int64, rewards (batch,),
    terminated (batch,) bool, and optionally what n-step returns, prioritized replay, action masks and noisy layers
    add: discounts (batch,), weights (batch,), next_action_mask (batch, actions), noise (3, numbers).
    """
    check_tensors("dqn_loss", batch, CHOICES)
    online, target, selection = noisy_copies(apply_q, batch)
    q_values = pick(online(params, batch["obs"]), batch["actions"])
    rewards, next_q = batch["rewards"], target(target_params, batch["next_obs"])
    if hparams.munchausen:
        rewards = rewards + bonus(target(target_params, batch["obs"]), batch["actions"], hparams)
        next_values = soft_values(next_q, next_q, hparams.munchausen_tau)
    else:
        chosen_by = selection(params.detach(), batch["next_obs"]) if hparams.double_q else next_q
        next_values = pick(next_q, greedy_actions(chosen_by, batch))
    discounts = batch.get("discounts", hparams.gamma)
    targets = td_target(rewards, batch["terminated"], next_values, discounts).detach()
    if hparams.clip_targets:
        targets = clip_to_returns(targets, hparams.gamma)
    td_errors = (targets - q_values).detach().abs()
    return {
        "loss": weighted_mean(td_loss(q_values, targets, hparams.loss), batch),
        "q_value_mean": q_values.detach().mean(),
        "target_mean": targets.mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }


class DQN:
    """The recipe with one number per action: its expected return."""

    random_inputs: ClassVar[Mapping[str, int]] = {}
    loss = staticmethod(dqn_loss)

    def __init__(self, network: nn.Module) -> None:
        self.network = self.q_values = network


def build_dqn(setup: Setup[DQNHParams]) -> QLearner:
    check_munchausen_setup(setup)
    return QLearner(DQN(build_q_network(setup, MLPQNetwork)), setup)
