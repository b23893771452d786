"""A ring of transitions in one block of memory.

A row holds all fields of one transition next to each other. With any number of fields of any dtype, a batch is then one
gather and, for a GPU, one transfer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.transfers import WORD, Block, mark_fixed, torch_dtype
from rl_training.core.spaces import Field
from rl_training.core.state_checks import stored_array, stored_count
from rl_training.core.types import Batch, StateDict
from rl_training.data.annealed_n_step import AnnealedWindows
from rl_training.data.n_step import NStepWindows
from rl_training.errors import CheckpointError, ConfigError

# Returns memory of a shape and dtype, all zero.
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
# Changes a batch on the host: the places of its rows, and its fields as arrays.
Edit: TypeAlias = Callable[[np.ndarray, Mapping[str, np.ndarray]], None]

_CHECKED_AT_ONCE = 65_536  # rows


@dataclass(frozen=True, slots=True)
class Reader:
    """Gathers rows into one batch, the same tensors at every call."""

    batch_size: int
    batch: Batch
    host: Batch  # the same batch on the CPU; after `wait` and before `fill`, set its columns that are not stored
    wait: Callable[[], None]  # waits until `host` may be written to again
    fill: Callable[[np.ndarray], None]  # gathers the rows in these places, int64
    snapshot: Callable[[], Batch]  # returns the current batch in tensors that the next `fill` does not change


class Storage(Protocol):
    """Holds transitions: the rows numbered `first` to `end - 1`, row n in place n % capacity."""

    capacity: int

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store N transitions: for each field an array of N rows. Other entries are ignored."""
        ...

    def add_dataset(self, transitions: Mapping[str, Any]) -> None:
        """Store the transitions of a dataset, in their order, before those of any env."""
        ...

    def reader(self, batch_size: int, device: torch.device, columns: tuple[str, ...] = ()) -> Reader:
        """Return a reader whose batch has the stored fields and `columns`, (batch,) float32 each."""
        ...

    def state_dict(self) -> StateDict:
        """Return the filled part."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class RowLayout:
    """The position of each field in a row of 8-byte words."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self.offsets: dict[str, int] = {}
        end = 0
        # Widest items first: every field is then aligned without padding in between.
        for name, field in sorted(fields.items(), key=lambda item: -item[1].dtype.itemsize):
            self.offsets[name] = end
            end += field.num_bytes
        self.words = -(-end // WORD)
        self._views = []
        for name, field in fields.items():
            itemsize, strides = field.dtype.itemsize, _contiguous_strides(field.shape)
            row_stride, offset = self.words * WORD // itemsize, self.offsets[name] // itemsize
            self._views.append((name, torch_dtype(field.dtype), row_stride, field.shape, strides, offset))

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return a view of each field of int64 `rows` as a numpy array with the field's shape and dtype."""
        views = {}
        for name, field in self.fields.items():
            inner = [stride * field.dtype.itemsize for stride in _contiguous_strides(field.shape)]
            views[name] = np.ndarray(
                (len(rows), *field.shape), field.dtype, rows.data, self.offsets[name], (self.words * WORD, *inner)
            )
        return views

    def tensors(self, words: Tensor, num_rows: int) -> Batch:
        """Return a view of each field, as a tensor, of the `num_rows` rows at the start of int64 `words`."""
        typed: dict[torch.dtype, Tensor] = {}
        batch = {}
        for name, dtype, row_stride, shape, strides, offset in self._views:
            if dtype not in typed:
                typed[dtype] = words.view(dtype)
            batch[name] = typed[dtype].as_strided((num_rows, *shape), (row_stride, *strides), offset)
        return batch

    def check(self, rows: np.ndarray) -> None:
        """Raise `CheckpointError` for rows that hold what no transition can: NaN, other flags than 0 and 1."""
        for start in range(0, len(rows), _CHECKED_AT_ONCE):
            for name, array in self.arrays(np.ascontiguousarray(rows[start : start + _CHECKED_AT_ONCE])).items():
                field = self.fields[name]
                if field.dtype.kind == "f" and not np.isfinite(array).all():
                    raise CheckpointError(f"the stored {name} hold numbers that are not finite")
                if field.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
                    raise CheckpointError(f"the stored {name} must be true or false")
                if field.choices is not None and ((array < 0) | (array >= field.choices)).any():
                    raise CheckpointError(f"the stored {name} must be in [0, {field.choices}), found others")

    def describe(self) -> str:
        return "; ".join(f"{name} {field.dtype}{list(field.shape)}" for name, field in self.fields.items())


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in items, of a dense array: (3, 4, 5) -> (20, 5, 1)."""
    return tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))


class RowStorage:
    """Holds the last `capacity` transitions, all fields of each in one row."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        windows: NStepWindows | AnnealedWindows | None = None,
        allocate: Allocate = np.zeros,
    ) -> None:
        """`windows`: sum n steps of each env into one transition, before it is stored or when it is sampled."""
        if capacity < 1:
            raise ConfigError(f"buffer_capacity must be >= 1, got {capacity}")
        self.capacity = capacity
        self.first = 0
        self.end = 0
        self.layout = RowLayout(fields)
        self.windows = windows
        self._rows = torch.from_numpy(allocate((capacity, self.layout.words), np.dtype(np.int64)))
        self.arrays = self.layout.arrays(self._rows.numpy())

    @staticmethod
    def num_bytes(capacity: int, fields: Mapping[str, Field]) -> int:
        """Return the bytes that such a storage needs."""
        return capacity * RowLayout(fields).words * WORD

    def add(self, transitions: Mapping[str, Any]) -> None:
        if isinstance(self.windows, AnnealedWindows):
            transitions = self.windows.push(transitions, self)
        elif self.windows is not None:
            transitions = self.windows.push(transitions)
        rows = len(transitions["rewards"])
        if rows > self.capacity:
            transitions = {name: values[-self.capacity :] for name, values in transitions.items()}
            rows = self.capacity
        start = self.end % self.capacity
        end = start + rows
        if rows == 1:  # an item is faster than a slice
            for name, array in self.arrays.items():
                array[start] = transitions[name][0]
        elif end <= self.capacity:
            places = slice(start, end)
            for name, array in self.arrays.items():
                array[places] = transitions[name]
        else:
            head = self.capacity - start
            for name, array in self.arrays.items():
                array[start:] = transitions[name][:head]
                array[: rows - head] = transitions[name][head:]
        self.end += rows
        self.first = max(self.first, self.end - self.capacity)

    add_dataset = add

    def discard_before(self, first: int) -> None:
        """Discard the rows numbered below `first`."""
        self.first = max(self.first, first)

    @property
    def is_plain(self) -> bool:
        """Whether a sampled row is a stored row as it is."""
        return not isinstance(self.windows, AnnealedWindows)

    @property
    def memory(self) -> np.ndarray:
        """All places, (capacity, words) of int64."""
        memory: np.ndarray = self._rows.numpy()
        return memory

    def obs_at(self, places: np.ndarray) -> np.ndarray:
        """Return the observations in these places: (...) -> (..., *obs)."""
        obs: np.ndarray = self.arrays["obs"][places]
        return obs

    def contents(self) -> dict[str, np.ndarray]:
        """Return a copy of all rows, oldest first, by field."""
        places = np.arange(self.first, self.end) % self.capacity
        return {name: array[places] for name, array in self.arrays.items()}

    def reader(
        self, batch_size: int, device: torch.device, columns: tuple[str, ...] = (), edit: Edit | None = None
    ) -> Reader:
        """Return a reader as `Storage.reader` does; `edit` changes each batch before it goes to the device."""
        if isinstance(self.windows, AnnealedWindows):
            edit = partial(self.windows.sum_rewards, rows=self)
        num_words = batch_size * self.layout.words
        block = Block(num_words * WORD + batch_size * 4 * len(columns), device)
        stored, filled = self._rows.numpy(), block.host[:num_words].view(batch_size, self.layout.words).numpy()
        arrays = self.layout.arrays(filled) if edit is not None else {}

        def view(words: Tensor) -> Batch:
            batch, floats = self.layout.tensors(words, batch_size), words.view(torch.float32)
            for number, name in enumerate(columns):
                batch[name] = floats.as_strided((batch_size,), (1,), num_words * 2 + number * batch_size)
            return batch

        def fill(places: np.ndarray) -> None:
            if not on_host:
                block.wait()
            stored.take(places, 0, filled, "clip")  # "raise" would copy through a buffer
            if edit is not None:
                edit(places, arrays)
            if not on_host:
                block.transfer()

        def snapshot() -> Batch:
            return {name: tensor.clone() for name, tensor in batch.items()}  # faster than views on another block

        batch, on_host = view(block.on_device), block.on_device is block.host
        mark_fixed(batch)
        return Reader(batch_size, batch, batch if on_host else view(block.host), block.wait, fill, snapshot)

    def state_dict(self) -> StateDict:
        """Return the filled part: the rows in the order of their places or, if rows were discarded, oldest first."""
        size, is_gapless = self.end - self.first, self.first == 0 or self.end - self.first == self.capacity
        places = np.arange(self.first, self.end) % self.capacity
        state: StateDict = {
            "rows": self._rows[:size] if is_gapless else self._rows[torch.from_numpy(places)],
            "position": self.end % self.capacity,
            "layout": self.layout.describe(),
        }
        if not is_gapless:
            state |= {"first": self.first % self.capacity, "capacity": self.capacity}
        if self.windows is not None:
            state["windows"] = self.windows.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["layout"] != self.layout.describe():
            raise CheckpointError(
                f"the stored transitions do not fit: they hold {state['layout']}, expected {self.layout.describe()}"
            )
        rows = torch.from_numpy(stored_array(state["rows"], "the stored rows", (None, self.layout.words), np.int64))
        self.layout.check(rows.numpy())
        position = stored_count(state["position"], "the position in the buffer")
        if len(rows) > self.capacity:
            raise CheckpointError(f"{len(rows)} transitions are stored, but buffer_capacity is {self.capacity}")
        oldest_first = [rows]
        if "first" in state:
            first, capacity = (stored_count(state[name], f"the buffer's {name}") for name in ("first", "capacity"))
            is_same_ring = capacity == self.capacity
            if len(rows) > capacity or (first + len(rows)) % max(capacity, 1) != position:
                raise CheckpointError(
                    f"{len(rows)} transitions from place {first} of {capacity} on do not end at place {position}"
                )
        else:
            if position > len(rows):
                raise CheckpointError(f"the next place is {position}, but {len(rows)} transitions are stored")
            first, is_same_ring = position, len(rows) == self.capacity
            if position < len(rows):  # a full ring
                oldest_first = [rows[position:], rows[:position]]
        # Every row keeps its place; in a larger ring the oldest is put first.
        self.first = self.end = first if is_same_ring else 0
        for piece in oldest_first:
            write_ring(self._rows, self.end, piece)
            self.end += len(piece)
        if self.windows is not None:
            self.windows.load_state_dict(state["windows"])


def write_ring(ring: Tensor, number: int, rows: Tensor) -> None:
    """Write consecutive rows to a ring, the first as row `number`."""
    start = number % len(ring)
    head = min(len(rows), len(ring) - start)
    ring[start : start + head] = rows[:head]
    ring[: len(rows) - head] = rows[head:]
