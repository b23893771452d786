"""Transitions that are sampled with what followed them: the next observations of the episode, and the actions.

    future_obs      (batch, steps, *obs)    s_{t+1}, ..., s_{t+steps}
    future_actions  (batch, steps)          a_t, ..., a_{t+steps-1}
    follows         (batch, steps)          whether s_{t+k} is stored and belongs to the episode of s_t

Steps must be stored one by one, as annealed_n_step.py does: envs take turns, and row n is followed by row n + num_envs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.acceleration.transfers import WORD, Block, mark_fixed
from rl_training.core.spaces import Field
from rl_training.core.types import Batch, StateDict
from rl_training.data.annealed_n_step import StoredRows
from rl_training.data.frame_storage import FrameStorage
from rl_training.data.row_storage import Reader, RowLayout, RowStorage


class FutureSteps:
    """A storage whose readers add what followed each transition."""

    def __init__(self, storage: RowStorage | FrameStorage, obs: Field, *, steps: int, num_envs: int) -> None:
        """`obs`: the field of one observation."""
        self._storage, self._steps, self._num_envs = storage, steps, num_envs
        self._rows: StoredRows = storage.rows if isinstance(storage, FrameStorage) else storage
        self.capacity = storage.capacity
        self._layout = RowLayout(
            {
                "future_obs": Field((steps, *obs.shape), obs.dtype),
                "future_actions": Field((steps,), np.dtype(np.int64)),
                "follows": Field((steps,), np.dtype(np.bool_)),
            }
        )

    @property
    def first(self) -> int:
        return self._storage.first

    @property
    def end(self) -> int:
        return self._storage.end

    def add(self, transitions: Mapping[str, Any]) -> None:
        self._storage.add(transitions)

    def add_dataset(self, transitions: Mapping[str, Any]) -> None:
        self._storage.add_dataset(transitions)

    def reader(self, batch_size: int, device: torch.device, columns: tuple[str, ...] = ()) -> Reader:
        stored = self._storage.reader(batch_size, device, columns)
        block = Block(batch_size * self._layout.words * WORD, device)
        arrays = self._layout.arrays(block.host.view(batch_size, -1).numpy())
        future = self._layout.tensors(block.on_device, batch_size)
        mark_fixed(future)
        batch = {**stored.batch, **future}

        def fill(places: np.ndarray) -> None:
            stored.fill(places)
            block.wait()
            following, arrays["follows"][:] = self._follow(places)
            arrays["future_obs"][:] = self._storage.obs_at(following)
            before = np.concatenate((places[:, None], following[:, :-1]), 1)
            arrays["future_actions"][:] = self._rows.arrays["actions"][before]
            block.transfer()
            batch.update(stored.batch)

        def snapshot() -> Batch:
            return {**stored.snapshot(), **{name: tensor.clone() for name, tensor in future.items()}}

        return Reader(batch_size, batch, stored.host, stored.wait, fill, snapshot)

    def state_dict(self) -> StateDict:
        return self._storage.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._storage.load_state_dict(state)

    def _follow(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the next steps, (batch, steps), and whether they follow; others repeat the last one."""
        rows, numbers = self._rows, self._rows.end - 1 - (self._rows.end - 1 - places) % self.capacity
        following = np.empty((len(places), self._steps), np.int64)
        follows = np.empty((len(places), self._steps), np.bool_)
        goes_on = np.ones(len(places), np.bool_)
        for step in range(self._steps):
            at = numbers % self.capacity
            goes_on &= ~(rows.arrays["terminated"][at] | rows.arrays["truncated"][at])
            goes_on &= numbers + self._num_envs < rows.end
            numbers = np.where(goes_on, numbers + self._num_envs, numbers)
            following[:, step], follows[:, step] = numbers % self.capacity, goes_on
        return following, follows
