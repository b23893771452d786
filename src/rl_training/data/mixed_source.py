"""A memory of real transitions beside one of transitions that a model made up: every batch has its share of both."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.core.memory_limits import check_memory
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Replay, StateDict
from rl_training.data.dataset_memory import build_dataset_memory
from rl_training.data.replay_buffer import ReplayBuffer, build_replay_buffer
from rl_training.data.row_storage import WORD, Block, RowStorage, Storage
from rl_training.errors import DatasetError
from rl_training.hparams.mbpo import MBPOHParams, ModelHParams, MOPOHParams
from rl_training.hparams.schedules import max_horizon, synthetic_rows

MIN_TRANSITIONS = 2  # that a model is fitted to: one to learn from, one held out


class RealMemory(Replay, Protocol):
    """A memory whose rows are drawn uniformly: a replay buffer, or a dataset."""

    @property
    def storage(self) -> Storage: ...

    @property
    def device(self) -> torch.device: ...

    def draw_places(self, count: int) -> np.ndarray: ...


class MixedSource:
    """Adds to the real memory; draws batches of `batch_size` rows of which the first are real, the rest the model's.

    Several batches are drawn at once as rows one after the other, each mixed alike. While the model has made up
    nothing, all rows are real.
    """

    def __init__(self, real: RealMemory, model: ReplayBuffer, *, batch_size: int, model_ratio: float) -> None:
        self.real, self.model = real, model
        self._real_rows, self._model_rows = (cast(RowStorage, buffer.storage) for buffer in (real, model))
        self._batch_size = batch_size
        self._num_real = max(round(batch_size * (1.0 - model_ratio)), int(model_ratio < 1.0))

    def __len__(self) -> int:
        return len(self.real)

    def add(self, transitions: Mapping[str, Any]) -> None:
        self.real.add(transitions)

    def add_model(self, transitions: Mapping[str, Any], *, keep: int) -> None:
        """Add transitions of the model's; of all that it made up, the newest `keep` stay."""
        self._model_rows.add(transitions)
        self._model_rows.reset_carry(self._model_rows.end - keep)

    def real_transitions(self) -> dict[str, np.ndarray]:
        """Give a copy of all that was seen, oldest first."""
        return self._real_rows.contents()

    def sample(self, batch_size: int) -> Batch:
        return {name: tensor.clone() for name, tensor in self.sampler(batch_size)().items()}

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Give a function that draws into one batch, the same tensors at every call."""
        layout, words = self._real_rows.layout, self._real_rows.layout.words
        block = Block(batch_size * words * WORD, self.real.device)
        rows = block.host.view(batch_size, words).numpy()
        batch = layout.tensors(block.on_device, batch_size)
        of_model = np.flatnonzero(np.arange(batch_size) % self._batch_size >= self._num_real)
        of_real = np.setdiff1d(np.arange(batch_size), of_model)

        def draw() -> Batch:
            if len(self.model):
                rows[of_real] = self._real_rows.take(self.real.draw_places(len(of_real)))
                rows[of_model] = self._model_rows.take(self.model.draw_places(len(of_model)))
            else:
                rows[:] = self._real_rows.take(self.real.draw_places(batch_size))
            block.transfer()
            return batch

        return draw

    def update_priorities(self, td_errors: Tensor) -> None:
        """Ignore them: all transitions of a kind are drawn alike."""

    def state_dict(self) -> StateDict:
        return {"real": self.real.state_dict(), "model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.real.load_state_dict(state["real"])
        self.model.load_state_dict(state["model"])


def build_mixed_source(setup: Setup[MBPOHParams]) -> MixedSource:
    """Make a memory of what is seen, beside that of the model."""
    real = build_replay_buffer(setup)
    assert isinstance(real, ReplayBuffer)  # prioritized replay is refused by the settings
    return with_model_memory(real, setup)


def build_mixed_dataset(setup: Setup[MOPOHParams]) -> MixedSource:
    """Put the model's memory beside the run's dataset."""
    real = build_dataset_memory(setup)
    if len(real) < MIN_TRANSITIONS:
        raise DatasetError(
            f"{real.dataset.source} has a single transition to learn from: a model needs another one that is held out"
        )
    return with_model_memory(real, setup)


def with_model_memory(real: RealMemory, setup: Setup[ModelHParams]) -> MixedSource:
    """Put a memory of rows of the same fields beside the real one, no larger than the longest horizon fills."""
    hparams, fields = setup.hparams, cast(RowStorage, real.storage).layout.fields
    capacity = min(hparams.synthetic_buffer_capacity, synthetic_rows(hparams, max_horizon(hparams)))
    needed = RowStorage.num_bytes(capacity, fields)
    check_memory(needed, f"a memory of {capacity:,} rollout transitions", "algo_kwargs.synthetic_buffer_capacity")
    model = ReplayBuffer(
        RowStorage(capacity, fields), generator=setup.streams.numpy("model_buffer"), device=setup.device
    )
    return MixedSource(real, model, batch_size=hparams.batch_size, model_ratio=hparams.synthetic_batch_ratio)
