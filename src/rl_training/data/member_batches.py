"""Batches for all members of a stack at once, from one dataset on the device."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

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
        host, on_device, block, batch = self._places(rounds)
        for number, memory in enumerate(self._memories):
            drawn = torch.from_numpy(memory.draw_places(rounds * self._batch_size))
            host[:, number] = drawn.view(rounds, self._batch_size)
        on_device.copy_(host)
        torch.index_select(self._rows, 0, on_device.view(-1), out=block)
        return batch

    def _make_places(self, rounds: int) -> tuple[Tensor, Tensor, Tensor, Batch]:
        shape, device = (rounds, len(self._memories), self._batch_size), self._rows.device
        host = torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        on_device = host.to(device, copy=True)
        block = self._rows.new_empty((host.numel(), self._rows.shape[1]))
        fields = self._storage.layout.tensors(block.view(-1), len(block))
        batch = {name: values.unflatten(0, (-1, self._batch_size)) for name, values in fields.items()}
        return host, on_device, block, batch
