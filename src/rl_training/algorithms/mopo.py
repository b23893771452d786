"""MOPO: MBPO that never sees its environment, and pays for whatever its models are not sure of.

    before the first update                          fit the ensemble to the dataset (dynamics.py)
    every `rollout_refresh_interval` updates         roll out h steps from states of the dataset by the policy, with
                                                     r = r_i(s, a) - lambda * u(s, a)   (model_rollouts.py)
    at every update                                  SAC, on a batch of which a small share is the dataset's

    u(s, a) = max_i |sigma_i(s, a)|                  over all members i, elites or not; sigma of (s' - s, r)

Where models are wrong they should be unsure, and what they are unsure of is not worth exploiting. The parts are those
of mbpo.py; runtime/model_training.py says when things are due.

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
    """The largest norm of the members' predicted deviations: (members, batch, outputs) -> (batch,).

    In the units of observations and rewards together, as they are predicted.
    """
    return prediction.log_variance.exp().sum(-1).sqrt().amax(0)


def largest_disagreement(prediction: Prediction) -> Tensor:
    """The largest distance of a member's mean to the mean of all: (members, batch, outputs) -> (batch,)."""
    distances: Tensor = torch.linalg.vector_norm(prediction.mean - prediction.mean.mean(0), dim=-1)
    return distances.amax(0)


UNCERTAINTIES: dict[str, Callable[[Prediction], Tensor]] = {
    "deviation": largest_deviation,
    "disagreement": largest_disagreement,
}


def build_mopo(setup: Setup[MOPOHParams]) -> MBPO:
    uncertainty, penalty_coef = UNCERTAINTIES[setup.hparams.uncertainty], setup.hparams.penalty_coef
    return compose(setup, penalty=lambda prediction: penalty_coef * uncertainty(prediction))
