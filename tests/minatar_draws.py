"""Draws of tensor environments for the package `minatar`, whose games then play the same episodes."""

import sys
from typing import Any

import numpy as np
import torch

from rl_training.core.counters import Keys


class ScriptedDraws:
    """Stands in for numpy's generator in the package: its draws are those of our keys at this step."""

    def __init__(self) -> None:
        self._left: dict[str, list[float]] = {}

    def set_step(self, keys: Keys, lane: int) -> None:
        """Set the draws: the sticky one, and those of the rules."""
        self._left = {"sticky": keys.uniform(1, 1)[0].tolist(), "rules": keys.uniform(lane, 16)[0].tolist()}

    def _next(self) -> float:
        caller = sys._getframe(2).f_code.co_name
        return self._left["sticky" if caller == "act" else "rules"].pop(0)

    def rand(self, size: int | None = None) -> Any:
        return self._next() if size is None else np.array([self._next() for _ in range(size)])

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        least, most = (0, low) if high is None else (low, high)
        if size is not None:
            return np.array([least + int(self._next() * (most - least)) for _ in range(size)])
        return least + int(self._next() * (most - least))


def key(episode: int, step: int) -> Keys:
    return Keys(torch.tensor([11]), torch.tensor([0]), torch.tensor([episode]), torch.tensor([step]))
