"""The loss of predicting one's own representations of the next observations (SPR): pure functions.

    L = mean over k of m_k |p_k / |p_k| - t_k / |t_k||^2        p_k: predictions, t_k: projections by the target network

m_k is 0 where the episode has ended before step k. Schwarzer et al. 2021, Data-efficient reinforcement learning with
self-predictive representations, equation 4.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from rl_training.core.types import Batch
from rl_training.learners.checks import ANY, FLAGS, INDICES, Expected, check_tensors
from rl_training.models.self_prediction import SelfPredictiveNetwork

Apply = Callable[..., Any]  # (params, obs, ...) -> the network's outputs

FUTURE = {
    "future_obs": Expected(ANY, "batch steps ..."),
    "future_actions": Expected(INDICES, "batch steps"),
    "follows": Expected(FLAGS, "batch steps"),
}


def distances(predictions: Tensor, targets: Tensor, follows: Tensor) -> Tensor:
    """Return the loss of each row, from 0 to 4: (batch, steps, numbers) twice, (batch, steps) -> (batch,).

    Steps that do not follow count as 0: a row near the end of its episode weighs less.
    """
    difference = F.normalize(predictions, dim=-1) - F.normalize(targets, dim=-1)
    return (difference.square().sum(-1) * follows).mean(1)


def values_and_losses(
    params: Tensor, target_params: Tensor, batch: Batch, apply: Apply, apply_target: Apply
) -> tuple[Any, Tensor | None]:
    """Return the network's values of `obs`, and the loss of each row, (batch,); None if the batch has no future.

    No gradient reaches `target_params`.
    """
    if "future_obs" not in batch:
        return apply(params, batch["obs"]), None
    check_tensors("self-prediction", batch, FUTURE)
    values, predictions = apply(params, batch["obs"], SelfPredictiveNetwork.predict, batch["future_actions"])
    future = batch["future_obs"].flatten(0, 1)
    targets = apply_target(target_params, future, SelfPredictiveNetwork.project).detach()
    return values, distances(predictions, targets.view(predictions.shape), batch["follows"])
