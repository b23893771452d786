"""Small stand-ins: an algorithm that only acts, a callback that interrupts a run, an environment, a process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from rl_training.core.types import Batch, StateDict, UpdateResult
from rl_training.experiment.run_dir import write_result
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run


class ActsOnly:
    """Complete an algorithm of which a test needs nothing but `act`."""

    def update(self, batch: Batch) -> UpdateResult:
        raise NotImplementedError

    def status(self, step: int) -> dict[str, float]:
        raise NotImplementedError

    def policy_state_dict(self) -> StateDict:
        raise NotImplementedError

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def state_dict(self) -> StateDict:
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


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


class EndedProcess:
    """Stands for the process that trains a run; it ends at once, with a result if its exit code is 0."""

    def __init__(self, folder: Path, code: int = 0) -> None:
        self.returncode = code
        if code == 0:
            write_result(folder, {"step": 60, "wall_s": 1.0, "eval": [{"return": 1.0, "length": 5}]})

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self) -> int:
        return self.returncode
