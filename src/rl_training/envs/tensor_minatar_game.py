"""What the games of MinAtar share as tensor environments: spaces, sticky actions and the 10x10 board."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import State
from rl_training.envs.minatar import MAX_EPISODE_STEPS
from rl_training.errors import ConfigError

SIZE = 10
NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
FIRST, STICKY, RULES = 0, 1, 2  # lanes of random numbers

RuleResult = tuple[State, Tensor, Tensor]  # the new state, rewards and terminations


class Game:
    """What the games share: actions, sticky actions, spaces."""

    max_episode_steps: int | None = MAX_EPISODE_STEPS
    channels: int
    useful_actions: tuple[int, ...]

    def __init__(
        self, *, minimal_actions: bool = False, sticky_action_prob: float = 0.1, difficulty_ramping: bool = True
    ) -> None:
        if not 0.0 <= sticky_action_prob < 1.0:
            raise ConfigError(f"env_kwargs.sticky_action_prob must be in [0, 1), got {sticky_action_prob!r}")
        self._codes = self.useful_actions if minimal_actions else tuple(range(6))
        self._sticky, self._ramping = sticky_action_prob, difficulty_ramping
        self.action_space: gym.Space[Any] = Discrete(len(self._codes))
        self.observation_space: gym.Space[Any] = Box(0, 1, (SIZE, SIZE, self.channels), np.bool_)

    def first(self, keys: Keys) -> State:
        state = self._start(keys)
        return state | {"last_action": torch.zeros_like(keys.seed)}

    def step(self, state: State, actions: Tensor, keys: Keys) -> RuleResult:
        action = torch.zeros_like(actions)
        for number, code in enumerate(self._codes):
            action = torch.where(actions == number, code, action)
        repeats = keys.uniform(STICKY, 1)[:, 0] < self._sticky
        action = torch.where(repeats, state["last_action"], action)
        new, rewards, terminated = self._play(state, action, keys)
        return new | {"last_action": action}, rewards.float(), terminated

    def _start(self, keys: Keys) -> State:
        raise NotImplementedError

    def _play(self, state: State, action: Tensor, keys: Keys) -> RuleResult:
        raise NotImplementedError


def one_cell(row: Tensor, column: Tensor) -> Tensor:
    """Return the board with one cell set, (rows, 10, 10) bool; none for a place outside."""
    places = torch.arange(SIZE, device=row.device)
    return (row[:, None, None] == places[:, None]) & (column[:, None, None] == places)


def meets(board: Tensor, cell: Tensor) -> Tensor:
    """Return whether two boards have a cell in common, (rows,)."""
    return (board & cell).flatten(1).any(1)


def moved(place: Tensor, action: Tensor, back: int, forth: int, low: int = 0, high: int = SIZE - 1) -> Tensor:
    """Return the place after one step by the action `back` or `forth`, within its bounds."""
    step = (action == forth).long() - (action == back).long()
    return (place + step).clamp(low, high)
