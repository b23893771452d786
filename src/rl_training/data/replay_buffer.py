"""A ring of transitions in one block of memory.

A row holds every field of one transition side by side, so that a batch is one gather and, for a GPU, one transfer,
whatever the number and the dtypes of the fields.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Batch, Setup
from rl_training.data.schema import Field, transition_fields
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.seeding import generator_state, set_generator_state
from rl_training.hparams.base import OffPolicyHParams

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
        return self.sampler(batch_size)()

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Give a function that samples into one batch, the same tensors at every call: what a training loop uses.

        Making five tensors anew costs as much as filling them, and a compiled step knows tensors it has seen before.
        """
        rows = torch.empty((batch_size, self._layout.words), dtype=torch.int64)
        rows_on_device = rows.to(self.device)  # `rows` itself on the CPU
        batch = self._layout.tensors(rows_on_device)
        stored, filled = self._rows.numpy(), rows.numpy()

        def draw() -> Batch:
            if self._size == 0:
                raise RuntimeError("the replay buffer is empty: add transitions before sampling")
            # Half the time of Generator.integers; below 2**53 rows the product stays below the size.
            indices = (self._generator.random(batch_size) * self._size).astype(np.int64)
            stored.take(indices, 0, filled, "clip")  # "raise" would copy through a buffer
            if rows_on_device is not rows:
                rows_on_device.copy_(rows)
            return batch

        return draw

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
        position = int(state["position"])
        if position < len(rows) < self.capacity:  # a full ring goes on in a larger one: its oldest row comes first
            rows, position = torch.roll(rows, -position, dims=0), len(rows)
        self._rows[: len(rows)] = rows
        self._size = len(rows)
        self._position = position % self.capacity
        set_generator_state(self._generator, state["generator"])


def build_replay_buffer(setup: Setup[OffPolicyHParams]) -> ReplayBuffer:
    fields = transition_fields(setup.spaces)
    capacity = setup.hparams.buffer_capacity
    needed = capacity * RowLayout(fields).words * _WORD
    check_memory(needed, f"a replay buffer of {capacity:,} transitions", "algo_kwargs.buffer_capacity")
    return ReplayBuffer(capacity, fields, generator=setup.streams.numpy("buffer"), device=setup.device)


def check_memory(needed: int, what: str, setting: str) -> None:
    """Refuse a buffer that cannot fit, before the run: the system would end the run when it fills up."""
    available = available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"{what} needs {needed / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB of memory are available; "
            f"lower {setting}"
        )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes this process may still take, the container's limit included; None where the system does not say."""
    figures = []
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        kilobytes = _figures(meminfo)
        figures += [kilobytes["MemAvailable"] * 1024] if "MemAvailable" in kilobytes else []
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        figures.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = root / "sys/fs/cgroup"
    limit, used, parts = group / "memory.max", group / "memory.current", group / "memory.stat"
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        # Files that were read and not used since count as used, but the system gives them up when asked for memory.
        cached = _figures(parts).get("inactive_file", 0) if parts.is_file() else 0
        figures.append(max(0, int(limit.read_text()) - int(used.read_text()) + cached))
    return min(figures, default=None)


def _figures(path: Path) -> dict[str, int]:
    """Read lines such as `MemAvailable:  123 kB` or `inactive_file 123`."""
    lines = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
