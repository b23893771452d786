"""The replay buffers of TorchRL."""

from typing import Any

import numpy as np
import torch
from replay_harness import Case, ReplayContender, Transitions, main
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer


class TorchRLReplay(ReplayContender):
    def __init__(self, case: Case) -> None:
        torch.set_num_threads(case.threads)
        storage = LazyTensorStorage(case.capacity)
        if case.prioritized:
            self.buffer = TensorDictPrioritizedReplayBuffer(
                alpha=0.6, beta=0.4, storage=storage, batch_size=case.batch_size
            )
        else:
            self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=case.batch_size)
        self.batch_size = case.batch_size

    def prepare(self, transitions: Transitions, step: int) -> Any:
        return TensorDict(
            {
                "obs": torch.from_numpy(transitions.obs(step)),
                "next_obs": torch.from_numpy(transitions.obs((step + 1) % (transitions.length + 1))),
                "actions": torch.tensor(int(transitions.actions[step])),
                "rewards": torch.tensor(float(transitions.rewards[step])),
                "terminated": torch.tensor(False),
            },
            batch_size=[],
        )

    def add(self, prepared: Any) -> None:
        self.buffer.add(prepared)

    def sample(self) -> Any:
        return self.buffer.sample()

    def update_priorities(self, batch: Any, td_errors: np.ndarray) -> None:
        self.buffer.update_priority(batch["index"], torch.from_numpy(td_errors))

    def num_rows(self) -> int:
        return len(self.buffer)

    def check(self, batch: Any) -> None:
        assert len(batch["obs"]) == self.batch_size


if __name__ == "__main__":
    main(TorchRLReplay, ["torchrl", "tensordict", "torch", "numpy"])
