"""Small stand-ins: a callback that interrupts a run, an environment of images."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run


class StopAt(Callback):
    """Interrupt a run at a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step >= self.step:
            run.stop_reason, run.interrupted = "stopped", True


class Images(gym.Env[np.ndarray, np.ndarray]):
    """Return black images. Some algorithms cannot learn from images."""

    observation_space = Box(0, 255, (8, 8, 3), np.uint8)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((8, 8, 3), np.uint8), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros((8, 8, 3), np.uint8), 0.0, False, False, {}
