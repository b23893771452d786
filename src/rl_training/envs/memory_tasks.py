"""Tasks that need memory: a single observation does not show what the best action is.

Registered when `rl_training.envs.factory` is imported: `rl_training/CartPoleNoVelocity-v0`,
`rl_training/PendulumNoVelocity-v0` and `rl_training/Recall-v0`. This file needs only gymnasium and numpy: a script of
the benchmarks loads it where the library is not installed.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.spaces import Box, Discrete

Env = gym.Env[Any, Any]


class ZeroedEntries(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Sets entries of a vector observation to 0; its shape stays the same."""

    def __init__(self, env: Env, entries: Sequence[int]) -> None:
        """`entries`: their positions in the observation."""
        super().__init__(env)
        shape = env.observation_space.shape
        if not isinstance(env.observation_space, Box) or shape is None or len(shape) != 1:
            raise ValueError(f"ZeroedEntries needs vector observations, got {env.observation_space}")
        outside = [entry for entry in entries if not 0 <= entry < shape[0]]
        if outside:
            raise ValueError(f"entries must be in [0, {shape[0] - 1}], got {outside[0]}")
        self._entries = list(entries)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        seen = np.array(observation)
        seen[self._entries] = 0
        return seen


class Recall(gym.Env[np.ndarray, np.int64]):
    """Name, after `delay` steps, the cue that only the first observation shows.

    Observation: one of `num_cues` cues, one-hot, in the first one; nothing until the last one, which has a 1 in the
    last entry and asks for the cue. The action at that step earns 1 for the right cue, else 0, and terminates; other
    actions do nothing. V* = gamma ** (steps to the question). Best return: 1; without memory 1 / num_cues.
    """

    def __init__(self, num_cues: int = 2, delay: int = 10) -> None:
        if num_cues < 2 or delay < 1:
            raise ValueError(f"num_cues must be at least 2 and delay at least 1, got {num_cues} and {delay}")
        self.observation_space = Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = Discrete(num_cues)
        self._num_cues, self._delay = num_cues, delay
        self._cue, self._num_steps = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._num_steps = int(self.np_random.integers(self._num_cues)), 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        asked = self._num_steps == self._delay
        self._num_steps += 1
        return self._observe(), float(asked and action == self._cue), asked, False, {}

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self._num_cues + 1, np.float32)
        if self._num_steps == 0:
            obs[self._cue] = 1.0
        elif self._num_steps == self._delay:
            obs[-1] = 1.0
        return obs


def cartpole_no_velocity(**kwargs: Any) -> Env:
    """Return CartPole that shows the positions of cart and pole, but not their velocities."""
    return ZeroedEntries(CartPoleEnv(**kwargs), (1, 3))


def pendulum_no_velocity(**kwargs: Any) -> Env:
    """Return Pendulum that shows the angle, but not the angular velocity."""
    return ZeroedEntries(PendulumEnv(**kwargs), (2,))


MEMORY_TASKS: dict[str, tuple[Any, int | None]] = {
    "rl_training/CartPoleNoVelocity-v0": (cartpole_no_velocity, 500),
    "rl_training/PendulumNoVelocity-v0": (pendulum_no_velocity, 200),
    "rl_training/Recall-v0": (Recall, None),
}


def register_memory_tasks() -> None:
    """Register the tasks with gymnasium; a second call changes nothing."""
    for env_id, (entry_point, max_episode_steps) in MEMORY_TASKS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point, max_episode_steps=max_episode_steps)
