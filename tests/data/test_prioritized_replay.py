"""Prioritized replay samples by TD error, weights by probability, and continues exactly after a save."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from builders import make_setup
from rl_training.core.spaces import Spaces, transition_fields
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer, build_replay_buffer
from rl_training.data.row_storage import RowStorage
from rl_training.data.sum_tree import SumTree
from rl_training.errors import CheckpointError, TrainingError
from state_comparison import assert_identical, clone

FIELDS = transition_fields(Spaces(Box(-np.inf, np.inf, (1,), np.float32), Discrete(5)))


def make_buffer(capacity: int, seed: int = 0, **settings: Any) -> PrioritizedReplayBuffer:
    settings = {"alpha": 1.0, "beta_start": 1.0, "beta_end": 1.0, "total_draws": 100, **settings}
    return PrioritizedReplayBuffer(RowStorage(capacity, FIELDS), generator=np.random.default_rng(seed), **settings)


def rows_from(first: int, count: int) -> dict[str, np.ndarray]:
    """Transitions whose observation is their number."""
    number = np.arange(first, first + count)
    return {
        "obs": number[:, None],
        "next_obs": number[:, None] + 1,
        "actions": number % 5,
        "rewards": number * 0.5,
        "terminated": number % 3 == 0,
        "truncated": np.zeros(count, np.bool_),
    }


def numbers_of(batch: dict[str, torch.Tensor]) -> np.ndarray:
    return batch["obs"][:, 0].numpy().astype(np.int64)


def set_priorities(buffer: PrioritizedReplayBuffer, priorities: dict[int, float]) -> None:
    """Sample until every row has its priority (alpha is 1); the floor of 1e-6 is subtracted before."""
    errors = np.vectorize(lambda number: priorities[number] - 1e-6)
    seen: set[int] = set()
    while seen != set(priorities):
        numbers = numbers_of(buffer.sample(16))
        seen |= set(numbers.tolist())
        buffer.update_priorities(torch.from_numpy(errors(numbers)))


# --- The tree --------------------------------------------------------------------------------------------------------

PRIORITIES = st.floats(0.0, 1e6, allow_subnormal=False)


@given(data=st.data(), capacity=st.integers(1, 40) | st.integers(1_000, 9_000))
def test_the_tree_finds_what_the_running_sum_of_all_priorities_finds(data: st.DataObject, capacity: int) -> None:
    tree, model = SumTree(capacity), np.zeros(capacity)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(data.draw(st.integers(1, 6))):
        # Whole numbers: sums are exact in any order, so that the reference is exact, too.
        if data.draw(st.booleans()):
            places = rng.integers(capacity, size=data.draw(st.integers(1, 300)))
            values = rng.integers(0, 4, size=len(places)).astype(np.float64)
            tree.set(places, values)
            model[places] = values
        else:
            first, count = int(rng.integers(5 * capacity)), int(rng.integers(1, capacity + 1))
            value = float(rng.integers(4))
            tree.set_range(first, first + count, value)
            model[np.arange(first, first + count) % capacity] = value
        assert np.array_equal(tree.priorities, model)
    model[0] = 1.0
    tree.set(np.array([0]), np.array([1.0]))
    fractions = rng.integers(0, 2**10, size=64) / 2**10
    targets = (np.arange(64) + fractions) * (model.sum() / 64)
    assert np.array_equal(tree.find_stratified_places(fractions), model.cumsum().searchsorted(targets, "right"))


@given(
    priorities=st.lists(PRIORITIES | st.just(0.0), min_size=1, max_size=70).filter(any),
    empty=st.sampled_from([0, 1, 3_000, 100_001]),  # places that follow
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_no_place_without_priority_is_found_and_none_past_the_end(
    priorities: list[float], empty: int, batch_size: int, seed: int
) -> None:
    tree = SumTree(len(priorities) + empty)
    tree.set(np.arange(len(priorities)), np.array(priorities))
    ones = np.ones(batch_size)  # a fraction just below 1 may be rounded to 1: the target is then the total
    for fractions in (np.random.default_rng(seed).random(batch_size), np.zeros(batch_size), ones):
        places = tree.find_stratified_places(fractions)
        assert places.max() < len(priorities)
        assert (np.array(priorities)[places] > 0).all()


def test_the_last_place_is_found_in_trees_of_any_size() -> None:
    for capacity in [*range(1, 50), 1_023, 1_024, 1_025, 2_047, 2_049, 3_126, 6_251, 100_000]:
        tree = SumTree(capacity)
        tree.set_range(0, capacity, 1.0)
        assert tree.find_stratified_places(np.ones(3))[-1] == capacity - 1


def test_sums_do_not_drift() -> None:
    # 1e16 + 1 == 1e16 in float64: a tree that adds differences would lose the small priorities.
    tree = SumTree(5_000)
    tree.set_range(0, 5_000, 1.0)
    for _ in range(3):
        tree.set(np.array([17]), np.array([1e16]))
        tree.set(np.array([17]), np.array([1.0]))
    fractions = np.zeros(5_000)
    assert np.array_equal(tree.find_stratified_places(fractions), np.arange(5_000))


# --- Sampling --------------------------------------------------------------------------------------------------------


def test_rows_are_drawn_in_proportion_to_their_priority() -> None:
    buffer = make_buffer(8)
    buffer.add(rows_from(0, 11))  # wrapped around: rows 3 to 10
    set_priorities(buffer, {number: float(number) for number in range(3, 11)})
    random_inputs = np.concatenate([numbers_of(buffer.sample(7)) for _ in range(3_000)])
    expected = np.arange(3, 11) * 21_000 / 52
    chi_square = ((np.bincount(random_inputs, minlength=11)[3:] - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # the 99.9 % point for 7 degrees of freedom


def test_a_batch_takes_one_row_from_each_slice_of_the_sum() -> None:
    buffer = make_buffer(64)
    buffer.add(rows_from(0, 64))
    assert numbers_of(buffer.sample(64)).tolist() == list(range(64))  # equal priorities: every slice is one row


def test_each_of_several_batches_sampled_at_once_takes_one_row_from_each_slice_of_the_sum() -> None:
    # 64 equal rows, 4 batches of 16: each has one of rows 0 to 3, one of 4 to 7, ..., and all batches have all rows.
    buffer = make_buffer(64, batch_size=16)
    buffer.add(rows_from(0, 64))
    batches = numbers_of(buffer.sampler(64)()).reshape(4, 16)
    assert (batches // 4 == np.arange(16)).all()
    assert sorted(batches.ravel().tolist()) == list(range(64))
    shares = [(numbers_of(buffer.sampler(64)()).reshape(4, 16) % 4 == 0).sum(1) for _ in range(300)]
    # A quarter of a batch's rows are the first of their slice, whichever batch it is: 16 / 4 on average.
    np.testing.assert_allclose(np.mean(shares, 0), 4.0, atol=5 * np.sqrt(16 * 0.25 * 0.75 / 300))


def test_the_weights_of_several_batches_drawn_at_once_are_relative_to_the_largest_of_each() -> None:
    # Priorities 1 and 3, beta 1: weights 1 and 1/3 in a batch that has both, 1 in one that has a single row.
    buffer = make_buffer(2, batch_size=1)
    buffer.add(rows_from(0, 2))
    set_priorities(buffer, {0: 1.0, 1: 3.0})
    batch = buffer.sampler(8)()
    assert sorted(numbers_of(batch).tolist()) == [0, 0, 1, 1, 1, 1, 1, 1]
    assert batch["weights"].tolist() == [1.0] * 8


def test_weights_are_exact_by_hand() -> None:
    # p = 1, 2, 5 of 8 in all, N = 3: N P = 3/8, 6/8, 15/8; to the power of -1/2 over the largest, (3/8)^-1/2:
    # 1, (1/2)^(1/2), (1/5)^(1/2).
    buffer = make_buffer(3, beta_start=0.5, beta_end=0.5)
    buffer.add(rows_from(0, 3))
    set_priorities(buffer, {0: 1.0, 1: 2.0, 2: 5.0})
    batch = buffer.sample(64)
    expected = np.array([1.0, 0.5**0.5, 0.2**0.5])[numbers_of(batch)]
    assert batch["weights"].dtype == torch.float32
    np.testing.assert_allclose(batch["weights"].numpy(), expected, rtol=1e-6)


def test_weights_are_relative_to_the_largest_of_the_batch() -> None:
    buffer = make_buffer(2)
    buffer.add(rows_from(0, 2))
    set_priorities(buffer, {0: 1e-3, 1: 1e6})
    batch = buffer.sample(1)
    assert numbers_of(batch).tolist() == [1]
    assert batch["weights"].tolist() == [1.0]


def test_beta_rises_linearly_over_the_draws_and_stays() -> None:
    buffer = make_buffer(2, beta_start=0.4, beta_end=1.0, total_draws=4)
    buffer.add(rows_from(0, 2))
    betas = []
    for _ in range(6):
        betas.append(buffer.beta)
        buffer.sample(1)
    assert betas == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0])


def test_several_batches_drawn_at_once_count_as_so_many_draws() -> None:
    buffer = make_buffer(2, beta_start=0.4, beta_end=1.0, total_draws=4, batch_size=2)
    buffer.add(rows_from(0, 2))
    betas = []
    for rows in (2, 4, 3, 2):  # three rows are not a multiple of the batch size: one draw
        betas.append(buffer.beta)
        buffer.sampler(rows)()
    assert betas == pytest.approx([0.4, 0.55, 0.85, 1.0])


def test_alpha_zero_samples_uniformly_with_weights_of_one() -> None:
    buffer = make_buffer(4, alpha=0.0)
    buffer.add(rows_from(0, 4))
    for _ in range(3):
        batch = buffer.sample(4)
        assert numbers_of(batch).tolist() == [0, 1, 2, 3]
        assert batch["weights"].tolist() == [1.0] * 4
        buffer.update_priorities(torch.tensor([0.0, 1.0, 10.0, 100.0]))


def test_new_rows_get_the_largest_priority_so_far() -> None:
    buffer = make_buffer(4)
    buffer.add(rows_from(0, 2))
    set_priorities(buffer, {0: 7.0, 1: 0.5})
    set_priorities(buffer, {0: 2.0, 1: 0.5})  # the largest stays 7, although no row has it any more
    buffer.add(rows_from(2, 1))
    assert buffer.state_dict()["priorities"].tolist() == pytest.approx([2.0, 0.5, 7.0])


def test_a_row_that_was_overwritten_after_the_draw_keeps_the_priority_of_the_new_one() -> None:
    buffer = make_buffer(4)
    buffer.add(rows_from(0, 4))
    assert numbers_of(buffer.sample(4)).tolist() == [0, 1, 2, 3]
    buffer.add(rows_from(4, 1))  # overwrites row 0
    buffer.update_priorities(torch.full((4,), 3.0))
    # Oldest first; the new row was added when 1 was the largest.
    assert buffer.state_dict()["priorities"].tolist() == pytest.approx([3.000001] * 3 + [1.0])


@given(capacity=st.integers(1, 30), adds=st.lists(st.integers(0, 40), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_only_stored_rows_are_drawn_after_any_sequence_of_adds(capacity: int, adds: list[int], seed: int) -> None:
    buffer, number = make_buffer(capacity, seed), 0
    rng = np.random.default_rng(seed)
    for count in adds:
        buffer.add(rows_from(number, count))
        number += count
        if number:
            numbers = numbers_of(buffer.sample(9))
            assert set(numbers) <= set(range(max(0, number - capacity), number))
            buffer.update_priorities(torch.from_numpy(rng.random(9)))
    assert len(buffer) == min(number, capacity)


def test_a_sampler_fills_one_batch_with_what_sample_would_return() -> None:
    buffer, twin = make_buffer(6), make_buffer(6)
    draw = buffer.sampler(5)
    first = None
    for number in range(0, 12, 3):
        for other in (buffer, twin):
            other.add(rows_from(number, 3))
        ours, theirs = draw(), twin.sample(5)
        first = first or dict(ours)
        assert all(ours[name] is first[name] for name in first)
        assert_identical(ours, theirs)
        for other in (buffer, twin):
            other.update_priorities(torch.arange(5.0))


# --- Saving ----------------------------------------------------------------------------------------------------------


def work(buffer: PrioritizedReplayBuffer, number: int, rounds: int) -> list[dict[str, torch.Tensor]]:
    batches = []
    for first in range(number, number + rounds):
        buffer.add(rows_from(first, 1))
        batch = buffer.sample(4)
        buffer.update_priorities(batch["obs"][:, 0].sin().abs())
        batches.append(batch)
    return batches


@given(before=st.integers(1, 25), after=st.integers(1, 15))
def test_a_loaded_buffer_continues_like_the_saved_one(before: int, after: int) -> None:
    settings: dict[str, Any] = {"alpha": 0.6, "beta_start": 0.4, "total_draws": 30}
    buffer, copy = make_buffer(10, **settings), make_buffer(10, seed=99, **settings)
    work(buffer, 0, before)
    work(copy, 1_000, 9)  # loading replaces this content
    copy.load_state_dict(clone(buffer.state_dict()))
    assert_identical(copy.state_dict(), buffer.state_dict())
    for ours, theirs in zip(work(copy, before, after), work(buffer, before, after), strict=True):
        assert_identical(ours, theirs)


def test_a_full_buffer_loaded_into_a_larger_one_keeps_each_rows_priority() -> None:
    small, large = make_buffer(4), make_buffer(7)
    small.add(rows_from(0, 6))
    set_priorities(small, {2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0})
    large.load_state_dict(small.state_dict())
    large.add(rows_from(6, 4))
    large.sample(1)
    stored = dict(zip(range(3, 10), large.state_dict()["priorities"], strict=True))
    assert stored == pytest.approx({3: 3.0, 4: 4.0, 5: 5.0, 6: 5.0, 7: 5.0, 8: 5.0, 9: 5.0})


def test_transitions_without_priorities_are_refused() -> None:
    plain = ReplayBuffer(RowStorage(4, FIELDS), generator=np.random.default_rng(0))
    plain.add(rows_from(0, 2))
    with pytest.raises(CheckpointError, match="no priorities"):
        make_buffer(4).load_state_dict(plain.state_dict())


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-0.5, float("nan"), float("inf")])
def test_what_cannot_be_a_priority_is_refused_before_it_reaches_the_tree(wrong: float) -> None:
    buffer = make_buffer(4)
    buffer.add(rows_from(0, 4))
    buffer.sample(4)
    with pytest.raises(
        TrainingError, match=f"1 of 4 TD errors .* negative or not finite .such as {wrong}.*learning_rate"
    ):
        buffer.update_priorities(torch.tensor([1.0, wrong, 1.0, 1.0]))
    assert buffer.state_dict()["priorities"].tolist() == [1.0] * 4


def test_td_errors_of_another_shape_are_refused() -> None:
    buffer = make_buffer(4)
    buffer.add(rows_from(0, 4))
    buffer.sample(4)
    with pytest.raises(ValueError, match=r"shape \(4,\).*got \(4, 1\)"):
        buffer.update_priorities(torch.ones(4, 1))


def test_td_errors_without_a_batch_are_refused() -> None:
    buffer = make_buffer(4)
    buffer.add(rows_from(0, 4))
    with pytest.raises(RuntimeError, match="no batch was sampled"):
        buffer.update_priorities(torch.ones(4))


def test_sampling_from_an_empty_buffer_is_refused() -> None:
    with pytest.raises(RuntimeError, match="empty: add transitions before sampling"):
        make_buffer(4).sample(1)


@pytest.mark.parametrize("alpha", [1e-300, 50.0, 1e6])
def test_any_alpha_leaves_rows_that_can_be_drawn(alpha: float) -> None:
    buffer = make_buffer(4, alpha=alpha)
    buffer.add(rows_from(0, 4))
    for errors in ([0.0, 0.0, 0.0, 0.0], [1e30, 0.0, 1.0, 1e-30]):
        batch = buffer.sample(4)
        assert np.isfinite(batch["weights"].numpy()).all()
        buffer.update_priorities(torch.tensor(errors))
    assert numbers_of(buffer.sample(4)).max() < 4


# --- Built from the settings -----------------------------------------------------------------------------------------


def test_the_builder_composes_priorities_with_the_runs_settings() -> None:
    setup = make_setup(
        prioritized=True,
        prioritized_alpha=0.3,
        prioritized_beta_start=0.2,
        prioritized_beta_end=0.6,
        n_step=3,
        train_frequency=2,
        gradient_steps=1,
        total_timesteps=20,
    )
    buffer = build_replay_buffer(setup)
    assert isinstance(buffer, PrioritizedReplayBuffer)
    steps = {"obs": np.zeros((1, 3)), "next_obs": np.ones((1, 3)), "actions": np.zeros(1, np.int64)}
    for _ in range(5):
        ends = {"terminated": np.zeros(1, np.bool_), "truncated": np.zeros(1, np.bool_)}
        buffer.add({**steps, **ends, "rewards": np.ones(1)})
    batch = buffer.sample(2)
    assert len(buffer) == 3
    assert {"weights", "discounts"} <= batch.keys()
    buffer.update_priorities(torch.tensor([3.0, 3.0]))
    assert buffer.state_dict()["max_priority"] == pytest.approx(3.0**0.3)
    assert buffer.beta == pytest.approx(0.2 + 0.4 / 10)  # one of the ten updates in 20 steps
