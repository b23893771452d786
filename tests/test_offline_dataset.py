"""A dataset distinguishes terminations from truncations, never joins episodes, and refuses bad rows."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from rl_training.core import memory_limits
from rl_training.core.spaces import Spaces, to_env_actions
from rl_training.data.dataset_memory import replay_from_dataset
from rl_training.datasets.checks import from_env_actions
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.datasets.transitions import Transitions, build_transitions
from rl_training.envs.factory import make_env_factory
from rl_training.errors import ConfigError, DatasetError
from rl_training.hparams.bc import BCHParams
from rl_training.runtime.dataset_loading import load_transition_dataset
from state_comparison import assert_identical

LINE = Spaces(Box(-np.inf, np.inf, (1,), np.float32), Discrete(2))
FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")


def columns(
    terminations: list[int], truncations: list[int] | None = None, *, next_observations: list[float] | None = None
) -> dict[str, np.ndarray]:
    """Rows 0, 1, 2, ... whose observation, action and reward hold their number."""
    numbers = np.arange(len(terminations))
    found: dict[str, Any] = {
        "observations": numbers[:, None].astype(np.float32),
        "actions": numbers % 2,
        "rewards": numbers * 1.0,
        "terminations": np.array(terminations, np.bool_),
    }
    if truncations is not None:
        found["truncations"] = np.array(truncations, np.bool_)
    if next_observations is not None:
        found["next_observations"] = np.array(next_observations, np.float32)[:, None]
    return found


def dataset_of(found: dict[str, np.ndarray], spaces: Spaces = LINE) -> TransitionDataset:
    return TransitionDataset.from_transitions(build_transitions(found, source="the file", spaces=spaces))


def as_arrays(dataset: TransitionDataset) -> dict[str, np.ndarray]:
    return {name: getattr(dataset, name) for name in FIELDS}


def load_random(env_id: str, *, size: int = 300, seed: int = 0) -> TransitionDataset:
    settings = BCHParams(dataset_kind="random", dataset_size=size, dataset_seed=seed)
    return load_transition_dataset(settings, env_factory=make_env_factory(env_id))


# --- Where episodes end ----------------------------------------------------------------------------------------------


def test_terminations_and_truncations_stay_apart_and_both_end_an_episode() -> None:
    dataset = dataset_of(columns([0, 1, 0, 0, 0], [0, 0, 0, 1, 0], next_observations=[1, 8, 3, 9, 5]))
    assert dataset.terminated.tolist() == [False, True, False, False, False]
    assert dataset.truncated.tolist() == [False, False, False, True, False]
    assert dataset.episode_ends.tolist() == [1, 3, 4]
    assert dataset.episode_lengths().tolist() == [2, 2, 1]
    assert dataset.episode_returns().tolist() == [0 + 1, 2 + 3, 4]
    assert dataset.next_obs[:, 0].tolist() == [1, 8, 3, 9, 5]


def test_missing_successors_come_from_the_next_row_and_never_from_the_next_episode() -> None:
    # Row 1 terminates, row 4 is truncated, the file ends with row 6: the successors of rows 4 and 6 are not known.
    dataset = dataset_of(columns([0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0]))
    assert dataset.obs[:, 0].tolist() == [0, 1, 2, 3, 5]
    assert dataset.next_obs[:, 0].tolist() == [1, 1, 3, 4, 6]  # after a termination nothing looks at it
    assert dataset.terminated.tolist() == [False, True, False, False, False]
    assert dataset.truncated.tolist() == [False, False, False, True, True]
    assert dataset.episode_ends.tolist() == [1, 3, 4]


def test_dropped_rows_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rl_training")
    dataset_of(columns([0, 0, 0, 0], [0, 1, 0, 0]))
    assert "the file: dropped 2 rows whose next observation is not stored" in caplog.text


def test_an_episode_of_one_cut_row_vanishes_without_touching_its_neighbours() -> None:
    dataset = dataset_of(columns([0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]))
    assert dataset.obs[:, 0].tolist() == [0, 1, 3, 4, 5]
    assert dataset.truncated.tolist() == [False] * 5
    assert dataset.episode_ends.tolist() == [1, 4]


def test_a_file_without_any_known_successor_is_refused() -> None:
    with pytest.raises(DatasetError, match="no row has a successor"):
        dataset_of(columns([0, 0], [1, 1]))


def test_a_truncation_that_a_file_does_not_mark_is_found_by_a_jump_of_the_observations() -> None:
    dataset = dataset_of(columns([0, 1, 0, 0, 0], next_observations=[1, 7, 3, 9, 5]))
    assert dataset.truncated.tolist() == [False, False, False, True, True]


def test_a_jump_inside_an_episode_is_a_truncation_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    # Row 1 is followed by row 2, whose observation is 2 and not 7; rows 3 and 4 end episodes, which may jump.
    found = columns([0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0], next_observations=[1, 7, 3, 9, 9, 9])
    dataset = dataset_of(found)
    assert dataset.truncated.tolist() == [False, True, False, False, True, False]
    assert dataset.next_obs[:, 0].tolist() == [1, 7, 3, 9, 9, 9]
    assert found["truncations"].tolist() == [False, False, False, False, True, False]  # the caller's own array
    assert [record.message for record in caplog.records] == [
        "the file: the next observation is not the next row's observation in 1 of 6 rows, first in row 1: [7.], "
        "although no episode ends there; these rows count as truncated"
    ]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounded_next_observations_are_no_jumps(dtype: type, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(201, 3)).cumsum(0) * [1.0, 100.0, 1e-3]
    found = {
        "observations": walk[:-1],
        "next_observations": walk[1:].astype(dtype).astype(np.float64),
        "actions": np.zeros(200, np.int64),
        "rewards": np.zeros(200),
        "terminations": np.zeros(200, np.bool_),
    }
    for marked in ({}, {"truncations": np.arange(200) == 100}):
        transitions = build_transitions(found | marked, source="the file")
        assert np.flatnonzero(transitions.truncations).tolist() == ([100] if marked else [199])
    assert not caplog.records


def test_whole_numbers_jump_by_any_difference() -> None:
    found = columns([0, 0, 0, 0], [0, 0, 0, 0])
    found["observations"] = np.array([[5_000], [5_001], [5_003], [5_004]])
    found["next_observations"] = np.array([[5_001], [5_002], [5_004], [5_005]])
    assert build_transitions(found, source="the file").truncations.tolist() == [False, True, False, False]


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 40))
def test_a_derived_successor_is_always_in_the_same_episode(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    found = columns(list(rng.random(rows) < 0.2), list(rng.random(rows) < 0.2))
    found["terminations"][0] = True  # so that a row is left
    ends = found["terminations"] | found["truncations"]
    episode = np.concatenate([[0], np.cumsum(ends)[:-1]])  # by row
    dataset = dataset_of(found)
    kept, successors = dataset.obs[:, 0].astype(int), dataset.next_obs[:, 0].astype(int)
    assert (episode[kept] == episode[successors]).all()
    assert (successors - kept == ~dataset.terminated).all()
    starts = np.concatenate([[0], dataset.episode_ends[:-1] + 1])
    for start, end in zip(starts, dataset.episode_ends, strict=True):
        assert len(set(episode[kept[start : end + 1]])) == 1


# --- What it returns -------------------------------------------------------------------------------------------------


def test_arrays_cannot_be_written_to() -> None:
    dataset = dataset_of(columns([0, 1], [0, 0], next_observations=[1, 2]))
    for array in [*as_arrays(dataset).values(), dataset.episode_ends]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_memory_draws_every_row_with_its_own_fields() -> None:
    dataset = load_random("Pendulum-v1", size=50)
    memory = replay_from_dataset(dataset, generator=np.random.default_rng(0))
    batch = memory.sample(2_000)
    rows = [int(np.flatnonzero((dataset.obs == obs).all(1))[0]) for obs in batch["obs"].numpy()]
    assert set(rows) == set(range(50))
    for name in ("actions", "rewards", "next_obs", "terminated"):
        assert torch.equal(batch[name], torch.from_numpy(getattr(dataset, name)[rows].copy())), name


def test_split_chooses_whole_episodes_by_a_seed() -> None:
    dataset = dataset_of(columns([0, 1] * 10, [0, 0] * 10, next_observations=list(range(1, 21))))
    train, held_out = dataset.split(0.3, seed=1)
    assert (len(train), len(held_out)) == (14, 6)
    assert sorted([*train.obs[:, 0], *held_out.obs[:, 0]]) == list(range(20))
    assert (held_out.obs[::2, 0] + 1 == held_out.obs[1::2, 0]).all()  # two rows make an episode
    assert np.array_equal(dataset.split(0.3, seed=1)[1].obs, held_out.obs)
    assert not np.array_equal(dataset.split(0.3, seed=2)[1].obs, held_out.obs)


def test_an_open_end_stays_an_end_when_other_rows_follow_it() -> None:
    # Episodes {0, 1} and {2, 3}, which the file's end cuts; whichever comes first, they are two.
    dataset = dataset_of(columns([0, 1, 0, 0], [0, 0, 0, 0], next_observations=[1, 2, 3, 4]))
    parts = dataset.split(0.5, seed=0)
    assert sorted(len(part.episode_ends) for part in parts) == [1, 1]
    assert sum(int(part.truncated.sum()) for part in parts) == 1


def test_a_single_episode_cannot_be_split() -> None:
    dataset = dataset_of(columns([0, 1], [0, 0], next_observations=[1, 2]))
    with pytest.raises(DatasetError, match="the file has a single episode"):
        dataset.split(0.2, seed=0)


def test_the_first_rows_end_their_episode() -> None:
    dataset = dataset_of(columns([0, 0, 0, 1], [0] * 4, next_observations=[1, 2, 3, 4])).first(2)
    assert (len(dataset), dataset.episode_ends.tolist(), bool(dataset.terminated.any())) == (2, [1], False)


def test_a_memory_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(columns([0, 1], [0, 0], next_observations=[1, 2]))
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 10)
    with pytest.raises(ConfigError, match=r"2 transitions of the file needs .* only .* are available"):
        replay_from_dataset(dataset, generator=np.random.default_rng(0))


# --- Actions ---------------------------------------------------------------------------------------------------------


PAIR = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))


@pytest.mark.parametrize(
    ("space", "theirs", "ours"),
    [
        (
            Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float32),
            [[-2.0, 5.0], [1.0, 10.0]],
            [[-1, 0], [0.5, 1]],
        ),
        (Box(-1.0, 1.0, (1,), np.float32), [[0.25], [1.0004]], [[0.25], [1.0]]),
        (Discrete(3, start=5), [5, 7], [0, 2]),
        (Discrete(3), [[0], [2]], [0, 2]),
        (MultiDiscrete([2, 3], start=[1, 0]), [[1, 2], [2, 0]], [[0, 2], [1, 0]]),
        (MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
    ],
    ids=str,
)
def test_actions_become_ours(space: gym.Space[Any], theirs: Any, ours: Any) -> None:
    assert np.allclose(from_env_actions(np.array(theirs), space, "the file"), ours)


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
def test_actions_converted_for_the_environment_and_back_are_the_same(actions: list[float]) -> None:
    space = Box(-2.0, 6.0, (1,), np.float32)
    ours = np.array(actions, np.float32)[:, None]
    assert np.allclose(from_env_actions(to_env_actions(space)(ours), space, "the file"), ours, atol=1e-6)


# --- What is refused -------------------------------------------------------------------------------------------------

GOOD = {
    "obs": np.zeros((3, 1), np.float32),
    "actions": np.zeros(3, np.int64),
    "rewards": np.zeros(3, np.float32),
    "next_obs": np.zeros((3, 1), np.float32),
    "terminated": np.zeros(3, np.bool_),
    "truncated": np.zeros(3, np.bool_),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": np.zeros(0, np.float32)}, "is empty"),
        ({"obs": np.zeros((2, 1), np.float32)}, r"obs must have shape \(3, 1\)"),
        ({"rewards": np.zeros(3)}, "dtype float32, found .* float64"),
        (
            {"rewards": np.array([0, np.nan, np.inf], np.float32)},
            "rewards are not finite in 2 of 3 rows, first in row 1",
        ),
        (
            {"next_obs": np.array([[0], [0], [np.inf]], np.float32)},
            "next_obs are not finite in 1 of 3 rows, first in row 2",
        ),
        ({"actions": np.array([0, 1, 2])}, r"actions are outside Discrete\(2\) in 1 of 3 rows, first in row 2: 2"),
    ],
)
def test_construction_refuses_with_a_count_and_the_first_offender(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        TransitionDataset(**{**GOOD, **change}, spaces=LINE)  # type: ignore[arg-type]


def stored(**changes: Any) -> Transitions:
    values = {**columns([0, 0, 1], [0, 0, 0], next_observations=[1, 2, 3]), **changes}
    return build_transitions(values, source="the file", spaces=changes.pop("spaces", None))


def test_a_file_must_fit_the_environment() -> None:
    pendulum = Spaces(Box(-1, 1, (1,), np.float32), Box(-2.0, 2.0, (1,), np.float32))
    narrow = Spaces(pendulum.observation, Box(-1.0, 1.0, (1,), np.float32))
    actions = np.zeros((3, 1), np.float32)
    found = build_transitions({**stored().columns(), "actions": actions}, source="the file", spaces=narrow)
    with pytest.raises(DatasetError, match=r"the action space Box\(-1.0, .*, but the environment has Box\(-2.0"):
        TransitionDataset.from_transitions(found, pendulum)


def test_without_declared_spaces_they_are_inferred_from_the_arrays() -> None:
    dataset = TransitionDataset.from_transitions(stored())
    assert dataset.spaces.action == Discrete(2)
    assert dataset.spaces.observation == Box(-np.inf, np.inf, (1,), np.float32)


def test_actions_of_unknown_bounds_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"action space is not declared.*in 1 of 3 rows, first in row 1: \[2"):
        TransitionDataset.from_transitions(stored(actions=np.array([[0.0], [2.0], [1.0]])))


@pytest.mark.parametrize("name", ["observations", "actions", "rewards"])
def test_a_bad_row_has_the_number_that_it_has_in_the_file(name: str) -> None:
    # Rows 1 and 3 are dropped: they end their episodes, and the file does not hold their next observations.
    found = columns([0, 0, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0, 0])
    found[name] = found[name].astype(np.float32)
    found[name][5] = np.nan
    spaces = Spaces(LINE.observation, Box(-1.0, 1.0, (), np.float32)) if name == "actions" else LINE
    with pytest.raises(DatasetError, match="first in row 5"):
        dataset_of(found, spaces)


def test_observations_may_exceed_their_bounds_slightly_but_not_far(caplog: pytest.LogCaptureFixture) -> None:
    bounded = Spaces(Box(-2.0, 2.0, (1,), np.float32), Discrete(2))
    assert len(TransitionDataset.from_transitions(stored(), bounded)) == 3
    assert "next_obs exceed" in caplog.text
    far = stored(observations=np.array([[0.0], [1.0], [7.0]], np.float32))
    with pytest.raises(DatasetError, match=r"obs are far outside Box.* in 1 of 3 rows, first in row 2"):
        TransitionDataset.from_transitions(far, bounded)


# --- Random datasets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "rl_training/Masked-v0", "rl_training/TinyDict-v0"])
def test_a_random_dataset_is_determined_by_its_seed(env_id: str) -> None:
    first, again, other = (load_random(env_id, seed=seed) for seed in (3, 3, 4))
    assert len(first) == 300
    assert_identical(as_arrays(again), as_arrays(first))
    assert not np.array_equal(other.obs, first.obs)


def test_random_actions_are_valid_and_cover_the_space() -> None:
    masked, pendulum = load_random("rl_training/Masked-v0"), load_random("Pendulum-v1", size=1_000)
    assert not masked.terminated.any()  # an invalid action would terminate the episode
    assert np.histogram(pendulum.actions, 10, (-1, 1))[0].min() > 60  # 100 expected


def test_time_limits_are_truncations_whose_successor_is_the_final_observation() -> None:
    dataset = load_random("Pendulum-v1", size=500)
    assert dataset.episode_ends.tolist() == [199, 399, 499]
    assert not dataset.terminated.any()
    assert np.array_equal(dataset.next_obs[:199], dataset.obs[1:200])
    assert not np.array_equal(dataset.next_obs[199], dataset.obs[200])


def test_a_longer_random_dataset_starts_with_the_shorter_one() -> None:
    short, long = load_random("CartPole-v1", size=100), load_random("CartPole-v1", size=200)
    assert np.array_equal(long.obs[:100], short.obs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset_kind": "random"}, "random needs an environment"),
        ({"dataset_kind": "npz", "dataset_path": Path("no/such.npz")}, "there is no dataset no/such.npz"),
        ({"dataset_kind": "minari", "dataset_id": "no/such-v0"}, "minari download no/such-v0"),
        ({"dataset_kind": "minari", "dataset_id": "../../etc"}, "dataset_id must be an id such as"),
    ],
)
def test_settings_that_name_no_dataset_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DatasetError), match=message):
        load_transition_dataset(BCHParams(**settings))
