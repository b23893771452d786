"""Exploration among choices: noise on their logits, which makes the best one a sample of the policy."""

import numpy as np

from rl_training.core.types import ActResult, Carry


class ChoiceNoise:
    """Draws Gumbel noise: the index of the largest logit + noise is a sample of the softmax of the logits."""

    def __init__(self, num_actions: int) -> None:
        self._num_actions = num_actions

    def draw(self, rows: int, generator: np.random.Generator, carry: Carry | None) -> tuple[np.ndarray, None]:
        """Return noise of one step, (rows, actions). Steps are independent: there is nothing to remember."""
        return -np.log(generator.standard_exponential((rows, self._num_actions))), None

    def random_actions(self, rows: int, generator: np.random.Generator, carry: Carry | None) -> ActResult:
        return ActResult(generator.integers(self._num_actions, size=rows))
