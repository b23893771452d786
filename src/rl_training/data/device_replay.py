"""A replay buffer in the memory of the device, which samples by counters."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.acceleration.transfers import WORD
from rl_training.core.counters import Keys
from rl_training.core.memory_limits import check_memory
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field, transition_fields
from rl_training.core.state_checks import stored_array, stored_count
from rl_training.core.types import Batch, Metrics, State, StateDict
from rl_training.data.row_storage import RowLayout
from rl_training.errors import CheckpointError, ConfigError

LANE = 2**15 + 2**14  # of the numbers that choose rows


class ReplaySizes(Protocol):
    """The settings of a replay buffer on the device."""

    @property
    def buffer_capacity(self) -> int: ...
    @property
    def batch_size(self) -> int: ...


class DeviceReplay:
    """Holds the last `capacity` transitions; row n is in place n % capacity. Everything changes in place.

    `incoming`: memory for one step of every environment, by field. `batch`: the rows that were sampled last. A stack of
    buffers is one whose tensors have a leading axis of members (`stack_replays`).
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        num_envs: int,
        batch_size: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        """`seeds`: one per member of a stack, or a single one."""
        if num_envs > capacity:
            raise ConfigError(f"buffer_capacity must be at least num_envs, {num_envs}, got {capacity}")
        self.capacity, self.layout = capacity, RowLayout(fields)
        self.num_envs, self.batch_size, self.seeds = num_envs, batch_size, list(seeds)
        axes, self.device = (len(seeds),) if len(seeds) > 1 else (), torch.device(device)
        self.rows, self._step, self._block = (
            torch.zeros((*axes, rows, self.layout.words), dtype=torch.int64, device=device)
            for rows in (capacity, num_envs, batch_size)
        )
        self.count = torch.zeros(axes, dtype=torch.int64, device=device)  # rows that were added so far
        self._seed = torch.tensor(self.seeds, device=device).view(axes)
        self._env = torch.arange(num_envs, device=device)
        self._row = torch.arange(batch_size, device=device).expand(*axes, -1).contiguous()
        self._first = (torch.arange(len(seeds), device=device) * capacity).view(*axes, 1)  # place of each member
        # In memory of their own: a compiled step cannot change views of several dtypes on the same memory.
        self._packed = self._fields_of(self._step)
        self.incoming = {name: torch.zeros_like(values) for name, values in self._packed.items()}
        self.batch = self._fields_of(self._block)

    def _fields_of(self, rows: Tensor) -> Batch:
        flat = self.layout.tensors(rows.view(-1), rows.shape[:-1].numel())
        return {name: values.unflatten(0, rows.shape[:-1]) for name, values in flat.items()}

    def __len__(self) -> int:
        return min(int(self.count), self.capacity)

    @property
    def changed(self) -> list[Tensor]:
        """What adding changes and a resumed run needs."""
        return [self.rows, self.count]

    def push(self) -> None:
        """Add the step in `incoming`, over the oldest rows if the buffer is full."""
        for name, values in self.incoming.items():
            self._packed[name].copy_(values)
        places = self._first + (self.count[..., None] + self._env) % self.capacity
        with _plain_writes():
            self.rows.view(-1, self.layout.words).index_copy_(
                0, places.view(-1), self._step.view(-1, self.layout.words)
            )
        self.count += self.num_envs

    def sampling(self, update: Tensor) -> tuple[State, Batch]:
        """Return the arguments of `sample_rows`, which then fills `batch` for the update of that number, int64."""
        names = {"rows": self.rows, "count": self.count, "seed": self._seed, "row": self._row, "update": update}
        return {"block": self._block}, names

    def random_numbers(self, update: Tensor) -> Batch:
        """Return who asks for the random inputs of an update: its number and the row of each."""
        return {"row": self._row, "update": update}

    def use(self, rows: Tensor, count: Tensor) -> None:
        """Hold these tensors in place of its own: the member's rows of a stack."""
        self.rows, self.count = rows.copy_(self.rows), count.copy_(self.count)

    def add(self, transitions: Mapping[str, object]) -> None:
        raise RuntimeError("the replay buffer of a device is written by its loop")

    def state_dict(self) -> StateDict:
        return {"rows": self.rows[: len(self)].cpu(), "count": int(self.count), "layout": self.layout.describe()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("layout") != self.layout.describe() or "count" not in state:
            raise CheckpointError(
                f"the stored transitions do not fit: they hold {state.get('layout')}, expected "
                f"{self.layout.describe()} of a replay buffer on the device"
            )
        rows = torch.from_numpy(stored_array(state["rows"], "the stored rows", (None, self.layout.words)))
        count = stored_count(state["count"], "the number of added rows")
        if len(rows) != min(count, self.capacity):
            raise CheckpointError(f"{count} transitions were added to a ring of {self.capacity}, found {len(rows)}")
        self.layout.check(rows.numpy())
        self.rows[: len(rows)].copy_(rows)
        self.count.fill_(count)


@contextlib.contextmanager
def _plain_writes() -> Iterator[None]:
    """Write without sorting first, as deterministic kernels do on a GPU: no place occurs twice, so no order matters."""
    enabled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled)


def sample_rows(state: State, batch: Batch) -> tuple[State, Metrics]:
    """Sample rows uniformly, with replacement: a pure step over what `DeviceReplay.sampling` returns."""
    row = batch["row"]
    keys = Keys(batch["seed"].expand_as(row), row, torch.zeros_like(row), batch["update"].expand_as(row))
    size = batch["count"].clamp(max=len(batch["rows"]))
    return {"block": batch["rows"][(keys.words(LANE, 1)[:, 0] * size) >> 32]}, {}


def stack_replays(replays: Sequence[DeviceReplay]) -> DeviceReplay:
    """Return one buffer for all members, of which each of the given ones becomes a part."""
    one = replays[0]
    stack = DeviceReplay(
        one.capacity,
        one.layout.fields,
        num_envs=one.num_envs,
        batch_size=one.batch_size,
        seeds=[replay.seeds[0] for replay in replays],
        device=one.device,
    )
    for number, replay in enumerate(replays):
        replay.use(stack.rows[number], stack.count[number])
    return stack


def build_device_replay(setup: Setup[ReplaySizes]) -> DeviceReplay:
    """Build the buffer; raise `ConfigError` if it does not fit into the memory of the device."""
    hparams, fields = setup.hparams, transition_fields(setup.spaces)
    capacity = hparams.buffer_capacity
    available = torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else None
    what = f"a replay buffer of {capacity:,} transitions on the device"
    check_memory(capacity * RowLayout(fields).words * WORD, what, "algo_kwargs.buffer_capacity", available=available)
    return DeviceReplay(
        capacity,
        fields,
        num_envs=setup.num_envs,
        batch_size=hparams.batch_size,
        seeds=[setup.streams.integer("buffer")],
        device=setup.device,
    )
