"""The replay buffer of stable-baselines3, which has no prioritized one."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from replay_harness import FRAMES, Case, ReplayContender, Transitions, main
from stable_baselines3.common.buffers import ReplayBuffer


class SB3Replay(ReplayContender):
    def __init__(self, case: Case) -> None:
        torch.set_num_threads(case.threads)
        floats, images = Box(-np.inf, np.inf, (17,), np.float32), Box(0, 255, (FRAMES, 84, 84), np.uint8)
        compact = case.variant == "compact"  # successors are read from the next row
        self.buffer = ReplayBuffer(
            case.capacity,
            floats if case.kind == "floats" else images,
            Discrete(6),
            device="cpu",
            optimize_memory_usage=compact,
            handle_timeout_termination=not compact,  # both together are rejected
        )
        self.batch_size = case.batch_size

    def prepare(self, transitions: Transitions, step: int) -> Any:
        return (
            transitions.obs(step)[None],
            transitions.obs((step + 1) % (transitions.length + 1))[None],
            transitions.actions[step : step + 1],
            transitions.rewards[step : step + 1],
            np.array([transitions.ends(step)]),
            [{"TimeLimit.truncated": transitions.ends(step)}],
        )

    def add(self, prepared: Any) -> None:
        self.buffer.add(*prepared)

    def sample(self) -> Any:
        return self.buffer.sample(self.batch_size)

    def num_rows(self) -> int:
        return int(self.buffer.size())

    def check(self, batch: Any) -> None:
        assert len(batch.observations) == self.batch_size


if __name__ == "__main__":
    main(SB3Replay, ["stable-baselines3", "torch", "numpy"])
