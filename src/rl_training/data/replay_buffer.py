"""Replay memory: stored transitions, drawn uniformly, and the builder that composes a run's memory."""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Batch, Replay, Setup, StateDict
from rl_training.data.frame_space import FrameStackSpace
from rl_training.data.frame_storage import FrameStorage
from rl_training.data.mapped_memory import check_disk, describe_bytes, mapped_folder, mapped_zeros
from rl_training.data.n_step import NStepWindows
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.row_storage import Allocate, Reader, RowStorage, Storage
from rl_training.data.schema import replay_fields
from rl_training.data.sum_tree import SumTree
from rl_training.errors import ConfigError
from rl_training.experiment.seeding import generator_state, set_generator_state
from rl_training.hparams.base import OffPolicyHParams, ReplayHParams

log = logging.getLogger("rl_training")


class ReplayBuffer:
    """Draws stored transitions uniformly, with replacement."""

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
        """Store N transitions: for each field an array of N rows. Other entries are ignored; the oldest rows go."""
        self.storage.add(transitions)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly: each field (batch, *shape), on the buffer's device."""
        if self._reader is None or self._reader.batch_size != batch_size:
            self._reader = self.storage.reader(batch_size, self.device)
        self._draw(self._reader)
        return self._reader.give()

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Give a function that samples into one batch, the same tensors at every call: what a training loop uses.

        Making five tensors anew costs as much as filling them, and a compiled step knows tensors it has seen before.
        """
        return partial(self._draw, self.storage.reader(batch_size, self.device))

    def draw_places(self, count: int) -> np.ndarray:
        """Draw the places of stored rows uniformly, with replacement."""
        first, capacity = self.storage.first, self.storage.capacity
        size = self.storage.end - first
        if size == 0:
            raise RuntimeError("the replay buffer is empty: add transitions before sampling")
        # Half the time of Generator.integers; below 2**53 rows the product stays below the size.
        places = (self._generator.random(count) * size).astype(np.int64)
        if first and size < capacity:  # else the rows lie in the first places
            places = (places + first) % capacity
        return places

    def _draw(self, reader: Reader) -> Batch:
        reader.fill(self.draw_places(reader.batch_size))
        return reader.batch

    def update_priorities(self, td_errors: Tensor) -> None:
        """Ignore them: all transitions are drawn alike."""

    def state_dict(self) -> StateDict:
        return {**self.storage.state_dict(), "generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.storage.load_state_dict(state)
        set_generator_state(self._generator, state["generator"])


def build_replay_buffer(setup: Setup[OffPolicyHParams]) -> Replay:
    """Compose the memory that the settings ask for: where rows lie, n-step windows before them, how they are drawn."""
    hparams = setup.hparams
    storage = _build_storage(setup)
    generator = setup.streams.numpy("buffer")
    if not hparams.prioritized:
        return ReplayBuffer(storage, generator=generator, device=setup.device)
    return PrioritizedReplayBuffer(
        storage,
        generator=generator,
        alpha=hparams.prioritized_alpha,
        beta_start=hparams.prioritized_beta_start,
        beta_end=hparams.prioritized_beta_end,
        total_draws=hparams.updates_until(setup.total_timesteps),
        batch_size=hparams.batch_size,
        device=setup.device,
    )


def _build_storage(setup: Setup[OffPolicyHParams]) -> Storage:
    """Make the storage, or refuse one that does not fit."""
    hparams, space, num_envs = setup.hparams, setup.spaces.observation, setup.num_envs
    capacity, n_step = hparams.buffer_capacity, hparams.n_step
    fields = replay_fields(setup.spaces, n_step=n_step)
    if isinstance(space, FrameStackSpace):
        needed = FrameStorage.num_bytes(capacity, fields, space, num_envs=num_envs, n_step=n_step)
    else:
        needed = RowStorage.num_bytes(capacity, fields)
    if hparams.prioritized:
        needed += SumTree.num_bytes(capacity)
    allocate = allocator(hparams, needed, "transitions")
    if isinstance(space, FrameStackSpace):
        return FrameStorage(
            capacity, fields, space, num_envs=num_envs, n_step=n_step, gamma=hparams.gamma, allocate=allocate
        )
    windows = NStepWindows(n_step, hparams.gamma, num_envs, fields) if n_step > 1 else None
    return RowStorage(capacity, fields, windows=windows, allocate=allocate)


def allocator(hparams: ReplayHParams, needed: int, rows: str) -> Allocate:
    """Give what allocates a replay buffer; refuse one that does not fit, and say what it takes, before it is filled.

    `needed`: bytes. `rows`: what it holds `buffer_capacity` of, for messages.
    """
    capacity, setting = f"{hparams.buffer_capacity:,} {rows}", "algo_kwargs.buffer_capacity"
    what, where = f"a replay buffer of {capacity}", ""
    if hparams.memory == "mmap":
        folder = mapped_folder()
        check_disk(needed, folder, what, setting)
        where = f" in a file in {folder}"
    else:
        check_memory(needed, what, f"{setting}, or let the buffer lie in a file: algo_kwargs.memory: mmap")
    log.info("replay buffer: %s, %s%s", capacity, describe_bytes(needed), where)
    return mapped_zeros if hparams.memory == "mmap" else np.zeros


def check_memory(needed: int, what: str, setting: str) -> None:
    """Refuse a buffer that cannot fit, before the run: the system would end the run when it fills up."""
    available = available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"{what} needs {describe_bytes(needed)}, but only {describe_bytes(available)} of memory are available; "
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
