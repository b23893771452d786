"""The replay buffers of cpprb, whose rings and trees are written in C++ and Cython; batches are numpy arrays."""

from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer
from replay_harness import FRAMES, Case, ReplayContender, Transitions, main


class CpprbReplay(ReplayContender):
    def __init__(self, case: Case) -> None:
        self.compact = case.variant == "compact"  # frames and successors are stored once; frames are the last axis
        images = {"shape": (84, 84, FRAMES) if self.compact else (FRAMES, 84, 84), "dtype": np.uint8}
        observation: dict[str, Any] = {"shape": 17} if case.kind == "floats" else images
        fields: dict[str, Any] = {
            "obs": observation,
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {"dtype": np.bool_},
        }
        options: dict[str, Any] = {}
        if self.compact:
            options["next_of"] = "obs"
            if case.kind == "images":
                options["stack_compress"] = "obs"
        else:
            fields["next_obs"] = observation
        if case.prioritized:
            self.buffer = PrioritizedReplayBuffer(case.capacity, fields, alpha=0.6, **options)
        else:
            self.buffer = ReplayBuffer(case.capacity, fields, **options)
        self.prioritized, self.batch_size = case.prioritized, case.batch_size
        self.stacks_last = self.compact and case.kind == "images"

    def prepare(self, transitions: Transitions, step: int) -> Any:
        obs, next_obs = transitions.obs(step), transitions.obs((step + 1) % (transitions.length + 1))
        if self.stacks_last:
            obs, next_obs = (np.ascontiguousarray(x.transpose(1, 2, 0)) for x in (obs, next_obs))
        row = {
            "obs": obs,
            "next_obs": next_obs,
            "act": transitions.actions[step],
            "rew": transitions.rewards[step],
            "done": False,
        }
        return row, transitions.ends(step)

    def add(self, prepared: Any) -> None:
        row, ends = prepared
        self.buffer.add(**row)
        if ends:
            self.buffer.on_episode_end()

    def sample(self) -> Any:
        return self.buffer.sample(self.batch_size, 0.4) if self.prioritized else self.buffer.sample(self.batch_size)

    def update_priorities(self, batch: Any, td_errors: np.ndarray) -> None:
        self.buffer.update_priorities(batch["indexes"], td_errors)

    def num_rows(self) -> int:
        return int(self.buffer.get_stored_size())

    def check(self, batch: Any) -> None:
        assert batch["obs"].shape == batch["next_obs"].shape
        assert len(batch["obs"]) == self.batch_size


if __name__ == "__main__":
    main(CpprbReplay, ["cpprb", "numpy"])
