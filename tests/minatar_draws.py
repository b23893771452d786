"""Draws of tensor environments for the package `minatar`, whose games then play the same episodes."""

import sys
from typing import Any

import numpy as np
import torch

from rl_training.core.counters import Keys

USES = {"act": "sticky", "_spawn_diver": "divers"}  # by the function of the package that draws; all others: rules


class ScriptedDraws:
    """Stands in for numpy's generator in the package: its draws are those of our keys at this step."""

    def __init__(self) -> None:
        self._rows: dict[str, list[list[float]]] = {}
        self._left: dict[str, list[float]] = {}

    def set_step(self, keys: Keys, lane: int) -> None:
        """Set the draws: the sticky one, and those of the rules."""
        self.set_rows(keys, lane)
        self.use(0)

    def set_rows(self, keys: Keys, lane: int) -> None:
        lanes = {"sticky": (1, 1), "rules": (lane, 16), "divers": (3, 2)}
        self._rows = {name: keys.uniform(*of).tolist() for name, of in lanes.items()}

    def use(self, row: int) -> None:
        """Draw the numbers of this row next."""
        self._left = {name: list(rows[row]) for name, rows in self._rows.items()}

    def _next(self) -> float:
        caller = sys._getframe(2).f_code.co_name
        return self._left[USES.get(caller, "rules")].pop(0)

    def rand(self, size: int | None = None) -> Any:
        return self._next() if size is None else np.array([self._next() for _ in range(size)])

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        least, most = (0, low) if high is None else (low, high)
        if size is not None:
            return np.array([least + int(self._next() * (most - least)) for _ in range(size)])
        return least + int(self._next() * (most - least))


def key(episode: int, step: int) -> Keys:
    return Keys(torch.tensor([11]), torch.tensor([0]), torch.tensor([episode]), torch.tensor([step]))
