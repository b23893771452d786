"""Prioritized replay: transitions are sampled by their TD error, and importance weights correct the bias.

    p_i = (|td_i| + 1e-6)^alpha      P(i) = p_i / sum_j p_j      w_i = (N P(i))^-beta / max of the batch

beta rises linearly over the updates of the run. New transitions get the largest priority so far, so that each is soon
sampled. A batch of B takes one transition from each of B equal slices of the sum of priorities.

Schaul et al. 2016, Prioritized experience replay (the proportional variant).
Deviation: weights are normalised by the largest of the batch, not of the whole memory.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.state_checks import stored_array, stored_count, stored_number
from rl_training.core.types import Batch, StateDict
from rl_training.data.row_storage import Reader, Storage
from rl_training.data.sum_tree import SumTree
from rl_training.errors import CheckpointError, TrainingError

PRIORITY_FLOOR = 1e-6  # added to the TD error: a transition without error is still sampled now and then
_PRIORITY_RANGE = 1e-100, 1e100  # with a huge alpha, a row is still sampled and the sum of priorities stays finite


def error_range(alpha: float) -> tuple[float, float]:
    """Return the smallest and the largest TD error that is told apart from others beyond it."""
    with np.errstate(over="ignore"):
        smallest, largest = np.array(_PRIORITY_RANGE) ** (1 / max(alpha, 1e-6))
    return float(smallest), float(largest)


class PrioritizedReplayBuffer:
    """Samples stored transitions by priority; `update_priorities` sets those of the last batch."""

    def __init__(
        self,
        storage: Storage,
        *,
        generator: np.random.Generator,
        alpha: float,
        beta_start: float,
        beta_end: float,
        total_draws: int,
        batch_size: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`total_draws`: batches until beta reaches `beta_end`.

        `batch_size`: rows of one batch, if several are sampled at once.
        """
        self.storage = storage
        self.device = torch.device(device)
        self._alpha, self._beta_start, self._beta_end = alpha, beta_start, beta_end
        self._error_range = error_range(alpha)
        self._total_draws, self._batch_size = max(1, total_draws), batch_size
        self._generator = generator
        self._reader: Reader | None = None  # of the last `sample`
        self._tree = SumTree(storage.capacity)
        self._synced_first = self._synced_end = 0  # the rows whose priorities are in the tree
        self._max_priority = 1.0
        self._num_draws = 0
        self._drawn: np.ndarray | None = None  # the places of the last batch, until their TD errors are known
        self._end_at_draw = 0

    @property
    def capacity(self) -> int:
        return self.storage.capacity

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next batch."""
        progress = min(1.0, self._num_draws / self._total_draws)
        return self._beta_start + progress * (self._beta_end - self._beta_start)

    def __len__(self) -> int:
        return self.storage.end - self.storage.first

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store transitions as `Storage.add` does, with the largest priority so far."""
        self.storage.add(transitions)

    def _sync_tree(self) -> None:
        """Update the tree for the rows that were added or discarded since the last call."""
        storage = self.storage
        if storage.end == self._synced_end and storage.first == self._synced_first:
            return
        # Overwritten places get the priority of new rows below; rows discarded in another way get none.
        self._tree.set_range(max(self._synced_first, storage.end - self.capacity), storage.first, 0.0)
        self._tree.set_range(max(self._synced_end, storage.first), storage.end, self._max_priority)
        self._synced_first, self._synced_end = storage.first, storage.end

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions by priority: each field (batch, *shape) and `weights` (batch,), on the buffer's device."""
        if self._reader is None or self._reader.batch_size != batch_size:
            self._reader = self._make_reader(batch_size, self.device)
        self._draw(self._reader)
        return self._reader.snapshot()

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Return a function that samples into the same tensors at every call, as `ReplayBuffer.sampler` does."""
        return partial(self._draw, self._make_reader(batch_size, self.device))

    def host_sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Return a function as `sampler` does, whose batches stay on the host."""
        return partial(self._draw, self._make_reader(batch_size, torch.device("cpu")))

    def _make_reader(self, batch_size: int, device: torch.device) -> Reader:
        return self.storage.reader(batch_size, device, ("weights",))

    def _draw(self, reader: Reader) -> Batch:
        if len(self) == 0:
            raise RuntimeError("the replay buffer is empty: add transitions before sampling")
        self._sync_tree()
        places = self._tree.find_stratified_places(self._generator.random(reader.batch_size))
        size = self._batch_size or reader.batch_size
        batches = 1 if reader.batch_size % size else reader.batch_size // size
        if batches > 1:  # places are in the order of the slices: each batch gets one of every `batches` neighbours
            places = self._generator.permuted(places.reshape(-1, batches), axis=1).T.reshape(-1)
        priorities = self._tree.priorities.take(places).reshape(batches, -1)
        # (N P(i))^-beta divided by the largest of the batch: N and the sum of the priorities cancel.
        weights = (priorities.min(1, keepdims=True) / priorities) ** self.beta
        reader.wait()
        reader.host["weights"].numpy()[:] = weights.reshape(-1)
        reader.fill(places)
        self._num_draws += batches
        self._drawn, self._end_at_draw = places, self.storage.end
        return reader.batch

    def update_priorities(self, td_errors: Tensor) -> None:
        """Set the priorities of the last batch's rows: (batch,) absolute TD errors, in the order of the rows."""
        places, self._drawn = self._drawn, None
        if places is None:
            raise RuntimeError("no batch was sampled since the last update of priorities")
        errors = td_errors.detach().cpu().numpy().astype(np.float64)
        if errors.shape != places.shape:
            raise ValueError(f"TD errors must have shape {places.shape}, one per row of the batch, got {errors.shape}")
        if not (errors.min() >= 0.0 and errors.max() < np.inf):
            wrong = errors[~((errors >= 0.0) & (errors < np.inf))]
            raise TrainingError(
                f"{len(wrong)} of {len(errors)} TD errors of a batch are negative or not finite (such as {wrong[0]}): "
                "they cannot be priorities. If training has diverged, a smaller learning_rate or max_grad_norm usually "
                "helps"
            )
        self._sync_tree()
        smallest, largest = self._error_range
        priorities = np.minimum(np.maximum(errors + PRIORITY_FLOOR, smallest), largest) ** self._alpha
        self._max_priority = max(self._max_priority, float(priorities.max()))
        if self.storage.end != self._end_at_draw:
            last = self._end_at_draw - 1
            is_stored = last - (last - places) % self.capacity >= self.storage.first  # else overwritten or discarded
            places, priorities = places[is_stored], priorities[is_stored]
        self._tree.set(places, priorities)

    def state_dict(self) -> StateDict:
        self._sync_tree()
        return {
            **self.storage.state_dict(),
            "priorities": self._tree.priorities[self._places()],
            "max_priority": self._max_priority,
            "num_draws": self._num_draws,
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "priorities" not in state:
            raise CheckpointError(
                "the stored transitions have no priorities: prioritized was false when they were saved"
            )
        self.storage.load_state_dict(state)
        self._synced_first, self._synced_end = self.storage.first, self.storage.end
        self._tree.set_range(0, self.capacity, 0.0)
        priorities = stored_array(state["priorities"], "the stored priorities", (len(self._places()),))
        if (priorities <= 0.0).any():
            raise CheckpointError("the stored priorities must be above 0, found others")
        self._tree.set(self._places(), priorities)
        self._max_priority = stored_number(state["max_priority"], "the largest priority")
        self._num_draws = stored_count(state["num_draws"], "the number of draws")
        self._drawn = None
        set_generator_state(self._generator, state["generator"])

    def _places(self) -> np.ndarray:
        """Return the places of the stored rows, oldest first."""
        return np.arange(self.storage.first, self.storage.end) % self.capacity
