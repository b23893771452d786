"""The replay buffer holds the last `capacity` transitions and continues exactly after a save."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary
from hypothesis import given
from hypothesis import strategies as st

from builders import make_setup
from rl_training.core import memory_limits
from rl_training.core.memory_limits import available_memory, check_memory
from rl_training.core.spaces import Field, Spaces, transition_fields
from rl_training.data.replay_buffer import ReplayBuffer, build_replay_buffer
from rl_training.data.row_storage import RowStorage
from rl_training.errors import CheckpointError, ConfigError

VECTOR = transition_fields(Spaces(Box(-np.inf, np.inf, (3,), np.float32), Discrete(5)))


def make_buffer(capacity: int, fields: dict[str, Field] = VECTOR, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(RowStorage(capacity, fields), generator=np.random.default_rng(seed))


def rows_from(first: int, count: int) -> dict[str, np.ndarray]:
    """Transitions whose every field holds their number."""
    number = np.arange(first, first + count)
    return {
        "obs": np.stack([number, number + 0.25, -number], axis=1).astype(np.float32),
        "next_obs": np.stack([number + 1, number + 1.25, -number - 1], axis=1).astype(np.float32),
        "actions": number % 5,
        "rewards": number * 0.5,
        "terminated": number % 3 == 0,
        "truncated": number % 2 == 0,  # not a stored field
    }


def numbers_of(batch: dict[str, torch.Tensor]) -> list[int]:
    """The numbers of the rows in a batch, having checked that all fields of each belong together."""
    numbers = batch["obs"][:, 0].long().tolist()
    for row, number in enumerate(numbers):
        expected = {name: values[0] for name, values in rows_from(number, 1).items() if name in batch}
        for name, value in expected.items():
            assert np.array_equal(batch[name][row].numpy(), np.asarray(value)), name
    return numbers


def stored_numbers(buffer: ReplayBuffer) -> list[int]:
    """Every row that can be sampled: with 40 draws per row none is missed (chance below 1e-15 a row)."""
    return sorted(set(numbers_of(buffer.sample(40 * len(buffer)))))


# --- What it holds ---------------------------------------------------------------------------------------------------


@given(capacity=st.integers(1, 12), adds=st.lists(st.integers(0, 4) | st.integers(0, 30), max_size=12))
def test_holds_exactly_the_last_rows_after_any_sequence_of_adds(capacity: int, adds: list[int]) -> None:
    buffer, model, first = make_buffer(capacity), deque[int](maxlen=capacity), 0
    for count in adds:
        buffer.add(rows_from(first, count))
        model.extend(range(first, first + count))
        first += count
        assert len(buffer) == len(model)
    if model:
        assert stored_numbers(buffer) == sorted(model)


@given(seed=st.integers(0, 2**32), batch_size=st.integers(1, 100))
def test_every_sampled_row_is_a_stored_one_with_its_own_fields(seed: int, batch_size: int) -> None:
    buffer = make_buffer(20, seed=seed)
    buffer.add(rows_from(0, 33))
    numbers = numbers_of(buffer.sample(batch_size))
    assert len(numbers) == batch_size
    assert set(numbers) <= set(range(13, 33))


def test_a_sample_is_a_copy_that_later_adds_and_draws_do_not_change() -> None:
    buffer = make_buffer(4)
    buffer.add(rows_from(0, 4))
    batch = buffer.sample(8)
    before = numbers_of(batch)
    buffer.add(rows_from(4, 4))
    assert numbers_of(buffer.sample(8)) != before
    assert numbers_of(batch) == before


def test_a_sampler_fills_one_batch_with_what_sample_would_give() -> None:
    buffer, twin = make_buffer(6), make_buffer(6)
    draw = buffer.sampler(5)
    buffer.add(rows_from(0, 3))
    twin.add(rows_from(0, 3))
    first = draw()
    assert numbers_of(first) == numbers_of(twin.sample(5))
    for other in (buffer, twin):
        other.add(rows_from(3, 7))  # rows that came after the sampler was made are drawn too
    again = draw()
    assert all(again[name] is first[name] for name in first)
    assert numbers_of(again) == numbers_of(twin.sample(5))


def test_a_sampler_of_an_empty_buffer_refuses_to_draw() -> None:
    with pytest.raises(RuntimeError, match="empty"):
        make_buffer(4).sampler(2)()


def test_what_was_added_may_change_afterwards() -> None:
    buffer, transitions = make_buffer(4), rows_from(0, 2)
    buffer.add(transitions)
    transitions["obs"][:] = np.nan
    assert stored_numbers(buffer) == [0, 1]


@pytest.mark.parametrize(
    ("observation", "stored"),
    [
        (Box(-1, 1, (3,), np.float32), torch.float32),
        (Box(-1, 1, (3,), np.float64), torch.float32),
        (Box(-9, 9, (2, 5), np.int32), torch.int32),
        (MultiBinary(7), torch.int8),
        (Discrete(4), torch.int64),
        (Box(0, 255, (5, 7, 3), np.uint8), torch.uint8),
        (Box(0, 255, (5, 7, 3), np.int64), torch.uint8),
        (Box(0, 1, (5, 7, 3), np.float32), torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("action", [Discrete(3), Box(-1, 1, (2,), np.float32)], ids=["discrete", "box"])
def test_shapes_dtypes_and_values_are_kept_for_any_space(observation: Any, stored: torch.dtype, action: Any) -> None:
    observation.seed(0)
    action.seed(0)
    obs, next_obs = (np.stack([observation.sample() for _ in range(6)]) for _ in range(2))
    actions = np.stack([action.sample() for _ in range(6)])
    transitions = {
        "obs": obs,
        "next_obs": next_obs,
        "actions": actions,
        "rewards": np.arange(6.0),
        "terminated": np.array([True, False] * 3),
    }
    buffer = make_buffer(6, transition_fields(Spaces(observation, action)))
    buffer.add(transitions)
    batch = buffer.sample(64)
    dtypes = {name: values.dtype for name, values in batch.items()}
    action_dtype = torch.int64 if isinstance(action, Discrete) else torch.float32
    assert dtypes == {
        "obs": stored,
        "next_obs": stored,
        "actions": action_dtype,
        "rewards": torch.float32,
        "terminated": torch.bool,
    }
    rows = batch["rewards"].long().numpy()
    for name, values in transitions.items():
        assert batch[name].shape == (64, *values.shape[1:])
        assert np.array_equal(batch[name].numpy(), values[rows].astype(batch[name].numpy().dtype)), name


def test_sampling_is_uniform() -> None:
    buffer = make_buffer(20)
    buffer.add(rows_from(0, 27))  # wrapped around
    counts = np.bincount(numbers_of(buffer.sample(10_000)), minlength=27)[7:]
    chi_square = ((counts - 500.0) ** 2 / 500.0).sum()
    assert chi_square < 43.8  # the 99.9 % point for 19 degrees of freedom


# --- Saving ----------------------------------------------------------------------------------------------------------


@given(adds=st.lists(st.integers(1, 9), min_size=1, max_size=5), more=st.integers(0, 12))
def test_a_loaded_buffer_continues_like_the_saved_one(adds: list[int], more: int) -> None:
    buffer, first = make_buffer(10), 0
    for count in adds:
        buffer.add(rows_from(first, count))
        first += count
    buffer.sample(3)
    state = buffer.state_dict()
    assert state["rows"].shape[0] == len(buffer)  # only the filled part
    copy = make_buffer(10, seed=99)
    copy.load_state_dict({**state, "rows": state["rows"].clone()})
    for other in (buffer, copy):
        other.add(rows_from(first, more))
    ours, theirs = copy.sample(50), buffer.sample(50)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert len(copy) == len(buffer)


@given(saved=st.integers(1, 15), capacity=st.integers(4, 12), more=st.integers(0, 20))
def test_a_buffer_loaded_into_a_larger_one_keeps_its_newest_rows(saved: int, capacity: int, more: int) -> None:
    small, large = make_buffer(4), make_buffer(capacity)
    small.add(rows_from(0, saved))
    large.load_state_dict(small.state_dict())
    large.add(rows_from(saved, more))
    oldest = max(0, saved - 4)
    assert stored_numbers(large) == list(range(max(oldest, saved + more - capacity), saved + more))


def test_transitions_of_another_layout_are_refused_by_name() -> None:
    other = make_buffer(4, transition_fields(Spaces(Box(0, 1, (2,), np.float32), Discrete(5))))
    with pytest.raises(CheckpointError, match=r"they hold obs float32\[2\].*expected obs float32\[3\]"):
        make_buffer(4).load_state_dict(other.state_dict())


def test_more_transitions_than_fit_are_refused() -> None:
    larger = make_buffer(8)
    larger.add(rows_from(0, 6))
    buffer = make_buffer(4)
    with pytest.raises(CheckpointError, match="6 transitions are stored, but buffer_capacity is 4"):
        buffer.load_state_dict(larger.state_dict())
    assert len(buffer) == 0


# --- Refusals --------------------------------------------------------------------------------------------------------


def test_sampling_from_an_empty_buffer_is_refused() -> None:
    with pytest.raises(RuntimeError, match="empty: add transitions before sampling"):
        make_buffer(4).sample(1)


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="buffer_capacity must be >= 1, got 0"):
        make_buffer(0)


def test_a_buffer_larger_than_memory_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    # A row of 84 x 84 x 4 bytes twice, 8 for the action, 4 for the reward, 1 flag: 56,461, in words of 8: 56,464 bytes.
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 3 * 2**30)
    setup = make_setup(observation=Box(0, 255, (84, 84, 4), np.uint8), buffer_capacity=100_000)
    with pytest.raises(ConfigError, match=r"100,000 transitions needs 5\.3 GiB.*only 3\.0 GiB.*buffer_capacity"):
        build_replay_buffer(setup)


def test_a_buffer_that_fits_is_built_with_the_runs_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 3 * 2**30)
    buffer = build_replay_buffer(make_setup(buffer_capacity=123))
    assert isinstance(buffer, ReplayBuffer)
    assert buffer.capacity == 123


def test_memory_is_not_guessed_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: None)
    check_memory(2**60, "a replay buffer", "algo_kwargs.buffer_capacity")


def test_the_available_memory_of_this_machine_is_a_sensible_figure() -> None:
    available = available_memory()
    assert available is None or 2**20 < available < 2**50


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("5000000", 5_000_000 - 4_000_000 + 700_000),  # what is used, less the files that are only cached
        ("2000000", 0),
        ("9000000000000", 8_192_000),  # the machine has less than the limit of the container
        ("max", 8_192_000),
    ],
)
def test_the_containers_limit_counts_and_cached_files_do_not(limit: str, expected: int, tmp_path: Path) -> None:
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(
        "MemTotal:       16000 kB\nMemAvailable:    8000 kB\nHugePages_Total: 0\n"
    )
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text("4000000\n")
    (group / "memory.stat").write_text("anon 3000000\nfile 900000\ninactive_file 700000\n")
    assert available_memory(tmp_path) == expected
