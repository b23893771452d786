"""Batches for a stack: each member's own rows, drawn while the device may still read the places before."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.acceleration.transfers import Block
from rl_training.core.spaces import Field
from rl_training.data import member_batches
from rl_training.data.member_batches import MemberBatches
from rl_training.data.row_storage import RowStorage


def make_memories(*drawn: list[list[int]]) -> list[Any]:
    """Memories that share ten rows, whose rewards are 0 to 9, and draw these places, call by call."""
    storage = RowStorage(10, {"rewards": Field((), np.dtype(np.float32))})
    storage.add({"rewards": np.arange(10, dtype=np.float32)})
    cpu = torch.device("cpu")
    calls = [iter(places) for places in drawn]
    return [SimpleNamespace(storage=storage, device=cpu, draw_places=lambda n, c=c: np.array(next(c))) for c in calls]


def test_each_member_gets_the_rows_that_it_draws_and_places_are_written_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[tuple[str, list[int]]] = []

    class Recorded(Block):
        def wait(self) -> None:
            events.append(("wait", self.host.tolist()))

        def transfer(self) -> None:
            events.append(("transfer", self.host.tolist()))

    monkeypatch.setattr(member_batches, "Block", Recorded)
    # Two members, two rounds, batches of two: the first two places of a member are its first round.
    batches = MemberBatches(make_memories([[1, 2, 3, 4], [0, 0, 0, 0]], [[5, 6, 7, 8], [9, 9, 9, 9]]), 2)
    first = [1, 2, 5, 6, 3, 4, 7, 8]  # by round, then member
    assert batches.draw(2)["rewards"].tolist() == [[1, 2], [5, 6], [3, 4], [7, 8]]
    assert batches.draw(2)["rewards"].tolist() == [[0, 0], [9, 9], [0, 0], [9, 9]]
    assert [name for name, _ in events] == ["wait", "transfer"] * 2
    assert [places for _, places in events[1:]] == [first, first, [0, 0, 9, 9, 0, 0, 9, 9]]
