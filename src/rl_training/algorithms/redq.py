"""REDQ: SAC with many critics and many updates per env step.

    y = r + gamma * (min over a random subset of M critics of Q_target_i(s', a') - alpha * log pi(a'|s'))
    minimise  alpha * log pi(a|s) - mean over all critics of Q_i(s, a),   once per `policy_delay` updates of the critics

A new subset is drawn for each update.

Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model. Deviations are in
docs/algorithms/redq.md.
"""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from rl_training.algorithms.sac import SAC
from rl_training.core.setup import Setup
from rl_training.core.types import Batch
from rl_training.hparams.actor_critic import REDQHParams
from rl_training.learners.actor_critic import ActorCritic, build_model
from rl_training.learners.random_inputs import RandomInput
from rl_training.models.mlp_redq import MLPREDQModel


def minimum_over_subset(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Return the smallest value of the critics in `subset`, (M,); the others are not computed."""
    return values_of(batch["subset"]).amin(0)


def mean_over_critics(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    return values_of().mean(0)


class Subsets:
    """Draws one subset of the critics for each update, uniformly and without repetition."""

    def __init__(self, num_critics: int, subset_size: int) -> None:
        self._num_critics, self._size = num_critics, subset_size

    def random_inputs(self, rounds: int) -> Mapping[str, RandomInput]:
        return {"subset": RandomInput((rounds * self._size,), self._fill, np.int64)}

    def _fill(self, generator: np.random.Generator, out: np.ndarray) -> None:
        order = generator.random((len(out) // self._size, self._num_critics)).argsort(1)
        out[:] = order[:, : self._size].reshape(-1)


def build_redq(setup: Setup[REDQHParams]) -> ActorCritic:
    hparams = setup.hparams
    recipe = SAC(
        build_model(setup, MLPREDQModel, num_critics=hparams.num_critics, by_member=True),
        setup,
        target_estimate=minimum_over_subset,
        actor_estimate=mean_over_critics,
        extra_random_inputs=Subsets(hparams.num_critics, hparams.subset_size).random_inputs,
    )
    return ActorCritic(recipe, setup)
