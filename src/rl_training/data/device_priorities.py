"""Prioritized replay on the device: the distribution and the weights of prioritized_replay_buffer.py, in fixed shapes.

The priorities are a square table. A place is found in two steps, by the running sums of its rows and by those within
one row; a change of some priorities sums up their rows again, so that no error accumulates (float64).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.core.counters import LEARNING_LANE, Keys
from rl_training.core.types import Batch, Metrics, State
from rl_training.data.prioritized_replay_buffer import PRIORITY_FLOOR, error_range

LANE = LEARNING_LANE + 2**14  # of the numbers that choose rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityPlan:
    """How priorities depend on TD errors, and weights on priorities."""

    alpha: float
    beta_start: float
    beta_end: float
    total_updates: int  # until the exponent of the weights reaches `beta_end`

    def beta(self, update: Tensor) -> Tensor:
        progress = (update.double() / max(1, self.total_updates)).clamp(max=1.0)
        return self.beta_start + progress * (self.beta_end - self.beta_start)


class DevicePriorities:
    """The priorities of `capacity` places; everything changes in place."""

    def __init__(
        self, plan: PriorityPlan, capacity: int, batch_size: int, axes: Sequence[int], device: torch.device
    ) -> None:
        """`axes`: of the members of a stack."""
        self.width = width = math.isqrt(capacity - 1) + 1
        self.table = torch.zeros((*axes, width, width), dtype=torch.float64, device=device)
        self.sums = self.table.new_zeros((*axes, width))
        self.largest = self.table.new_ones(tuple(axes))  # priority so far: that of new rows
        self._values = self.table.new_zeros((*axes, batch_size))
        self.places = torch.zeros((*axes, batch_size), dtype=torch.int64, device=device)  # of the last batch
        self.weights = torch.zeros((*axes, batch_size), device=device)
        self.upper = self.table.new_ones((width, width)).triu().expand(*axes, -1, -1)
        members = math.prod(axes)
        self._first = (torch.arange(members, device=device) * width * width).view(*axes, 1)
        self._plan = plan

    @staticmethod
    def num_bytes(capacity: int) -> int:
        return 2 * 8 * capacity  # with the matrix that sums

    @property
    def changed(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        return {"table": self.table, "sums": self.sums, "largest": self.largest}

    def release(self) -> None:
        """Free the large tensors that `use` replaces."""
        self.table = self.upper = self.table.new_empty(0)

    def use(self, stack: "DevicePriorities", number: int) -> None:
        """Hold the tensors of a member of a stack in place of its own."""
        self.table, self.sums, self.largest = stack.table[number], stack.sums[number], stack.largest[number]
        self.upper = stack.upper[number]

    @property
    def read(self) -> Batch:
        """What `sample` reads."""
        return {"table": self.table, "sums": self.sums, "upper": self.upper}

    @property
    def drawn(self) -> State:
        """What `sample` writes."""
        return {"places": self.places, "weights": self.weights}

    @property
    def rated(self) -> State:
        """What `rate` writes."""
        return {"values": self._values, "largest": self.largest}

    def sample(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Sample rows by priority: a pure step that writes `drawn` and `block`."""
        return sample_by_priority(state, batch, self._plan)

    def rate(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Compute the priorities of a batch from its TD errors: a pure step that writes `rated`."""
        return new_priorities(state, batch, self._plan.alpha)

    def set(self, places: Tensor, priorities: Tensor | None = None) -> None:
        """Set priorities, (members, places) each, by default those that `rate` has found.

        The same place twice must come with the same priority twice. Call it where writes need no order.
        """
        priorities = self._values if priorities is None else priorities
        flat = (self._first + places).view(-1)
        self.table.view(-1).index_copy_(0, flat, priorities.reshape(-1))
        rows = flat // self.width
        self.sums.view(-1).index_copy_(0, rows, self.table.view(-1, self.width).index_select(0, rows).sum(1))

    def load(self, priorities: Tensor, largest: float) -> None:
        """Set the priorities of the first places, (places,), and those of the others to 0."""
        self.table.zero_().view(-1)[: len(priorities)].copy_(priorities)
        self.sums.copy_(self.table.sum(-1))
        self.largest.fill_(largest)


def sample_by_priority(state: State, batch: Batch, plan: PriorityPlan) -> tuple[State, Metrics]:
    """Sample one row from each of as many equal slices of the sum of priorities: a pure step.

    It finds `places`, their `weights`, and `block`, the rows in these places. See `DeviceReplay.sample` for what it
    reads.
    """
    row, update, table = batch["row"], batch["update"], batch["table"]
    keys = Keys(batch["seed"].expand_as(row), row, torch.zeros_like(row), update.expand_as(row))
    fractions = keys.words(LANE, 1)[:, 0].double() * 2.0**-32
    size = batch["count"].clamp(max=len(batch["rows"]))
    # Rounding may lead past the last row.
    places = torch.minimum(find_places(table, batch["sums"], batch["upper"], fractions), size - 1)
    priorities = table.reshape(-1)[places]
    # (N P(i))^-beta divided by the largest of the batch: N and the sum of the priorities cancel.
    weights = (priorities.min() / priorities) ** plan.beta(update)
    return {"places": places, "weights": weights.float(), "block": batch["rows"][places]}, {}


def find_places(table: Tensor, sums: Tensor, upper: Tensor, fractions: Tensor) -> Tensor:
    """Return a place for each of B fractions in [0, 1): the i-th is in the i-th of B equal slices of the total.

    `upper`: ones on and above the diagonal. A product with it is a running sum, which unlike `cumsum` is deterministic
    on every device.
    """
    ends = sums @ upper
    slices = torch.arange(len(fractions), device=sums.device)
    target = (slices + fractions) * (ends[-1] / len(fractions))
    row = (ends[:-1] <= target[:, None]).sum(1)
    rest = target - (ends[row] - sums[row])  # what remains of the target inside the row
    column = ((table[row] @ upper)[:, :-1] <= rest[:, None]).sum(1)
    return row * table.shape[1] + column


def new_priorities(state: State, batch: Batch, alpha: float) -> tuple[State, Metrics]:
    """Compute the priorities of a batch from its TD errors, (batch,), and its places: a pure step."""
    errors, places = batch["td_errors"].double(), batch["places"]
    smallest, largest = error_range(alpha)
    values = (errors + PRIORITY_FLOOR).clamp(smallest, largest) ** alpha
    # A row may be in the batch twice: the last one counts, whichever is written last.
    numbers = torch.arange(len(places), device=places.device)
    last = torch.where(places[:, None] == places, numbers, -1).amax(1)
    # Not `values[last]`: compiled by PyTorch 2.11 for a GPU, that checks the index in threads that have no row, too.
    kept = torch.where(last[:, None] == numbers, values, 0.0).sum(1)
    return {"values": kept, "largest": torch.maximum(state["largest"], values.max())}, {}
