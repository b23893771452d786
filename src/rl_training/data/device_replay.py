"""A replay buffer in the memory of the device, which samples by counters."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.acceleration.steps import InPlaceStep, Step, accelerate
from rl_training.acceleration.transfers import WORD
from rl_training.core.counters import Keys
from rl_training.core.memory_limits import check_memory
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field, replay_fields
from rl_training.core.state_checks import stored_array, stored_count, stored_number
from rl_training.core.types import Batch, Metrics, State, StateDict
from rl_training.data.device_n_step import DeviceWindows
from rl_training.data.device_priorities import LANE, DevicePriorities, PriorityPlan
from rl_training.data.row_storage import RowLayout
from rl_training.errors import CheckpointError, ConfigError


class ReplaySizes(Protocol):
    """The settings of a replay buffer on the device."""

    @property
    def buffer_capacity(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def gamma(self) -> float: ...
    @property
    def n_step(self) -> int: ...
    @property
    def prioritized(self) -> bool: ...
    @property
    def prioritized_alpha(self) -> float: ...
    @property
    def prioritized_beta_start(self) -> float: ...
    @property
    def prioritized_beta_end(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a replay buffer holds, and how it is sampled: the same for all members of a stack."""

    capacity: int
    fields: Mapping[str, Field]
    num_envs: int
    batch_size: int
    n_step: int = 1
    gamma: float = 1.0  # of n-step returns
    priorities: PriorityPlan | None = None

    @property
    def delay(self) -> int:
        """The env steps after which the first row is stored, beyond those of one step."""
        return (self.n_step - 1) * self.num_envs

    @property
    def num_bytes(self) -> int:
        priorities = DevicePriorities.num_bytes(self.capacity) if self.priorities else 0
        return self.capacity * RowLayout(self.fields).words * WORD + priorities


class DeviceReplay:
    """Holds the last `capacity` transitions; row n is in place n % capacity. Everything changes in place.

    `incoming`: memory for one step of every environment, by field. `batch`: the rows that were sampled last. A stack of
    buffers is one whose tensors have a leading axis of members (`stack_replays`).
    """

    def __init__(self, plan: ReplayPlan, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        """`seeds`: one per member of a stack, or a single one."""
        self.plan, self.capacity, self.layout = plan, plan.capacity, RowLayout(plan.fields)
        num_envs, batch_size, self.seeds = plan.num_envs, plan.batch_size, list(seeds)
        if num_envs > plan.capacity:
            raise ConfigError(f"buffer_capacity must be at least num_envs, {num_envs}, got {plan.capacity}")
        axes, self.device = (len(seeds),) if len(seeds) > 1 else (), torch.device(device)
        self.rows, self._step, self._block = (
            torch.zeros((*axes, rows, self.layout.words), dtype=torch.int64, device=device)
            for rows in (plan.capacity, num_envs, batch_size)
        )
        self.count = torch.zeros(axes, dtype=torch.int64, device=device)  # rows that were added so far
        self.stack: DeviceReplay | None = None  # that this buffer is a part of
        self._seed = torch.tensor(self.seeds, device=device).view(axes)
        self._env = torch.arange(num_envs, device=device)
        self._row = torch.arange(batch_size, device=device).expand(*axes, -1).contiguous()
        self._first = (torch.arange(len(seeds), device=device) * plan.capacity).view(*axes, 1)  # place of each member
        # In memory of their own: a compiled step cannot change views of several dtypes on the same memory.
        self._packed = self._fields_of(self._step)
        self.incoming = {name: torch.zeros_like(x) for name, x in self._packed.items() if name != "discounts"}
        self.batch = self._fields_of(self._block)
        self._windows = self._priorities = None
        if plan.n_step > 1:
            self.incoming["truncated"] = torch.zeros_like(self.incoming["terminated"])
            self._windows = DeviceWindows(plan.n_step, plan.gamma, self.incoming, axes)
        if plan.priorities:
            self._priorities = DevicePriorities(plan.priorities, plan.capacity, batch_size, axes, self.device)
            self.batch["weights"] = self._priorities.weights
        self.accelerate("eager")

    def accelerate(self, mode: str) -> None:
        """Run the steps of the buffer in this mode from now on."""

        def made(step: Step, name: str) -> InPlaceStep:
            each = torch.func.vmap(step, randomness="error") if self.count.ndim else step
            return accelerate(each, mode, name)

        self._sample_in_place = made(self._priorities.sample if self._priorities else sample_rows, "sampling")
        if self._windows:
            self._advance_in_place = made(self._windows.advance, "n-step windows")
        if self._priorities:
            self._rate_in_place = made(self._priorities.rate, "priorities")

    def _fields_of(self, rows: Tensor) -> Batch:
        flat = self.layout.tensors(rows.view(-1), rows.shape[:-1].numel())
        return {name: values.unflatten(0, rows.shape[:-1]) for name, values in flat.items()}

    def __len__(self) -> int:
        return min(int(self.count), self.capacity)

    @property
    def _parts(self) -> list[DeviceWindows | DevicePriorities]:
        return [part for part in (self._windows, self._priorities) if part]

    def undoing(self, steps: int) -> Callable[[], None]:
        """Return a function that takes back the next `steps` calls of `push` and all changes of priorities.

        Only the rows that they overwrite are copied: the buffer may fill half of the memory.
        """
        added = torch.arange(steps * self.plan.num_envs, device=self.device)
        places = (self._first + (self.count[..., None] + added) % self.capacity).view(-1)
        rows = self.rows.view(-1, self.layout.words)
        others = [self.count, *(tensor for part in self._parts for tensor in part.changed.values())]
        overwritten, before = rows[places], [tensor.clone() for tensor in others]

        def undo() -> None:
            with _plain_writes():  # a place that occurs twice gets the same row twice
                rows.index_copy_(0, places, overwritten)
            for tensor, value in zip(others, before, strict=True):
                tensor.copy_(value)

        return undo

    def push(self) -> None:
        """Add the step in `incoming`, over the oldest rows if the buffer is full."""
        complete, is_new = self.incoming, torch.ones_like(self.count)
        if self._windows:
            self._advance_in_place(self._windows.state, self.incoming)
            self._windows.count += 1
            complete, is_new = self._windows.summed, self._windows.is_full.long()
        for name, values in complete.items():
            self._packed[name].copy_(values)
        places = (self.count[..., None] + self._env) % self.capacity
        with _plain_writes():
            self.rows.view(-1, self.layout.words).index_copy_(
                0, (self._first + places).view(-1), self._step.view(-1, self.layout.words)
            )
            if self._priorities:
                largest = self._priorities.largest * is_new
                self._priorities.set(places, largest[..., None].expand_as(places))
        self.count += self.plan.num_envs * is_new

    def sample(self, update: Tensor) -> Batch:
        """Sample the rows of the update of that number, int64; the result also says who asks for random inputs."""
        asking = {"row": self._row, "update": update}
        names = {"rows": self.rows, "count": self.count, "seed": self._seed, **asking}
        state = {"block": self._block}
        if self._priorities:
            names, state = names | self._priorities.read, state | self._priorities.drawn
        self._sample_in_place(state, names)
        return self.batch | asking

    def update_priorities(self, td_errors: Tensor) -> None:
        """Set the priorities of the rows that were sampled last: (members, batch) absolute TD errors."""
        if self._priorities is None:
            return
        self._rate_in_place(self._priorities.rated, {"td_errors": td_errors, "places": self._priorities.places})
        with _plain_writes():
            self._priorities.set(self._priorities.places)

    def release(self) -> None:
        """Free what `use` replaces; only `use` may follow."""
        self.rows = self.rows.new_empty(0)
        if self._priorities:
            self._priorities.release()

    def use(self, stack: "DeviceReplay", number: int) -> None:
        """Hold the tensors of a member of a stack in place of its own."""
        self.stack, self.rows, self.count = stack, stack.rows[number], stack.count[number]
        if self._windows and stack._windows:
            self._windows.use(stack._windows, number)
        if self._priorities and stack._priorities:
            self._priorities.use(stack._priorities, number)

    def add(self, transitions: Mapping[str, object]) -> None:
        raise RuntimeError("the replay buffer of a device is written by its loop")

    def state_dict(self) -> StateDict:
        state: StateDict = {"rows": self.rows[: len(self)].cpu(), "count": int(self.count)}
        if self._windows:
            state["windows"] = {name: values.cpu().clone() for name, values in self._windows.changed.items()}
        if self._priorities:
            state["priorities"] = self._priorities.table.view(-1)[: len(self)].cpu()
            state["max_priority"] = float(self._priorities.largest)
        return state | {"layout": self.layout.describe()}

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
        if self._windows:
            self._load_windows(state.get("windows"), self._windows)
        if self._priorities:
            self._load_priorities(state, self._priorities)

    def _load_windows(self, saved: Any, windows: DeviceWindows) -> None:
        if not isinstance(saved, Mapping) or saved.keys() != windows.changed.keys():
            raise CheckpointError(f"the stored n-step windows must hold {', '.join(windows.changed)}")
        for name, values in windows.changed.items():
            array = stored_array(saved[name], f"the stored n-step windows' {name}", tuple(values.shape))
            values.copy_(torch.from_numpy(array.copy()))

    def _load_priorities(self, state: Mapping[str, Any], priorities: DevicePriorities) -> None:
        if "priorities" not in state:
            raise CheckpointError(
                "the stored transitions have no priorities: prioritized was false when they were saved"
            )
        saved = stored_array(state["priorities"], "the stored priorities", (len(self),))
        if not (saved > 0.0).all():
            raise CheckpointError("the stored priorities must be above 0, found others")
        largest = stored_number(state["max_priority"], "the largest priority")
        priorities.load(torch.from_numpy(saved.copy()).to(self.device), largest)


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
    """Sample rows uniformly, with replacement: a pure step over what `DeviceReplay.sample` names."""
    row = batch["row"]
    keys = Keys(batch["seed"].expand_as(row), row, torch.zeros_like(row), batch["update"].expand_as(row))
    size = batch["count"].clamp(max=len(batch["rows"]))
    return {"block": batch["rows"][(keys.words(LANE, 1)[:, 0] * size) >> 32]}, {}


def stack_replays(replays: Sequence[DeviceReplay]) -> DeviceReplay:
    """Return one buffer for all members, of which each of the given ones becomes a part; all are empty.

    The memory of the members is released first: that of the stack is as large. They load their rows into the stack.
    """
    one = replays[0]
    if any(map(len, replays)):
        raise RuntimeError("replay buffers must be stacked before rows are added or loaded")
    for replay in replays:
        replay.release()
    stack = DeviceReplay(one.plan, [replay.seeds[0] for replay in replays], one.device)
    for number, replay in enumerate(replays):
        replay.use(stack, number)
    return stack


def build_device_replay(setup: Setup[ReplaySizes]) -> DeviceReplay:
    """Build the buffer; raise `ConfigError` if it does not fit into the memory of the device."""
    hparams = setup.hparams
    priorities = PriorityPlan(
        alpha=hparams.prioritized_alpha,
        beta_start=hparams.prioritized_beta_start,
        beta_end=hparams.prioritized_beta_end,
        total_updates=setup.total_updates,
    )
    plan = ReplayPlan(
        capacity=hparams.buffer_capacity,
        fields=replay_fields(setup.spaces, n_step=hparams.n_step),
        num_envs=setup.num_envs,
        batch_size=hparams.batch_size,
        n_step=hparams.n_step,
        gamma=hparams.gamma,
        priorities=priorities if hparams.prioritized else None,
    )
    available = torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else None
    what = f"a replay buffer of {plan.capacity:,} transitions on the device"
    check_memory(plan.num_bytes, what, "algo_kwargs.buffer_capacity", available=available)
    return DeviceReplay(plan, [setup.streams.integer("buffer")], setup.device)
