"""Batches for all members of a stack at once, from one dataset on the device."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from rl_training.acceleration.transfers import WORD, Block, mark_fixed
from rl_training.core.types import Batch
from rl_training.data.dataset_memory import DatasetMemory


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
