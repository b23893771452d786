"""REDQ: SAC with many critics and many updates per env step.

    y = r + gamma * (min over a random subset of M critics of Q_target_i(s', a') - alpha * log pi(a'|s'))
    minimise  alpha * log pi(a|s) - mean over all critics of Q_i(s, a),   once per `policy_delay` updates of the critics

The subset is drawn anew for each update.

Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model. Deviations are in
docs/algorithms/redq.md.
"""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from rl_training.algorithms.actor_critic import ActorCritic, build_model
from rl_training.algorithms.base import Batch, Setup
from rl_training.algorithms.draws import Draw
from rl_training.algorithms.sac import SAC
from rl_training.hparams.actor_critic import REDQHParams
from rl_training.models.mlp_redq import MLPREDQModel


def least_of_subset(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    """The least value of the critics in `subset`, (M,); the others are not even computed."""
    return values_of(batch["subset"]).amin(0)


def mean_of_all(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    return values_of().mean(0)


class REDQ(SAC):
    """SAC's recipe with REDQ's two ways to read the critics."""

    def __init__(self, setup: Setup[REDQHParams]) -> None:
        self._num_critics, self._subset_size = setup.hparams.num_critics, setup.hparams.subset_size
        model = build_model(setup, MLPREDQModel, num_critics=self._num_critics, by_member=True)
        super().__init__(model, setup, target_believed=least_of_subset, actor_believed=mean_of_all)

    def draws(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, Draw]:
        subset = Draw((rounds * self._subset_size,), self._draw_subsets, np.int64)
        return {**super().draws(rounds, rows, actor=actor), "subset": subset}

    def _draw_subsets(self, generator: np.random.Generator, out: np.ndarray) -> None:
        """Subsets without repetition, each as likely as any other, one after the other."""
        order = generator.random((len(out) // self._subset_size, self._num_critics)).argsort(1)
        out[:] = order[:, : self._subset_size].reshape(-1)


def build_redq(setup: Setup[REDQHParams]) -> ActorCritic:
    return ActorCritic(REDQ(setup), setup)
