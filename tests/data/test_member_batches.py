"""Batches for a stack: each member's own rows, drawn while the device may still read the places before."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.acceleration.transfers import Block
from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.spaces import Field
from rl_training.data import member_batches
from rl_training.data.frame_storage import FrameStorage
from rl_training.data.member_batches import MemberBatches, MemberReplays
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.row_storage import RowStorage, Storage


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


FIELDS = {"obs": Field((3,), np.dtype(np.float32)), "rewards": Field((), np.dtype(np.float32))}
FIELDS |= {"terminated": Field((), np.dtype(np.bool_)), "actions": Field((), np.dtype(np.int64))}


def rows_of(seed: int) -> RowStorage:
    storage = RowStorage(20, FIELDS)
    numbers = np.arange(20) + 100 * seed
    storage.add(
        {
            "obs": np.stack([numbers] * 3, 1).astype(np.float32),
            "rewards": numbers.astype(np.float32),
            "terminated": numbers % 2 == 0,
            "actions": numbers,
        }
    )
    return storage


def frames_of(seed: int) -> FrameStorage:
    """Stacks of two frames, each of whose pixels is the number of its step."""
    stack = Field((2, 3, 3), np.dtype(np.uint8))
    storage = FrameStorage(20, FIELDS | {"obs": stack, "next_obs": stack}, FrameStackSpace(2, (2, 3, 3)))
    frames = np.full((22, 3, 3), np.arange(22)[:, None, None] + 100 * seed, np.uint8)
    for step in range(20):
        rows = {name: np.full(1, step, field.dtype) for name, field in FIELDS.items()}
        storage.add(rows | {"obs": frames[None, step : step + 2], "next_obs": frames[None, step + 1 : step + 3]})
    return storage


def make_buffer(
    seed: int, *, prioritized: bool, storage_of: Callable[[int], Storage] = rows_of
) -> ReplayBuffer | PrioritizedReplayBuffer:
    storage, generator = storage_of(seed), np.random.default_rng(seed)
    if not prioritized:
        return ReplayBuffer(storage, generator=generator)
    settings: dict[str, Any] = {"alpha": 0.5, "beta_start": 0.4, "beta_end": 1.0, "total_draws": 10, "batch_size": 4}
    return PrioritizedReplayBuffer(storage, generator=generator, **settings)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("storage_of", [rows_of, frames_of])
def test_members_sample_from_their_own_buffers_what_they_would_sample_alone(
    storage_of: Callable[[int], Storage], rounds: int, prioritized: bool
) -> None:
    alone, members = (
        [make_buffer(seed, prioritized=prioritized, storage_of=storage_of) for seed in (1, 2)] for _ in range(2)
    )
    samplers = [buffer.sampler(rounds * 4) for buffer in alone]
    together = MemberReplays(members, 4, torch.device("cpu"))
    for _ in range(2):  # the second time with priorities of the first
        batch = together.draw(rounds)
        errors = batch["rewards"].view(rounds, 2, 4) / 100
        for member, (sample, buffer) in enumerate(zip(samplers, alone, strict=True)):
            expected = sample()
            assert batch.keys() == expected.keys()
            for name, values in expected.items():
                of_member = batch[name].unflatten(0, (rounds, 2))[:, member].flatten(0, 1)
                assert torch.equal(of_member, values), name
            buffer.update_priorities(expected["rewards"] / 100)
            together.update_priorities(errors, member)


def test_a_member_that_has_ended_draws_nothing() -> None:
    members = [make_buffer(seed, prioritized=False) for seed in (1, 2)]
    together = MemberReplays(members, 4, torch.device("cpu"))
    before = together.draw(1)["rewards"].clone()
    after = together.draw(1, {0})["rewards"]
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


@pytest.mark.parametrize("prioritized", [False, True])
def test_rows_of_a_member_that_ended_before_its_first_draw_are_zero(
    prioritized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Used(Block):
        """Memory that something else was in."""

        def __init__(self, num_bytes: int, device: torch.device) -> None:
            super().__init__(num_bytes, device)
            self.host.fill_(-1)

    monkeypatch.setattr(member_batches, "Block", Used)
    together = MemberReplays([make_buffer(seed, prioritized=prioritized) for seed in (1, 2)], 4, torch.device("cpu"))
    batch = together.draw(1, {0})
    assert {name for name, values in batch.items() if values[0].any()} == set()
    assert batch["rewards"][1].all()
