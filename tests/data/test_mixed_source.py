"""Batches hold real and made-up transitions in a fixed proportion; both memories go on exactly after a save."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from rl_training.core import memory_limits
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch
from rl_training.data.mixed_source import MixedSource, build_mixed_source
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import ConfigError
from rl_training.hparams.mbpo import MBPOHParams
from rl_training.hparams.schedules import synthetic_rows
from state_comparison import assert_identical, clone

REAL, MODEL = 1.0, -1.0  # the sign of a reward marks the origin of a transition


def make_source(seed: int = 0, **hparams: Any) -> MixedSource:
    small = {"batch_size": 20, "buffer_capacity": 100, "rollout_batch_size": 10, "synthetic_refreshes_kept": 2}
    setup = Setup(
        spaces=Spaces(Box(-1.0, 1.0, (3,), np.float32), Box(-1.0, 1.0, (2,), np.float32)),
        hparams=MBPOHParams(**{**small, **hparams}),
        total_timesteps=1_000,
        total_updates=1_000,
        streams=Streams(seed),
    )
    return build_mixed_source(setup)


def rows_of(sign: float, first: int, count: int) -> dict[str, np.ndarray]:
    """Transitions whose every field holds their number and their origin."""
    number = (np.arange(first, first + count) + 1) * sign
    return {
        "obs": np.stack([number, number, number], 1),
        "next_obs": np.stack([number + 0.5] * 3, 1),
        "actions": np.stack([number, number], 1),
        "rewards": number,
        "terminated": np.arange(first, first + count) % 2 == 0,
    }


def check_rows(batch: Batch) -> np.ndarray:
    """Give the rewards, having checked that all fields of each row belong together."""
    rewards = batch["rewards"].numpy()
    for name, width in (("obs", 3), ("actions", 2)):
        assert np.array_equal(batch[name].numpy(), np.repeat(rewards[:, None], width, 1))
    assert np.array_equal(batch["next_obs"].numpy(), np.repeat(rewards[:, None] + 0.5, 3, 1))
    assert np.array_equal(batch["terminated"].numpy(), np.abs(rewards) % 2 == 1)
    return rewards


@pytest.mark.parametrize(
    ("batch_size", "ratio", "num_real"),
    # 20 * 0.05 = 1, 256 * 0.05 = 12.8; one row at least is real, unless none is to be.
    [(20, 0.95, 1), (256, 0.95, 13), (10, 0.5, 5), (4, 0.99, 1), (20, 0.0, 20), (20, 1.0, 0)],
)
def test_every_batch_starts_with_its_share_of_real_rows(batch_size: int, ratio: float, num_real: int) -> None:
    source = make_source(batch_size=batch_size, synthetic_batch_ratio=ratio)
    source.add(rows_of(REAL, 0, 30))
    source.add_model_rows(rows_of(MODEL, 0, 20), keep=20)
    is_real = (check_rows(source.sampler(3 * batch_size)()) > 0).reshape(3, batch_size)
    assert is_real[:, :num_real].all()
    assert not is_real[:, num_real:].any()


def test_all_rows_are_real_until_the_model_has_generated_transitions() -> None:
    source = make_source(synthetic_batch_ratio=1.0)
    source.add(rows_of(REAL, 0, 30))
    draw = source.sampler(60)
    assert (check_rows(draw()) > 0).all()
    source.add_model_rows(rows_of(MODEL, 0, 5), keep=20)
    assert (check_rows(draw()) < 0).all()


def test_sampling_from_an_empty_source_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="empty"):
        make_source().sample(20)


def test_both_kinds_are_drawn_uniformly() -> None:
    source = make_source(synthetic_batch_ratio=0.5)
    source.add(rows_of(REAL, 0, 10))
    source.add_model_rows(rows_of(MODEL, 0, 10), keep=10)
    numbers, counts = np.unique(check_rows(source.sampler(40_000)()), return_counts=True)
    assert numbers.tolist() == [*range(-10, 0), *range(1, 11)]
    assert counts.sum() == 40_000
    assert np.abs(counts - 2_000).max() < 250  # 5.7 standard deviations, which are 43.6


def test_a_sampler_fills_the_same_tensors_and_a_sample_is_kept() -> None:
    source = make_source()
    source.add(rows_of(REAL, 0, 30))
    draw = source.sampler(20)
    assert draw()["obs"] is draw()["obs"]
    kept = source.sample(20)
    before = clone(kept)
    source.sample(20)
    draw()
    assert_identical(kept, before)


def test_collected_transitions_go_to_the_real_memory() -> None:
    source = make_source()
    assert len(source) == 0
    source.add_model_rows(rows_of(MODEL, 0, 5), keep=20)
    assert len(source) == 0
    source.add(rows_of(REAL, 0, 7))
    assert (len(source), len(source.real), len(source.model)) == (7, 7, 5)


def test_the_memory_of_the_model_follows_the_horizon() -> None:
    source = make_source(rollout_horizon=1, rollout_horizon_end=3, rollout_horizon_steps=[0, 100])
    source.add(rows_of(REAL, 0, 30))
    hparams = MBPOHParams(rollout_batch_size=10, synthetic_refreshes_kept=2)
    assert isinstance(source.model, ReplayBuffer)
    assert source.model.capacity == synthetic_rows(hparams, 3) == 2 * 10 * 3
    stored: list[list[int]] = []
    first = 0
    for horizon in (1, 1, 1, 2, 3, 3):  # each refresh adds 10 rows per step
        source.add_model_rows(rows_of(MODEL, first, 10 * horizon), keep=synthetic_rows(hparams, horizon))
        first += 10 * horizon
        numbers = np.unique(-check_rows(source.sampler(20_000)())) - 1
        stored.append([int(number) for number in numbers if number >= 0])
    # At horizon 1, 20 rows are kept, at 2, 40, at 3, 60.
    ranges = [(0, 10), (0, 20), (10, 30), (10, 50), (20, 80), (50, 110)]
    assert stored == [list(range(*ends)) for ends in ranges]


def test_the_capacity_bounds_the_memory_of_the_model() -> None:
    source = make_source(synthetic_buffer_capacity=15)
    source.add_model_rows(rows_of(MODEL, 0, 10), keep=20)
    source.add_model_rows(rows_of(MODEL, 10, 10), keep=20)
    assert isinstance(source.model, ReplayBuffer)
    assert (source.model.capacity, len(source.model)) == (15, 15)


def test_its_state_loads_into_another_one_which_then_draws_the_same() -> None:
    source, other = make_source(), make_source(seed=1)
    source.add(rows_of(REAL, 0, 130))  # more than the ring holds
    source.add_model_rows(rows_of(MODEL, 0, 20), keep=20)
    source.add_model_rows(rows_of(MODEL, 20, 7), keep=12)
    source.sample(40)
    other.load_state_dict(clone(source.state_dict()))
    assert_identical(other.state_dict(), source.state_dict())
    for _ in range(3):
        assert_identical(other.sample(40), source.sample(40))
        for each in (source, other):
            each.add_model_rows(rows_of(MODEL, 100, 6), keep=12)
    assert_identical(other.state_dict(), source.state_dict())


def test_a_memory_that_cannot_fit_is_refused_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 10_000)
    with pytest.raises(ConfigError, match=r"1,000,000 rollout transitions needs .* lower .*synthetic_buffer_capacity"):
        make_source(synthetic_buffer_capacity=1_000_000, rollout_batch_size=10**6)
