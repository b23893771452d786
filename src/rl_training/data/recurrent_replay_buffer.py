"""Replay buffer of sequences: the observations of each env in order, one row per observation.

A row is an observation with what led to it: `actions` and `rewards` of the previous step. `is_first` marks the first
observation of an episode, to which no step led: its action and reward are 0. `terminated` marks an observation after
which the episode does not continue. A time limit needs no mark: the next row is a first one.

The newest rows of an env are fresh. As soon as they are enough for a sequence, it is sampled before the uniform ones,
and its rows are no longer fresh. So each step is trained on soon, however many older ones there are: the "online queue"
of Dreamer's authors.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field, Spaces, transition_fields
from rl_training.core.state_checks import stored_array
from rl_training.core.types import Batch, StateDict
from rl_training.data.replay_buffer import choose_allocator
from rl_training.data.row_storage import Allocate, Reader, RowStorage
from rl_training.errors import CheckpointError
from rl_training.hparams.dreamer import DreamerHParams


class RecurrentReplayBuffer:
    """Samples sequences of rows of one env: fresh ones, then uniformly with replacement. They may span episodes."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        sequence_length: int,
        num_envs: int = 1,
        generator: np.random.Generator,
        device: torch.device | str = "cpu",
        allocate: Allocate = np.zeros,
    ) -> None:
        self.sequence_length, self.device = sequence_length, torch.device(device)
        self._generator = generator
        self._ring_size = capacity // num_envs
        # One ring per env, all in one block of memory, so that a batch is one gather.
        self._block = RowStorage(self._ring_size * num_envs, fields, allocate=allocate)
        self.rings = [RowStorage(self._ring_size, fields, allocate=self._part(env)) for env in range(num_envs)]
        self._begins = np.ones(num_envs, np.bool_)  # whether the next step of an env is the first of its episode
        self._fresh = np.zeros(num_envs, np.int64)  # rows of each env
        self._blank = {name: np.zeros((1, *field.shape), field.dtype) for name, field in fields.items()}

    def __len__(self) -> int:
        """Return the number of different sequences that can be sampled."""
        return int(self._num_starts().sum())

    @property
    def num_rows(self) -> int:
        return int(self._sizes().sum())

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store one step of every env: the next observation and, where an episode starts, the one before it."""
        for env, ring in enumerate(self.rings):
            step, before = {name: transitions[name][env : env + 1] for name in transitions}, ring.end
            if self._begins[env] or not np.array_equal(self._newest_obs(ring), step["obs"][0]):
                ring.add({**self._blank, "obs": step["obs"], "is_first": np.ones(1, np.bool_)})
            ring.add({**self._blank, **step, "obs": step["next_obs"]})
            self._fresh[env] = min(self._fresh[env] + ring.end - before, ring.capacity)
        self._begins = np.asarray(transitions["terminated"] | transitions["truncated"])

    def sample(self, batch_size: int) -> Batch:
        """Sample sequences: each field `(batch, sequence_length, *shape)`, on the buffer's device."""
        return {name: values.clone() for name, values in self.sampler(batch_size)().items()}

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Return a function that samples into the same tensors at every call."""
        reader = self._block.reader(batch_size * self.sequence_length, self.device)
        shape = (batch_size, self.sequence_length)
        batch = {name: torch.unflatten(rows, 0, shape) for name, rows in reader.batch.items()}
        return lambda: self._draw(reader, batch)

    def draw_places(self, count: int) -> np.ndarray:
        """Sample sequences, fresh ones first, and return the places of their rows, (count, sequence_length)."""
        starts = self._num_starts()
        ends = np.cumsum(starts)
        if ends[-1] == 0:
            raise RuntimeError(f"no env has {self.sequence_length} observations yet: add steps before sampling")
        drawn = (self._generator.random(count) * ends[-1]).astype(np.int64)
        fresh = self._take_fresh(ends, count)
        drawn[: len(fresh)] = fresh
        env = np.searchsorted(ends, drawn, side="right")
        oldest = np.array([ring.first for ring in self.rings])
        numbers = (oldest + drawn[:, None] - (ends - starts))[np.arange(count), env]
        rows = numbers[:, None] + np.arange(self.sequence_length)
        places: np.ndarray = env[:, None] * self._ring_size + rows % self._ring_size
        return places

    def update_priorities(self, td_errors: Tensor) -> None:
        """Do nothing: sampling is uniform."""

    def state_dict(self) -> StateDict:
        return {
            "rings": {str(env): ring.state_dict() for env, ring in enumerate(self.rings)},
            "begins": self._begins,
            "fresh": self._fresh,
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for env, ring in enumerate(self.rings):
            ring.load_state_dict(state["rings"][str(env)])
        self._begins = stored_array(state["begins"], "the starts of episodes", (len(self.rings),), np.bool_).copy()
        self._fresh = stored_array(state["fresh"], "the fresh observations", (len(self.rings),), np.int64).copy()
        if ((self._fresh < 0) | (self._fresh > self._sizes())).any():
            raise CheckpointError("the stored numbers of fresh observations must be those of stored observations")
        set_generator_state(self._generator, state["generator"])

    def _part(self, env: int) -> Allocate:
        start = env * self._ring_size
        return lambda shape, dtype: self._block.memory[start : start + self._ring_size]

    @staticmethod
    def _newest_obs(ring: RowStorage) -> np.ndarray:
        """Return the newest observation. The next step continues from it, unless a resumed run starts a new episode."""
        newest: np.ndarray = ring.arrays["obs"][(ring.end - 1) % ring.capacity]
        return newest

    def _sizes(self) -> np.ndarray:
        return np.array([ring.end - ring.first for ring in self.rings])

    def _num_starts(self) -> np.ndarray:
        starts: np.ndarray = np.maximum(self._sizes() - self.sequence_length + 1, 0)
        return starts

    def _take_fresh(self, ends: np.ndarray, count: int) -> list[int]:
        """Take up to `count` fresh sequences, the longest waiting first. Return their numbers among all sequences.

        `ends`: one more than the number of the newest sequence of each env.
        """
        taken: list[int] = []
        while len(taken) < count and self._fresh.max() >= self.sequence_length:
            env = self._fresh.argmax()
            taken.append(int(ends[env] - 1 - (self._fresh[env] - self.sequence_length)))
            self._fresh[env] -= self.sequence_length
        return taken

    def _draw(self, reader: Reader, batch: Batch) -> Batch:
        reader.fill(self.draw_places(len(batch["rewards"])).reshape(-1))
        return batch


def sequence_fields(spaces: Spaces) -> dict[str, Field]:
    """Return the fields of one row, in order."""
    fields = transition_fields(spaces)
    del fields["next_obs"]
    return {**fields, "is_first": Field((), np.dtype(np.bool_))}


def build_recurrent_replay_buffer(setup: Setup[DreamerHParams]) -> RecurrentReplayBuffer:
    hparams, fields = setup.hparams, sequence_fields(setup.spaces)
    needed = RowStorage.num_bytes(hparams.buffer_capacity, fields)
    return RecurrentReplayBuffer(
        hparams.buffer_capacity,
        fields,
        sequence_length=hparams.sequence_length,
        num_envs=setup.num_envs,
        generator=setup.streams.numpy("buffer"),
        device=setup.device,
        allocate=choose_allocator(hparams, needed, "observations"),
    )
