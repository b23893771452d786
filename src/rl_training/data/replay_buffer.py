"""A ring of transitions in one block of memory.

A row holds every field of one transition side by side, so that a batch is one gather and, for a GPU, one transfer,
whatever the number and the dtypes of the fields.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Batch, Setup
from rl_training.data.schema import Field, transition_fields
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.seeding import generator_state, set_generator_state

_WORD = 8  # bytes; every field starts at a multiple, so that any dtype can be viewed in place


class RowLayout:
    """Where each field lies inside a row of 8-byte words."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self.offsets: dict[str, int] = {}
        end = 0
        # Widest items first: then every field is aligned without padding in between.
        for name, field in sorted(fields.items(), key=lambda item: -item[1].dtype.itemsize):
            self.offsets[name] = end
            end += int(np.prod(field.shape, dtype=np.int64)) * field.dtype.itemsize
        self.words = -(-end // _WORD)
        self._torch_dtypes = {name: torch.from_numpy(np.empty(0, field.dtype)).dtype for name, field in fields.items()}
        self._strides = {name: _contiguous_strides(field.shape) for name, field in fields.items()}

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """View each field of int64 `rows` as a numpy array of its own shape and dtype."""
        views = {}
        for name, field in self.fields.items():
            inner = [stride * field.dtype.itemsize for stride in self._strides[name]]
            views[name] = np.ndarray(
                (len(rows), *field.shape), field.dtype, rows.data, self.offsets[name], (self.words * _WORD, *inner)
            )
        return views

    def tensors(self, rows: Tensor) -> Batch:
        """View each field of int64 `rows` as a tensor; no copy."""
        typed: dict[torch.dtype, Tensor] = {}
        batch = {}
        for name, field in self.fields.items():
            dtype, itemsize = self._torch_dtypes[name], field.dtype.itemsize
            if dtype not in typed:
                typed[dtype] = rows.view(dtype)
            batch[name] = typed[dtype].as_strided(
                (len(rows), *field.shape),
                (self.words * _WORD // itemsize, *self._strides[name]),
                self.offsets[name] // itemsize,
            )
        return batch

    def describe(self) -> str:
        return "; ".join(f"{name} {field.dtype}{list(field.shape)}" for name, field in self.fields.items())


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in items, of a dense array: (3, 4, 5) -> (20, 5, 1)."""
    return tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))


class ReplayBuffer:
    """Holds the last `capacity` transitions; samples uniformly, with replacement."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        generator: np.random.Generator,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"buffer_capacity must be >= 1, got {capacity}")
        self.capacity = capacity
        self.device = torch.device(device)
        self._layout = RowLayout(fields)
        self._rows = torch.from_numpy(np.zeros((capacity, self._layout.words), np.int64))
        self._arrays = self._layout.arrays(self._rows.numpy())
        self._generator = generator
        self._position = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store N transitions: for each field an array of N rows. Other entries are ignored; the oldest rows go."""
        rows = len(transitions["rewards"])
        if rows > self.capacity:
            transitions = {name: values[-self.capacity :] for name, values in transitions.items()}
            self._position = (self._position + rows - self.capacity) % self.capacity
            rows = self.capacity
        start, end = self._position, self._position + rows
        for name, array in self._arrays.items():
            values = transitions[name]
            if end <= self.capacity:
                array[start:end] = values
            else:
                head = self.capacity - start
                array[start:] = values[:head]
                array[: end - self.capacity] = values[head:]
        self._position = end % self.capacity
        self._size = min(self._size + rows, self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly: each field (batch, *shape), on the buffer's device."""
        if self._size == 0:
            raise RuntimeError("the replay buffer is empty: add transitions before sampling")
        indices = torch.from_numpy(self._generator.integers(self._size, size=batch_size))
        rows = torch.index_select(self._rows, 0, indices)
        return self._layout.tensors(rows.to(self.device))

    def state_dict(self) -> dict[str, Any]:
        """Only the filled part; rows as stored."""
        return {
            "rows": self._rows[: self._size],
            "position": self._position,
            "layout": self._layout.describe(),
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rows = torch.as_tensor(state["rows"])
        if state["layout"] != self._layout.describe():
            raise CheckpointError(
                f"the stored transitions do not fit: they hold {state['layout']}, expected {self._layout.describe()}"
            )
        if len(rows) > self.capacity:
            raise CheckpointError(f"{len(rows)} transitions are stored, but buffer_capacity is {self.capacity}")
        self._rows[: len(rows)] = rows
        self._size = len(rows)
        self._position = int(state["position"])
        set_generator_state(self._generator, state["generator"])


def build_replay_buffer(setup: Setup[Any]) -> ReplayBuffer:
    fields = transition_fields(setup.spaces)
    capacity = setup.hparams.buffer_capacity
    check_memory(capacity * RowLayout(fields).words * _WORD, capacity)
    return ReplayBuffer(capacity, fields, generator=setup.streams.numpy("buffer"), device=setup.device)


def check_memory(needed: int, capacity: int) -> None:
    """Refuse a buffer that cannot fit, before the run: the system would end the run when it fills up."""
    available = available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"a replay buffer of {capacity:,} transitions needs {needed / 2**30:.1f} GiB, but only "
            f"{available / 2**30:.1f} GiB of memory are available; lower algo_kwargs.buffer_capacity"
        )


def available_memory() -> int | None:
    """Bytes this process may still take, the container's limit included; None where the system does not say."""
    figures = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                figures.append(int(line.split()[1]) * 1024)
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        figures.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        figures.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(figures, default=None)
