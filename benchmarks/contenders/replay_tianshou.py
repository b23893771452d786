"""The replay buffers of Tianshou."""

from typing import Any

import numpy as np
import torch
from replay_harness import FRAMES, Case, ReplayContender, Transitions, main
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer


class TianshouReplay(ReplayContender):
    def __init__(self, case: Case) -> None:
        torch.set_num_threads(case.threads)
        # As in its Atari examples: only the newest frame of a stack is stored, and no successors.
        compact = {"stack_num": FRAMES, "ignore_obs_next": True, "save_only_last_obs": True}
        options = compact if case.variant == "compact" else {}
        if case.prioritized:
            self.buffer = PrioritizedReplayBuffer(case.capacity, alpha=0.6, beta=0.4, **options)
        else:
            self.buffer = ReplayBuffer(case.capacity, **options)
        self.batch_size = case.batch_size

    def prepare(self, transitions: Transitions, step: int) -> Any:
        return Batch(
            obs=transitions.obs(step),
            obs_next=transitions.obs((step + 1) % (transitions.length + 1)),
            act=transitions.actions[step],
            rew=transitions.rewards[step],
            terminated=False,
            truncated=transitions.ends(step),
            done=transitions.ends(step),
            info={},
        )

    def add(self, prepared: Any) -> None:
        self.buffer.add(prepared)

    def sample(self) -> Any:
        return self.buffer.sample(self.batch_size)

    def update_priorities(self, batch: Any, td_errors: np.ndarray) -> None:
        self.buffer.update_weight(batch[1], td_errors)

    def num_rows(self) -> int:
        return len(self.buffer)

    def check(self, batch: Any) -> None:
        rows = batch[0]
        assert rows.obs.shape == rows.obs_next.shape
        assert len(rows.obs) == self.batch_size


if __name__ == "__main__":
    main(TianshouReplay, ["tianshou", "torch", "numpy"])
