"""Environments that are learnt in seconds and whose optimal values are known, for tests and documentation.

Registered as `rl_training/Chain-v0`, `rl_training/Identity-v0`, `rl_training/TwoArmedBandit-v0`,
`rl_training/TinyImage-v0` and `rl_training/Misbehaving-v0` when `rl_training.envs.factory` is imported.
"""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

StepTuple = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
ResetTuple = tuple[np.ndarray, dict[str, Any]]


class Chain(gym.Env[np.ndarray, np.int64]):
    """Walk along `num_states` states to the right end: reward 1 on arriving there, which terminates.

    Observation: the state, one-hot. Action 0 moves left (and stays at the left end), 1 moves right. Each
    episode starts at the left end, or anywhere but the right end with `random_start`.
    Optimal: always right; V*(s) = gamma ** (num_states - 2 - s), see `optimal_q`. Best return: 1.
    """

    def __init__(self, num_states: int = 5, random_start: bool = False) -> None:
        if num_states < 2:
            raise ValueError(f"num_states must be at least 2, got {num_states}")
        self.observation_space = Box(0.0, 1.0, (num_states,), np.float32)
        self.action_space = Discrete(2)
        self._num_states, self._random_start = num_states, random_start
        self._state = 0

    @staticmethod
    def optimal_q(gamma: float, num_states: int = 5) -> np.ndarray:
        """Give Q*, (num_states, 2); the row of the right end, where no action is taken, is zero."""
        distance = np.arange(num_states - 2, -1, -1)  # steps from state s to the one before the end
        values = gamma ** distance.astype(np.float64)
        left_neighbours = np.maximum(np.arange(num_states - 1) - 1, 0)
        optimal = np.zeros((num_states, 2))
        optimal[:-1, 0] = gamma * values[left_neighbours]
        optimal[:-1, 1] = values
        return optimal

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(self._num_states - 1)) if self._random_start else 0
        return self._observe(), {}

    def step(self, action: np.int64) -> StepTuple:
        self._state = max(self._state + (1 if action == 1 else -1), 0)
        arrived = self._state == self._num_states - 1
        return self._observe(), float(arrived), arrived, False, {}

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self._num_states, np.float32)
        obs[self._state] = 1.0
        return obs


class Identity(gym.Env[np.ndarray, Any]):
    """Answer each observation with itself; every episode is truncated after `length` steps.

    Discrete: `size` actions, the observation is one of them, one-hot and drawn anew each step; reward 1 for the
    same action, else 0. Q*(s, a) = [a is s] + gamma / (1 - gamma). Best return: `length`.
    `continuous`: observation and action are vectors in [-1, 1]^size; the reward is minus their squared
    distance. V* = 0 and Q*(s, a) = -|a - s|^2. Best return: 0.
    """

    def __init__(self, size: int = 3, length: int = 10, continuous: bool = False) -> None:
        low = -1.0 if continuous else 0.0
        self.observation_space = Box(low, 1.0, (size,), np.float32)
        self.action_space = Box(-1.0, 1.0, (size,), np.float32) if continuous else Discrete(size)
        self._size, self._length, self._continuous = size, length, continuous
        self._obs: np.ndarray = np.zeros(size, np.float32)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> StepTuple:
        if self._continuous:
            reward = -float(np.square(np.asarray(action, np.float64) - self._obs).sum())
        else:
            reward = float(self._obs[action])
        self._num_steps += 1
        return self._draw(), reward, False, self._num_steps >= self._length, {}

    def _draw(self) -> np.ndarray:
        if self._continuous:
            self._obs = self.np_random.uniform(-1.0, 1.0, self._size).astype(np.float32)
        else:
            self._obs = np.zeros(self._size, np.float32)
            self._obs[self.np_random.integers(self._size)] = 1.0
        return np.array(self._obs)


class TwoArmedBandit(gym.Env[np.ndarray, np.int64]):
    """Pull one arm and terminate: the reward is the arm's mean plus Gaussian noise of deviation `noise`.

    The observation is always [1]. Q*(a) = means[a], whatever gamma is. Best mean return: max(means).
    """

    def __init__(self, means: Sequence[float] = (0.2, 0.8), noise: float = 0.1) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(len(means))
        self._means, self._noise = tuple(means), noise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> StepTuple:
        reward = self._means[action] + self._noise * self.np_random.standard_normal()
        return np.ones(1, np.float32), float(reward), True, False, {}


class TinyImage(gym.Env[np.ndarray, np.int64]):
    """Name the bright quadrant of a (size, size, 1) uint8 image; truncated after `length` steps.

    Actions: 0 top left, 1 top right, 2 bottom left, 3 bottom right. The bright quadrant is 255, the rest is
    noise below 64, both drawn anew each step; reward 1 for the right quadrant, else 0.
    Q*(s, a) = [a is right] + gamma / (1 - gamma). Best return: `length`.
    """

    def __init__(self, size: int = 12, length: int = 10) -> None:
        self.observation_space = Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = Discrete(4)
        self._size, self._length = size, length
        self._quadrant, self._num_steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> StepTuple:
        reward = float(action == self._quadrant)
        self._num_steps += 1
        return self._draw(), reward, False, self._num_steps >= self._length, {}

    def _draw(self) -> np.ndarray:
        self._quadrant = int(self.np_random.integers(4))
        image = self.np_random.integers(64, size=(self._size, self._size, 1), dtype=np.uint8)
        half = self._size // 2
        row, column = half * (self._quadrant // 2), half * (self._quadrant % 2)
        image[row : row + half, column : column + half] = 255
        return image


Fault = Literal["none", "raise", "hang", "exit", "kill", "segfault", "nan_obs", "nan_reward", "shape", "dtype"]


class Misbehaving(gym.Env[np.ndarray, np.int64]):
    """Behave until step `step` of episode `episode`, then show `fault`; for tests of what happens then.

    Steps count from 1, with 0 for the reset; episodes from 0, by the resets of this very object. The observation
    is (step, number drawn at the reset, 1); the reward is 1; episodes are truncated after `length` steps.
    """

    def __init__(self, fault: Fault = "none", step: int = 3, episode: int = 0, length: int = 10) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(2)
        self._fault, self._fault_step, self._fault_episode = fault, step, episode
        self._length = length
        self._episode, self._num_steps, self._drawn = -1, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._episode, self._num_steps, self._drawn = self._episode + 1, 0, self.np_random.random()
        obs, _ = self._maybe_fault()
        return obs, {}

    def step(self, action: np.int64) -> StepTuple:
        self._num_steps += 1
        obs, reward = self._maybe_fault()
        return obs, reward, False, self._num_steps >= self._length, {}

    def _maybe_fault(self) -> tuple[np.ndarray, float]:
        obs = np.array([self._num_steps, self._drawn, 1], np.float32)
        if (self._episode, self._num_steps) != (self._fault_episode, self._fault_step):
            return obs, 1.0
        match self._fault:
            case "raise":
                raise ValueError("misbehaving on purpose")
            case "hang":
                time.sleep(3600)
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "nan_obs":
                return np.full(3, np.nan, np.float32), 1.0
            case "nan_reward":
                return obs, float("nan")
            case "shape":
                return obs[:1], 1.0
            case "dtype":
                return obs.astype(np.int64), 1.0
            case "none":
                pass
        return obs, 1.0
