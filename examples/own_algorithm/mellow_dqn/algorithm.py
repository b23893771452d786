"""DQN whose target has a soft maximum, mellowmax, in place of the maximum (Asadi and Littman 2017).

target = r + gamma * log(mean_a exp(omega * Q(s', a))) / omega
"""

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from mellow_dqn.hparams import MellowDQNHParams
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.learners.checks import CHOICES, check_tensors
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, noisy_copies, pick, weighted_mean
from rl_training.learners.q_networks import build_q_network
from rl_training.learners.targets import td_loss, td_target
from rl_training.models.mlp_q_network import MLPQNetwork


def mellow_loss(
    params: Tensor, target_params: Tensor, batch: Batch, hparams: MellowDQNHParams, apply_q: Apply
) -> Metrics:
    """Return the loss and the metrics of one batch, as 0-d tensors, and the TD errors, (batch,)."""
    check_tensors("mellow_loss", batch, CHOICES)  # ranks and dtypes, so that nothing is broadcast by mistake
    online, target, _ = noisy_copies(apply_q, batch)
    q_values = pick(online(params, batch["obs"]), batch["actions"])
    next_q = target(target_params, batch["next_obs"])
    next_values = ((hparams.omega * next_q).logsumexp(1) - math.log(next_q.shape[1])) / hparams.omega
    discounts = batch.get("discounts", hparams.gamma)
    targets = td_target(batch["rewards"], batch["terminated"], next_values, discounts).detach()
    td_errors = (targets - q_values).detach().abs()
    return {
        "loss": weighted_mean(td_loss(q_values, targets, hparams.loss), batch),
        "q_value_mean": q_values.detach().mean(),
        "target_mean": targets.mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }


class MellowDQN:
    """The recipe: a network and a loss; `QLearner` does the rest."""

    random_inputs: ClassVar[Mapping[str, int]] = {}  # random numbers per row that the loss needs, by name
    loss = staticmethod(mellow_loss)

    def __init__(self, network: nn.Module) -> None:
        self.network = self.q_values = network  # the trained network; what acting uses: (batch, actions)


def build_mellow_dqn(setup: Setup[MellowDQNHParams]) -> QLearner:
    return QLearner(MellowDQN(build_q_network(setup, MLPQNetwork)), setup)
