"""The replay buffer with uniform sampling, and the builder that composes the memory of a run."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.memory_limits import check_memory, describe_bytes
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field, replay_fields
from rl_training.core.types import Batch, Replay, StateDict
from rl_training.data.annealed_n_step import TRUNCATED, build_annealed_windows
from rl_training.data.frame_storage import FrameStorage
from rl_training.data.future_steps import FutureSteps
from rl_training.data.hindsight import EPISODE_FIELDS, goal_rules, has_new_goals, relabelled
from rl_training.data.mapped_memory import check_disk, mapped_folder, mapped_zeros
from rl_training.data.n_step import NStepWindows
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.row_storage import Allocate, Reader, RowStorage, Storage
from rl_training.data.sum_tree import SumTree
from rl_training.models.self_prediction import predicted_steps

log = logging.getLogger("rl_training")


class ReplayBuffer:
    """Samples stored transitions uniformly, with replacement."""

    def __init__(self, storage: Storage, *, generator: np.random.Generator, device: torch.device | str = "cpu") -> None:
        self.storage = storage
        self.device = torch.device(device)
        self._generator = generator
        self._reader: Reader | None = None  # of the last `sample`

    @property
    def capacity(self) -> int:
        return self.storage.capacity

    def __len__(self) -> int:
        return self.storage.end - self.storage.first

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store N transitions: for each field an array of N rows. Other entries are ignored.

        When the buffer is full, the oldest rows are overwritten.
        """
        self.storage.add(transitions)

    def add_dataset(self, transitions: Mapping[str, Any]) -> None:
        """Store the transitions of a dataset, in their order, before those of any env."""
        self.storage.add_dataset(transitions)

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions uniformly: each field `(batch, *shape)`, on the buffer's device."""
        if self._reader is None or self._reader.batch_size != batch_size:
            self._reader = self.storage.reader(batch_size, self.device)
        self._draw(self._reader)
        return self._reader.snapshot()

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Return a function that samples into the same tensors at every call. Training loops use it.

        Creating five tensors costs as much as filling them, and a compiled step recognises tensors it has seen before.
        """
        return partial(self._draw, self.storage.reader(batch_size, self.device))

    def host_sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Return a function as `sampler` does, whose batches stay on the host."""
        return partial(self._draw, self.storage.reader(batch_size, torch.device("cpu")))

    def draw_places(self, count: int) -> np.ndarray:
        """Sample the places of stored rows uniformly, with replacement."""
        first, capacity = self.storage.first, self.storage.capacity
        size = self.storage.end - first
        if size == 0:
            raise RuntimeError("the replay buffer is empty: add transitions before sampling")
        # Twice as fast as Generator.integers; below 2**53 rows the product stays below the size.
        places = (self._generator.random(count) * size).astype(np.int64)
        if first and size < capacity:  # otherwise the rows are in the places 0 to size - 1
            places = (places + first) % capacity
        return places

    def draw_rows(self, out: np.ndarray) -> None:
        """Write sampled rows, as they are stored, to `out`, (batches, rows, words); the storage must be plain."""
        rows = cast(RowStorage, self.storage).memory
        for places, part in zip(self.draw_places(out.shape[0] * out.shape[1]).reshape(out.shape[:2]), out, strict=True):
            rows.take(places, 0, part, "clip")  # "raise" would copy through a buffer

    def _draw(self, reader: Reader) -> Batch:
        reader.fill(self.draw_places(reader.batch_size))
        return reader.batch

    def update_priorities(self, td_errors: Tensor) -> None:
        """Do nothing: sampling is uniform."""

    def state_dict(self) -> StateDict:
        return {**self.storage.state_dict(), "generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.storage.load_state_dict(state)
        set_generator_state(self._generator, state["generator"])


class BufferSettings(Protocol):
    """How large a replay buffer is, and where it lies."""

    @property
    def buffer_capacity(self) -> int: ...
    @property
    def memory(self) -> str: ...


class ReplaySettings(BufferSettings, Protocol):
    """The part of an algorithm's settings that describes a replay buffer of transitions."""

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


def build_replay_buffer(setup: Setup[ReplaySettings]) -> Replay:
    """Build the replay buffer that the settings describe: its storage, n-step windows and kind of sampling."""
    hparams = setup.hparams
    generator = setup.streams.numpy("buffer")
    storage = _build_storage(setup, generator)
    if not hparams.prioritized:
        return ReplayBuffer(storage, generator=generator, device=setup.device)
    return PrioritizedReplayBuffer(
        storage,
        generator=generator,
        alpha=hparams.prioritized_alpha,
        beta_start=hparams.prioritized_beta_start,
        beta_end=hparams.prioritized_beta_end,
        total_draws=setup.total_updates,
        batch_size=hparams.batch_size,
        device=setup.device,
    )


def _build_storage(setup: Setup[ReplaySettings], generator: np.random.Generator) -> Storage:
    """Build the storage; raise `ConfigError` if it does not fit. `generator`: for what it draws when it is sampled."""
    hparams, space, num_envs = setup.hparams, setup.spaces.observation, setup.num_envs
    capacity, rules, annealed = hparams.buffer_capacity, goal_rules(setup), build_annealed_windows(setup)
    fields, n_step = _stored_fields(setup)
    allocate = choose_allocator(hparams, replay_bytes(setup), "transitions")
    if isinstance(space, FrameStackSpace):
        frames = FrameStorage(
            capacity,
            fields,
            space,
            num_envs=num_envs,
            n_step=n_step,
            gamma=hparams.gamma,
            annealed=annealed,
            allocate=allocate,
        )
        return _with_future(frames, setup, fields)
    before = NStepWindows(n_step, hparams.gamma, num_envs, fields) if n_step > 1 and annealed is None else None
    rows = RowStorage(capacity, fields, windows=annealed or before, allocate=allocate)
    return _with_future(rows, setup, fields) if rules is None else relabelled(rows, rules, setup, generator)


def _stored_fields(setup: Setup[ReplaySettings]) -> tuple[dict[str, Field], int]:
    """Return the fields of a stored row, and the largest number of steps that it stands for."""
    annealed = build_annealed_windows(setup)
    n_step = setup.hparams.n_step if annealed is None else annealed.longest
    fields = replay_fields(setup.spaces, n_step=n_step) | (EPISODE_FIELDS if has_new_goals(setup.hparams) else {})
    return fields | ({} if annealed is None else TRUNCATED), n_step


def replay_bytes(setup: Setup[ReplaySettings]) -> int:
    """Return the size of the replay buffer that the settings describe."""
    (fields, n_step), space, capacity = _stored_fields(setup), setup.spaces.observation, setup.hparams.buffer_capacity
    if isinstance(space, FrameStackSpace):
        needed = FrameStorage.num_bytes(capacity, fields, space, num_envs=setup.num_envs, n_step=n_step)
    else:
        needed = RowStorage.num_bytes(capacity, fields)
    return needed + (SumTree.num_bytes(capacity) if setup.hparams.prioritized else 0)


def _with_future(
    storage: RowStorage | FrameStorage, setup: Setup[ReplaySettings], fields: Mapping[str, Field]
) -> Storage:
    """Return the storage with what followed each transition, if the run predicts it."""
    steps = predicted_steps(setup)
    return FutureSteps(storage, fields["obs"], steps=steps, num_envs=setup.num_envs) if steps else storage


def choose_allocator(hparams: BufferSettings, needed: int, rows: str) -> Allocate:
    """Return the function that allocates a replay buffer: in RAM or in a mapped file.

    Raises `ConfigError` if the buffer does not fit, and logs its size. `needed`: bytes. `rows`: what the buffer holds
    `buffer_capacity` of, for messages.
    """
    capacity = f"{hparams.buffer_capacity:,} {rows}"
    check_buffers(hparams, needed, f"a replay buffer of {capacity}")
    where = f" in a file in {mapped_folder()}" if hparams.memory == "mmap" else ""
    log.info("replay buffer: %s, %s%s", capacity, describe_bytes(needed), where)
    return mapped_zeros if hparams.memory == "mmap" else np.zeros


def check_buffers(hparams: BufferSettings, needed: int, what: str, members: int = 1) -> None:
    """Raise `ConfigError` if one replay buffer, or those of several members, do not fit. `what` needs the bytes."""
    setting, kept = "algo_kwargs.buffer_capacity", "the buffer"
    if members > 1:
        setting, kept = f"{setting} or the number of members", "the buffers"
    if hparams.memory == "mmap":
        check_disk(needed, mapped_folder(), what, setting)
    else:
        check_memory(needed, what, f"{setting}, or keep {kept} in a file: algo_kwargs.memory: mmap")
