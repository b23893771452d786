"""The replay memory of rl_training, composed as a run composes it."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from replay_harness import FRAMES, Case, ReplayContender, Transitions, main

from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.data.replay_buffer import build_replay_buffer
from rl_training.hparams.dqn import DQNHParams


class OurReplay(ReplayContender):
    def __init__(self, case: Case) -> None:
        floats = Box(-np.inf, np.inf, (17,), np.float32)
        observation: Box | FrameStackSpace = (
            floats if case.kind == "floats" else FrameStackSpace(FRAMES, (FRAMES, 84, 84))
        )
        if case.variant == "rows":  # stacks stored whole
            observation = Box(0, 255, (FRAMES, 84, 84), np.uint8)
        hparams = DQNHParams(buffer_capacity=case.capacity, prioritized=case.prioritized, n_step=1)
        setup = Setup(
            spaces=Spaces(observation, Discrete(6)),
            hparams=hparams,
            total_timesteps=100_000,
            total_updates=99_000,
            streams=Streams(0),
        )
        self.buffer = build_replay_buffer(setup)
        self.batch_size = case.batch_size
        # A run samples into the same tensors every time; `fresh`: into new ones.
        self.draw = self.buffer.sampler(case.batch_size) if case.variant != "fresh" else self._fresh

    def _fresh(self) -> Any:
        return self.buffer.sample(self.batch_size)

    def prepare(self, transitions: Transitions, step: int) -> Any:
        return {
            "obs": transitions.obs(step)[None],
            "next_obs": transitions.obs((step + 1) % (transitions.length + 1))[None],
            "actions": transitions.actions[step : step + 1],
            "rewards": transitions.rewards[step : step + 1],
            "terminated": np.array([False]),
            "truncated": np.array([transitions.ends(step)]),
        }

    def add(self, prepared: Any) -> None:
        self.buffer.add(prepared)

    def sample(self) -> Any:
        return self.draw()

    def update_priorities(self, batch: Any, td_errors: np.ndarray) -> None:
        self.buffer.update_priorities(torch.from_numpy(td_errors))

    def num_rows(self) -> int:
        return len(self.buffer)

    def check(self, batch: Any) -> None:
        assert len(batch["obs"]) == self.batch_size


if __name__ == "__main__":
    main(OurReplay, ["torch", "numpy"])
