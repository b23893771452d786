"""Batches for all members of a stack at once: from one dataset on the device, or from the memory of each."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor

from rl_training.acceleration.transfers import WORD, Block, mark_fixed
from rl_training.core.types import Batch
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.mixed_source import MixedSource
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.row_storage import RowStorage

MemberMemory = ReplayBuffer | PrioritizedReplayBuffer | MixedSource

_ALIGNMENT = 8  # words: products round differently if their memory starts elsewhere


class MemberBatches:
    """Draws for each member the rows that its own memory would draw; the rows are on the device, once for all."""

    def __init__(self, memories: Sequence[DatasetMemory], batch_size: int) -> None:
        self._memories, self._batch_size = memories, batch_size
        self._storage, device = memories[0].storage, memories[0].device
        self._rows = torch.from_numpy(self._storage.memory).to(device)
        self._places = cache(self._make_places)  # by the number of rounds; the same tensors each time

    def draw(self, rounds: int) -> Batch:
        """Return the batches of all rounds and members, (rounds * members, batch, ...); the next call overwrites it."""
        places, rows, batch = self._places(rounds)
        places.wait()  # for the last copy only: the device goes on learning
        host = places.host.view(rounds, len(self._memories), self._batch_size)
        for number, memory in enumerate(self._memories):
            drawn = torch.from_numpy(memory.draw_places(rounds * self._batch_size))
            host[:, number] = drawn.view(rounds, self._batch_size)
        places.transfer()
        torch.index_select(self._rows, 0, places.on_device, out=rows)
        return batch

    def _make_places(self, rounds: int) -> tuple[Block, Tensor, Batch]:
        number = rounds * len(self._memories) * self._batch_size
        rows = self._rows.new_empty((number, self._rows.shape[1]))
        fields = self._storage.layout.tensors(rows.view(-1), len(rows))
        batch = {name: values.unflatten(0, (-1, self._batch_size)) for name, values in fields.items()}
        mark_fixed(batch)
        return Block(WORD * number, self._rows.device), rows, batch


@dataclass(frozen=True, slots=True)
class Gathering:
    """How the rows of all members become one batch, for a number of rounds."""

    block: Block
    fill: Callable[[int], None]  # writes the rows that a member draws to its part of the block
    batch: Batch  # on the device, in the block


class MemberReplays:
    """Samples for each member what its own memory would; one transfer moves the batches of all members."""

    def __init__(self, memories: Sequence[MemberMemory], batch_size: int, device: torch.device) -> None:
        self._memories, self._batch_size, self._device = memories, batch_size, device
        # Rows that are sampled as they are stored go straight to the block.
        plain = all(
            not isinstance(memory, PrioritizedReplayBuffer)
            and isinstance(memory.storage, RowStorage)
            and memory.storage.is_plain
            for memory in memories
        )
        self._gathering = cache(self._gather_plain if plain else self._gather_copied)  # by the number of rounds

    def draw(self, rounds: int, ended: Container[int] = ()) -> Batch:
        """Return the batches of all rounds and members, (rounds * members, batch, ...); the next call overwrites it.

        Members that have `ended` draw nothing: their rows stay as they were.
        """
        gathering = self._gathering(rounds)
        gathering.block.wait()  # for the last copy only: the device goes on learning
        for number in range(len(self._memories)):
            if number not in ended:
                gathering.fill(number)
        gathering.block.transfer()
        return gathering.batch

    def _gather_plain(self, rounds: int) -> Gathering:
        members, size = len(self._memories), self._batch_size
        memories = [cast(ReplayBuffer | MixedSource, memory) for memory in self._memories]
        layout, number = cast(RowStorage, memories[0].storage).layout, rounds * members * size
        block = self._zeros(number * layout.words)
        host = block.host.view(rounds, members, size, layout.words).numpy()

        fields = layout.tensors(block.on_device, number)
        batch = {name: values.unflatten(0, (-1, size)) for name, values in fields.items()}
        mark_fixed(batch)
        return Gathering(block, lambda number: memories[number].draw_rows(host[:, number]), batch)

    def _gather_copied(self, rounds: int) -> Gathering:
        members, size = len(self._memories), self._batch_size
        memories = [cast(ReplayBuffer | PrioritizedReplayBuffer, memory) for memory in self._memories]
        samplers = [memory.host_sampler(rounds * size) for memory in memories]
        columns = ("weights",) if isinstance(memories[0], PrioritizedReplayBuffer) else ()
        trial = memories[0].storage.reader(1, torch.device("cpu"), columns).batch
        fields = {name: (values.dtype, values.shape[1:]) for name, values in trial.items()}
        starts, end = {}, 0
        for name, (dtype, shape) in fields.items():
            starts[name] = end
            words = -(-rounds * members * size * math.prod(shape) * dtype.itemsize // WORD)
            end += -(-words // _ALIGNMENT) * _ALIGNMENT
        block = self._zeros(end)

        def views(words: Tensor) -> Batch:
            return {
                name: words[starts[name] :]
                .view(dtype)[: rounds * members * size * math.prod(shape)]
                .view(rounds, members, size, *shape)
                for name, (dtype, shape) in fields.items()
            }

        host = {name: values.numpy() for name, values in views(block.host).items()}

        def fill(number: int) -> None:
            for name, values in samplers[number]().items():
                host[name][:, number] = values.numpy().reshape(rounds, size, *values.shape[1:])

        batch = {name: values.flatten(0, 1) for name, values in views(block.on_device).items()}
        mark_fixed(batch)
        return Gathering(block, fill, batch)

    def _zeros(self, words: int) -> Block:
        """Return a block of valid rows: those of a member that ends before it draws any enter the step, too."""
        block = Block(WORD * words, self._device)
        block.host.zero_()
        return block

    def update_priorities(self, errors: Tensor, number: int) -> None:
        """Set the priorities of the rows that a member drew last; `errors`: on the host, (rounds, members, batch)."""
        self._memories[number].update_priorities(errors[:, number].reshape(-1))
