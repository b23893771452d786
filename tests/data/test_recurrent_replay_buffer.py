"""Sequences hold the observations of each env in order, with what led to them and the ends of episodes.

Each observation is sampled once soon after it was stored; the rest of a batch is sampled uniformly.
"""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from builders import make_setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch
from rl_training.data.recurrent_replay_buffer import (
    RecurrentReplayBuffer,
    build_recurrent_replay_buffer,
    sequence_fields,
)
from rl_training.errors import CheckpointError, ConfigError
from state_comparison import assert_identical

SPACES = Spaces(Box(0.0, 1e4, (1,), np.float32), Discrete(9))


def make_buffer(capacity: int = 40, *, num_envs: int = 1, length: int = 3, seed: int = 0) -> RecurrentReplayBuffer:
    return RecurrentReplayBuffer(
        capacity,
        sequence_fields(SPACES),
        sequence_length=length,
        num_envs=num_envs,
        generator=np.random.default_rng(seed),
    )


class Stream:
    """Envs that count: observation k of env e is 100 * e + k, over all episodes; the step to it has action k % 9.

    `ends`: after how many steps an episode terminates ("t") or is truncated ("c"), by the number of the observation.
    """

    def __init__(self, num_envs: int = 1, ends: dict[int, str] | None = None) -> None:
        self.now = [0] * num_envs
        self.ends = ends or {}

    def step(self) -> dict[str, Any]:
        before = list(self.now)
        after = [k + 1 for k in before]
        ends = [self.ends.get(k, "") for k in after]
        self.now = [k + 1 if end else k for k, end in zip(after, ends, strict=True)]  # the next episode's first one
        return {
            "obs": np.array([[100 * env + k] for env, k in enumerate(before)], np.float32),
            "next_obs": np.array([[100 * env + k] for env, k in enumerate(after)], np.float32),
            "actions": np.array([k % 9 for k in after]),
            "rewards": np.array([k / 2 for k in after]),
            "terminated": np.array([end == "t" for end in ends]),
            "truncated": np.array([end == "c" for end in ends]),
        }


def fill(buffer: RecurrentReplayBuffer, steps: int, stream: Stream | None = None) -> None:
    stream = stream or Stream(len(buffer.rings))
    for _ in range(steps):
        buffer.add(stream.step())


def test_an_episode_of_steps_becomes_its_observations_with_what_led_to_each() -> None:
    buffer = make_buffer(length=7)
    fill(buffer, 5, Stream(ends={2: "t", 5: "c"}))  # episodes 0 1 2 and 3 4 5, then 6 7
    assert (buffer.num_rows, len(buffer)) == (8, 2)
    batch = buffer.sample(64)
    assert {name: (values.dtype, tuple(values.shape)) for name, values in batch.items()} == {
        "obs": (torch.float32, (64, 7, 1)),
        "actions": (torch.int64, (64, 7)),
        "rewards": (torch.float32, (64, 7)),
        "terminated": (torch.bool, (64, 7)),
        "is_first": (torch.bool, (64, 7)),
    }
    row = int(batch["obs"][:, 0].flatten().argmin())  # a sequence that starts with observation 0
    whole = {name: values[row].flatten().tolist() for name, values in batch.items()}
    assert whole == {
        "obs": [0, 1, 2, 3, 4, 5, 6],
        "actions": [0, 1, 2, 0, 4, 5, 0],
        "rewards": [0, 0.5, 1, 0, 2, 2.5, 0],
        "terminated": [False, False, True, False, False, False, False],  # the time limit at 5 is none
        "is_first": [True, False, False, True, False, False, True],
    }


def test_nothing_can_be_sampled_before_an_env_has_a_complete_sequence() -> None:
    buffer, stream = make_buffer(length=4, num_envs=2), Stream(2)
    fill(buffer, 2, stream)
    assert len(buffer) == 0
    with pytest.raises(RuntimeError, match="no env has 4 observations yet"):
        buffer.sample(1)
    fill(buffer, 1, stream)
    assert len(buffer) == 2


def test_images_are_kept_as_bytes_and_each_once() -> None:
    fields = sequence_fields(Spaces(Box(0, 255, (4, 4, 1), np.uint8), Discrete(2)))
    assert fields["obs"].dtype == np.uint8
    assert [name for name, field in fields.items() if field.shape] == ["obs"]


@given(
    num_envs=st.integers(1, 3),
    steps=st.integers(4, 60),
    capacity=st.integers(12, 60),
    length=st.integers(2, 4),
    every=st.integers(2, 9),
)
def test_any_sequence_is_a_run_of_consecutive_observations_of_one_env_and_the_newest_are_kept(
    num_envs: int, steps: int, capacity: int, length: int, every: int
) -> None:
    buffer = make_buffer(capacity, num_envs=num_envs, length=length)
    stream = Stream(num_envs, ends=dict.fromkeys(range(every, 100, every + 1), "t"))
    fill(buffer, steps, stream)
    shown = buffer.sample(50)["obs"].flatten(1).numpy().astype(np.int64)
    assert (np.diff(shown, axis=1) == 1).all()
    ring = capacity // num_envs
    newest = [100 * env + k - (k % (every + 1) == 0) for env, k in enumerate(stream.now)]  # without a first one to come
    for env in range(num_envs):
        assert buffer.rings[env].end - buffer.rings[env].first == min(ring, newest[env] % 100 + 1)
        rows = shown[shown[:, 0] // 100 == env]
        assert rows.size == 0 or newest[env] - ring < rows.min() <= rows.max() <= newest[env]


def test_all_starts_of_all_envs_are_sampled_uniformly() -> None:
    buffer = make_buffer(60, num_envs=2, length=3)
    fill(buffer, 5)  # 6 observations, 4 starts in each env
    starts = buffer.sample(8_000)["obs"][:, 0].flatten().numpy()
    numbers, counts = np.unique(starts, return_counts=True)
    assert numbers.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert np.abs(counts / 1_000 - 1).max() < 0.15  # a deviation is 0.03


# --- Fresh sequences -------------------------------------------------------------------------------------------------


def starts_of(batch: Batch) -> list[int]:
    """The first observations of the sequences of a batch."""
    return [int(number) for number in batch["obs"][:, 0, 0]]


def test_each_observation_is_in_one_fresh_sequence_which_comes_before_uniform_samples() -> None:
    buffer, stream = make_buffer(length=3), Stream()
    fill(buffer, 7, stream)  # observations 0 to 7: 0 1 2 and 3 4 5 are complete
    assert starts_of(buffer.sample(1)) == [0]
    assert starts_of(buffer.sample(1)) == [3]
    assert set(starts_of(buffer.sample(200))) == {0, 1, 2, 3, 4, 5}
    fill(buffer, 4, stream)  # observations up to 11: 6 7 8 and 9 10 11
    batch = starts_of(buffer.sample(200))
    assert batch[:2] == [6, 9]
    assert set(batch[2:]) == set(range(10))


def test_the_env_with_most_fresh_observations_comes_first() -> None:
    # An episode of n steps has n + 1 observations: env 1, whose episodes have one step, stores twice as many.
    buffer, stream = make_buffer(60, num_envs=2, length=4), Stream(2)
    for _ in range(6):
        step = stream.step()
        step["truncated"] = np.array([False, True])
        stream.now[1] += 1
        buffer.add(step)
    # Env 0 has observations 0 to 6, env 1 has 100 to 111; 7 and 12 fresh ones, then 7 and 8, 7 and 4, 3 and 4.
    assert starts_of(buffer.sample(4)) == [100, 104, 0, 108]


def test_of_overwritten_observations_none_is_fresh() -> None:
    buffer, stream = make_buffer(24, num_envs=2, length=3), Stream(2)
    fill(buffer, 10, stream)
    assert starts_of(buffer.sample(2)) == [0, 100]
    fill(buffer, 10, stream)  # observations up to 20, of which 12 are stored: 3 to 8 are gone, and the pair at 9 begins
    assert starts_of(buffer.sample(10))[:8] == [9, 109, 12, 112, 15, 115, 18, 118]


@pytest.mark.parametrize(("steps", "capacity"), [(11, 40), (11, 60), (50, 40)])
def test_a_resumed_buffer_serves_the_fresh_sequences_that_are_left(steps: int, capacity: int) -> None:
    stream = Stream(2, ends={3: "t", 7: "c"})
    buffer, other = make_buffer(num_envs=2), make_buffer(capacity, num_envs=2, seed=1)
    fill(buffer, steps, stream)
    buffer.sample(3)
    other.load_state_dict(buffer.state_dict())
    for _ in range(2):
        step = stream.step()
        buffer.add(step)
        other.add(step)
        ours, theirs = starts_of(other.sample(2)), starts_of(buffer.sample(2))
        assert ours == theirs


@pytest.mark.parametrize("fresh", [[-1, 0], [0, 7]])
def test_fresh_observations_that_are_not_stored_are_refused(fresh: list[int]) -> None:
    buffer = make_buffer(num_envs=2)
    fill(buffer, 5)
    with pytest.raises(CheckpointError, match="fresh observations"):
        buffer.load_state_dict({**buffer.state_dict(), "fresh": np.array(fresh)})


# --- The rest --------------------------------------------------------------------------------------------------------


def test_the_sampler_fills_the_same_tensors() -> None:
    buffer = make_buffer()
    fill(buffer, 20)
    sampler = buffer.sampler(4)
    first = sampler()
    before = first["obs"].clone()
    again = sampler()
    assert all(first[name] is again[name] for name in first)
    assert not torch.equal(before, again["obs"])


def test_a_step_that_does_not_continue_from_the_newest_observation_starts_an_episode() -> None:
    buffer = make_buffer(length=4)
    fill(buffer, 2)
    stream = Stream()
    stream.now = [50]
    fill(buffer, 1, stream)  # as after a resume that could not restore the env
    assert buffer.sample(1)["obs"].shape[1] == 4
    everything = dict(zip([0, 1, 2, 50, 51], [1, 0, 0, 1, 0], strict=True))
    batch = buffer.sample(32)
    shown = zip(batch["obs"].flatten().tolist(), batch["is_first"].flatten().tolist(), strict=True)
    assert all(everything[number] == is_first for number, is_first in shown)


@pytest.mark.parametrize("steps", [0, 1, 5, 40])
def test_its_state_loads_into_another_one_which_continues_in_the_same_way(steps: int) -> None:
    stream = Stream(2, ends={3: "t", 7: "c"})
    buffer, other = make_buffer(num_envs=2), make_buffer(num_envs=2, seed=1)
    fill(buffer, steps, stream)
    other.load_state_dict(buffer.state_dict())
    for _ in range(5):
        step = stream.step()
        buffer.add(step)
        other.add(step)
    assert_identical(other.state_dict(), buffer.state_dict())
    ours, theirs = other.sample(8), buffer.sample(8)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_that_cannot_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a replay buffer of 1,000,000,000,000 observations needs"):
        build_recurrent_replay_buffer(make_setup(algo="dreamer", buffer_capacity=10**12))
