"""REDQ: SAC with many critics and many updates per env step.

    y = r + gamma * (min over a random subset of M critics of Q_target_i(s', a') - alpha * log pi(a'|s'))
    minimise  alpha * log pi(a|s) - mean over all critics of Q_i(s, a),   once per `policy_delay` updates of the critics

A new subset is drawn for each update. With `dropout`, every computation of critics drops other hidden units: with two
critics and layer normalization this is DroQ.

Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model. Hiraoka et al. 2022, Dropout
Q-functions for doubly efficient reinforcement learning. Deviations are in docs/algorithms/redq.md.
"""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from rl_training.algorithms.sac import SAC
from rl_training.core.setup import Setup
from rl_training.core.types import Batch
from rl_training.hparams.redq import REDQHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import build_model, critic_sizes
from rl_training.learners.random_inputs import RandomInput
from rl_training.models.mlp_redq import MLPREDQModel


def minimum_over_subset(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Return the smallest value of the critics in `subset`, (M,); the others are not computed."""
    return values_of(batch["subset"], *([batch["target_masks"]] if "target_masks" in batch else [])).amin(0)


def mean_over_critics(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    return values_of(*([None, batch["actor_masks"]] if "actor_masks" in batch else [])).mean(0)


class Subsets:
    """Draws one subset of the critics for each update, uniformly and without repetition."""

    def __init__(self, num_critics: int, subset_size: int) -> None:
        self._num_critics, self._size = num_critics, subset_size

    def random_inputs(self, rounds: int, actor: bool) -> Mapping[str, RandomInput]:
        return {"subset": RandomInput((rounds * self._size,), self._fill, np.int64)}

    def _fill(self, generator: np.random.Generator, out: np.ndarray) -> None:
        order = generator.random((len(out) // self._size, self._num_critics)).argsort(1)
        out[:] = order[:, : self._size].reshape(-1)


class DropoutMasks:
    """Draws which hidden units stay: other ones for each update, critic, row, and use of the critics in an update."""

    def __init__(self, hparams: REDQHParams) -> None:
        self._rate, self._rows, self._units = hparams.dropout, hparams.batch_size, sum(critic_sizes(hparams))
        self._num_critics, self._subset_size = hparams.num_critics, hparams.subset_size

    def random_inputs(self, rounds: int, actor: bool) -> Mapping[str, RandomInput]:
        critics = {"target_masks": self._subset_size, "critic_masks": self._num_critics}
        critics |= {"actor_masks": self._num_critics} if actor else {}
        return {
            name: RandomInput((rounds * count, self._rows, self._units), self._fill, np.uint8)
            for name, count in critics.items()
        }

    def _fill(self, generator: np.random.Generator, out: np.ndarray) -> None:
        for part in out:  # one critic of one update at a time: floats of all would need four times the memory
            part[:] = generator.random(part.shape, np.float32) >= self._rate


def build_redq(setup: Setup[REDQHParams]) -> ActorCritic:
    hparams = setup.hparams
    draws: list[Subsets | DropoutMasks] = [Subsets(hparams.num_critics, hparams.subset_size)]
    if hparams.dropout and setup.network is None:  # a network of the user has the layers that it has
        draws.append(DropoutMasks(hparams))

    def random_inputs(rounds: int, actor: bool) -> Mapping[str, RandomInput]:
        return {name: values for draw in draws for name, values in draw.random_inputs(rounds, actor).items()}

    recipe = SAC(
        build_model(setup, MLPREDQModel, num_critics=hparams.num_critics, by_member=True, dropout=hparams.dropout),
        setup,
        target_estimate=minimum_over_subset,
        actor_estimate=mean_over_critics,
        extra_random_inputs=random_inputs,
    )
    return ActorCritic(recipe, setup)
