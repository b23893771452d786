"""Goal environments that are learned in seconds and whose best returns are known, for tests and documentation.

Registered as `rl_training/BitFlip-v0` and `rl_training/PointReach-v0`. Their observations have three parts:
`observation`, `achieved_goal` and `desired_goal`. The reward is 0 where the goal is reached and -1 elsewhere.
`info["is_success"]` says whether it is reached.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

Observation = dict[str, np.ndarray]


class BitFlip(gym.Env[Observation, np.int64]):
    """Flip one of `num_bits` bits per step until they equal the goal, which terminates (Andrychowicz et al. 2017).

    Bits and goal are uniform and differ. Episodes are truncated after `num_bits` steps, which always suffice. With d
    bits that differ, the best return is 1 - d, and V* = -(1 - gamma^(d - 1)) / (1 - gamma).
    """

    def __init__(self, num_bits: int = 8) -> None:
        if num_bits < 1:
            raise ValueError(f"num_bits must be at least 1, got {num_bits}")
        bits = Box(0.0, 1.0, (num_bits,), np.float32)
        self.observation_space: Any = Dict({"observation": bits, "achieved_goal": bits, "desired_goal": bits})
        self.action_space = Discrete(num_bits)
        self._bits = self._goal = np.zeros(num_bits, np.float32)
        self._num_steps = 0

    @staticmethod
    def compute_reward(achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        rewards: np.ndarray = np.all(achieved_goal == desired_goal, -1).astype(np.float32) - 1.0
        return rewards

    @staticmethod
    def compute_terminated(achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        reached: np.ndarray = np.all(achieved_goal == desired_goal, -1)
        return reached

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        size = len(self._bits)
        self._bits = self.np_random.integers(2, size=size).astype(np.float32)
        different = np.zeros(size, np.bool_)
        while not different.any():
            different = self.np_random.integers(2, size=size).astype(np.bool_)
        self._goal = np.where(different, 1.0 - self._bits, self._bits)
        self._num_steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._bits[action] = 1.0 - self._bits[action]
        self._num_steps += 1
        arrived = bool(self.compute_terminated(self._bits, self._goal, {}))
        truncated = self._num_steps >= len(self._bits) and not arrived
        return self._observe(), float(arrived) - 1.0, arrived, truncated, {"is_success": arrived}

    def _observe(self) -> Observation:
        return {
            "observation": self._bits.copy(),
            "achieved_goal": self._bits.copy(),
            "desired_goal": self._goal.copy(),
        }


class PointReach(gym.Env[Observation, np.ndarray]):
    """Move a point of the square [-1, 1]^2 to within `tolerance` of a goal and stay there; nothing terminates.

    An action moves each coordinate by up to `stride`. Point and goal are uniform; episodes are truncated after 20
    steps, as gymnasium-robotics truncates FetchReach after 50. Best return: 1 - `steps_to_goal`, and at most 0.
    """

    def __init__(self, tolerance: float = 0.15, stride: float = 0.2) -> None:
        self.tolerance, self.stride = tolerance, stride
        square = Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space: Any = Dict({"observation": square, "achieved_goal": square, "desired_goal": square})
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._point = self._goal = np.zeros(2, np.float32)
        self._num_steps = 0

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        distances = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        rewards: np.ndarray = (distances <= self.tolerance).astype(np.float32) - 1.0
        return rewards

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> bool:
        return False

    def steps_to_goal(self, point: np.ndarray, goal: np.ndarray) -> int:
        """Return the smallest number of steps after which the point can be within the tolerance of the goal."""
        steps = 0
        while np.linalg.norm(np.maximum(np.abs(goal - point) - steps * self.stride, 0.0)) > self.tolerance:
            steps += 1
        return steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._point, self._goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        self._num_steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        moved = self._point + self.stride * np.clip(action, -1.0, 1.0)
        self._point = np.clip(moved, -1.0, 1.0).astype(np.float32)
        self._num_steps += 1
        reward = float(self.compute_reward(self._point, self._goal, {}))
        return self._observe(), reward, False, self._num_steps >= 20, {"is_success": reward == 0.0}

    def _observe(self) -> Observation:
        return {
            "observation": self._point.copy(),
            "achieved_goal": self._point.copy(),
            "desired_goal": self._goal.copy(),
        }
