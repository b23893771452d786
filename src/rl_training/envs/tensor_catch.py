"""Catch as a tensor environment: the smallest task with images."""

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import State
from rl_training.envs.tiny import Catch


class TensorCatch:
    """The rules of `rl_training/Catch-v0` (envs/tiny.py), which equal them step by step."""

    max_episode_steps: int | None = None

    def __init__(self, size: int = 16) -> None:
        one = Catch(size)
        self.observation_space: gym.Space[Any] = one.observation_space
        self.action_space: gym.Space[Any] = one.action_space
        self._cells, self._size = one.cells, size

    def first(self, keys: Keys) -> State:
        column, paddle = keys.below(0, self._cells), keys.below(1, self._cells)
        return {"row": torch.zeros_like(column), "column": column, "paddle": paddle}

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        row = state["row"] + 1
        paddle = (state["paddle"] + actions - 1).clamp(0, self._cells - 1)
        arrived = row == self._cells - 1
        new = {"row": row, "column": state["column"], "paddle": paddle}
        return new, (arrived & (paddle == state["column"])).float(), arrived

    def observe(self, state: State) -> Tensor:
        cell = torch.arange(self._size, device=state["row"].device) // (self._size // self._cells)

        def at(row: Tensor | int, column: Tensor) -> Tensor:
            rows = cell[None, :] == (row[:, None] if isinstance(row, Tensor) else row)
            return rows[:, :, None] & (cell[None, None, :] == column[:, None, None])

        lit = at(state["row"], state["column"]) | at(self._cells - 1, state["paddle"])
        return (lit.to(torch.uint8) * 255)[..., None]
