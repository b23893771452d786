"""A dataset as the memory of a run: it is sampled from, never added to."""

import copy
import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.core.memory_limits import check_memory
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import transition_fields
from rl_training.core.state_checks import stored_count
from rl_training.core.types import Batch, StateDict
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.returns_to_go import RETURN_FIELDS, dataset_returns
from rl_training.data.row_storage import RowStorage
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import CheckpointError, DatasetError
from rl_training.hparams.cql import CQLHParams
from rl_training.hparams.offline import OfflineHParams


class DatasetMemory:
    """Samples transitions of `dataset` uniformly. The held-out set, if there is one, serves evaluation only.

    `next_actions`: batches hold the next action of the episode, too; rows without one that counts are left out.
    `return_gamma`: batches hold the return that follows, with this discount. A checkpoint holds the digest of the rows,
    not the rows themselves.
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        *,
        generator: np.random.Generator,
        held_out: TransitionDataset | None = None,
        next_actions: bool = False,
        return_gamma: float | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dataset, self.held_out = dataset, held_out
        self._generator = generator
        self._buffer = replay_from_dataset(
            dataset, generator=generator, next_actions=next_actions, return_gamma=return_gamma, device=device
        )
        self.storage, self.device = cast(RowStorage, self._buffer.storage), self._buffer.device
        self.draw_places, self.draw_rows = self._buffer.draw_places, self._buffer.draw_rows

    def sharing_rows(self, generator: np.random.Generator) -> "DatasetMemory":
        """Return a memory of the same rows, which are not copied, that draws with its own generator."""
        twin = copy.copy(self)
        twin.__dict__["digest"] = self.digest
        twin._generator = generator
        twin._buffer = ReplayBuffer(self.storage, generator=generator, device=self.device)
        twin.draw_places, twin.draw_rows = twin._buffer.draw_places, twin._buffer.draw_rows
        return twin

    def __len__(self) -> int:
        return len(self.dataset)

    def add(self, transitions: Mapping[str, Any]) -> None:
        raise RuntimeError("a dataset never changes: transitions cannot be added to it")

    def sample(self, batch_size: int) -> Batch:
        return self._buffer.sample(batch_size)

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        return self._buffer.sampler(batch_size)

    def update_priorities(self, td_errors: Tensor) -> None:
        """Do nothing: sampling is uniform."""

    @cached_property
    def digest(self) -> str:
        """A hash of the rows, independent of the file that holds them."""
        digest = hashlib.sha256()
        for name in transition_fields(self.dataset.spaces):
            array = np.ascontiguousarray(getattr(self.dataset, name))
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.data)
        return digest.hexdigest()

    def state_dict(self) -> StateDict:
        return {"rows": len(self), "digest": self.digest, "generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        stored_count(state["rows"], "the number of transitions")
        if state["digest"] != self.digest:
            raise CheckpointError(
                f"the run learned from {state['rows']:,} transitions (digest {str(state['digest'])[:12]}), but "
                f"{self.dataset.source} now holds {len(self):,} others (digest {self.digest[:12]}); "
                "restore the original dataset to continue"
            )
        set_generator_state(self._generator, state["generator"])


def replay_from_dataset(
    dataset: TransitionDataset,
    *,
    generator: np.random.Generator,
    next_actions: bool = False,
    return_gamma: float | None = None,
    device: torch.device | str = "cpu",
) -> ReplayBuffer:
    """Return a replay buffer that holds the rows and samples them uniformly."""
    fields = transition_fields(dataset.spaces)
    columns = {name: getattr(dataset, name) for name in fields}
    if next_actions:
        fields["next_actions"] = fields["actions"]
        columns = _with_next_actions(dataset, columns)
    if return_gamma is not None:
        fields |= RETURN_FIELDS
        columns |= dataset_returns(dataset, return_gamma)
    what = f"a replay buffer of the {len(dataset):,} transitions of {dataset.source}"
    check_memory(RowStorage.num_bytes(len(dataset), fields), what, "the size of the dataset")
    buffer = ReplayBuffer(RowStorage(len(columns["rewards"]), fields), generator=generator, device=device)
    buffer.add(columns)
    return buffer


def _with_next_actions(dataset: TransitionDataset, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns with the action of the following row, without the last rows of truncated episodes.

    Targets bootstrap there, but the next action was not recorded. After a termination no target uses it.
    """
    known = dataset.terminated.copy()
    known[:-1] |= ~dataset.truncated[:-1]
    if not known.any():
        raise DatasetError(f"{dataset.source}: every episode is one truncated step, so that no next action is known")
    following = np.concatenate([dataset.actions[1:], dataset.actions[-1:]])
    return {name: values[known] for name, values in {**columns, "next_actions": following}.items()}


def build_dataset_memory(
    setup: Setup[OfflineHParams], *, next_actions: bool = False, return_gamma: float | None = None
) -> DatasetMemory:
    assert setup.dataset is not None  # the caller has loaded it
    return DatasetMemory(
        setup.dataset,
        generator=setup.streams.numpy("buffer"),
        held_out=setup.held_out,
        next_actions=next_actions,
        return_gamma=return_gamma,
        device=setup.device,
    )


def build_memory_with_next_actions(setup: Setup[OfflineHParams]) -> DatasetMemory:
    return build_dataset_memory(setup, next_actions=True)


def build_memory_with_returns(setup: Setup[CQLHParams]) -> DatasetMemory:
    """Build a memory whose batches hold the return that follows, if the settings need it."""
    return build_dataset_memory(setup, return_gamma=setup.hparams.gamma if setup.hparams.calibrated else None)
