"""MOPO: MBPO on a dataset alone; rollout rewards are reduced by a penalty for model uncertainty.

    before the first update                          fit the ensemble to the dataset (dynamics.py)
    every `rollout_refresh_interval` updates         roll out h steps from states of the dataset by the policy, with
                                                     r = r_i(s, a) - lambda * u(s, a)   (model_rollouts.py)
    at every update                                  SAC, on a batch of which a small share is the dataset's

    u(s, a) = max_i |sigma_i(s, a)|                  over all members i, elites or not; sigma of (s' - s, r)

Where models are wrong they should be uncertain, and the penalty keeps the policy from exploiting that. The parts are
those of mbpo.py; runtime/model_training.py schedules them.

Yu et al. 2020, MOPO: model-based offline policy optimization. Deviations: docs/algorithms/mopo.md.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rl_training.algorithms.mbpo import MBPO, compose
from rl_training.core.setup import Setup
from rl_training.hparams.mbpo import MOPOHParams
from rl_training.models.mlp_mopo import Prediction


def largest_deviation(prediction: Prediction) -> Tensor:
    """Return the largest norm of the members' predicted standard deviations: (members, batch, outputs) -> (batch,).

    Its unit mixes those of observations and rewards, as they are predicted.
    """
    return prediction.log_variance.exp().sum(-1).sqrt().amax(0)


def largest_disagreement(prediction: Prediction) -> Tensor:
    """Return the largest distance of a member's mean to the mean of all: (members, batch, outputs) -> (batch,)."""
    distances: Tensor = torch.linalg.vector_norm(prediction.mean - prediction.mean.mean(0), dim=-1)
    return distances.amax(0)


UNCERTAINTIES: dict[str, Callable[[Prediction], Tensor]] = {
    "deviation": largest_deviation,
    "disagreement": largest_disagreement,
}


def build_mopo(setup: Setup[MOPOHParams]) -> MBPO:
    uncertainty, penalty_coef = UNCERTAINTIES[setup.hparams.uncertainty], setup.hparams.penalty_coef
    return compose(setup, penalty=lambda prediction: penalty_coef * uncertainty(prediction))
