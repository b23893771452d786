"""N-step windows sum what follows on each step, no further than the episode's end."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from builders import make_setup
from rl_training.core.spaces import Spaces, replay_fields
from rl_training.data.n_step import NStepWindows
from rl_training.data.replay_buffer import build_replay_buffer
from rl_training.errors import CheckpointError
from state_comparison import assert_identical, clone

GAMMA = 0.5
SPACES = Spaces(Box(-np.inf, np.inf, (2,), np.float32), Discrete(3), action_mask=True)

Steps = list[dict[str, np.ndarray]]


def make_windows(n_step: int, num_envs: int) -> NStepWindows:
    return NStepWindows(n_step, GAMMA, num_envs, replay_fields(SPACES, n_step=n_step))


def make_steps(ends: list[list[int]]) -> Steps:
    """Steps of envs whose observations are env, episode and time. `ends`: per step and env 0 no, 1 term., 2 trunc."""
    num_envs = len(ends[0]) if ends else 1
    episode, steps = [0] * num_envs, []
    rng = np.random.default_rng(0)
    for time, kinds in enumerate(ends):
        obs = np.array([[env + 10 * episode[env], time] for env in range(num_envs)], np.float32)
        kind = np.array(kinds)
        steps.append(
            {
                "obs": obs,
                "next_obs": obs + np.array([0, 1], np.float32),
                "actions": rng.integers(3, size=num_envs),
                "rewards": rng.integers(-8, 9, size=num_envs).astype(np.float64),
                "terminated": kind == 1,
                "truncated": kind == 2,
                "next_action_mask": rng.random((num_envs, 3)) < 0.5,
            }
        )
        episode = [number + bool(kind) for number, kind in zip(episode, kinds, strict=True)]
    return steps


def plain_n_step(steps: Steps, n_step: int) -> dict[tuple[int, int], dict[str, Any]]:
    """What each (env, time) must become, straight from the definition; those that are still open are missing."""
    expected = {}
    for time in range(len(steps)):
        for env in range(len(steps[0]["rewards"])):
            total, count = 0.0, 0
            for step in steps[time : time + n_step]:
                total += GAMMA**count * step["rewards"][env]
                count += 1
                if step["terminated"][env] or step["truncated"][env]:
                    break
            ended = step["terminated"][env] or step["truncated"][env]
            if count == n_step or ended:
                expected[env, time] = {
                    "obs": steps[time]["obs"][env],
                    "actions": steps[time]["actions"][env],
                    "rewards": total,
                    "discounts": np.float32(GAMMA**count),
                    **{name: step[name][env] for name in ("next_obs", "terminated", "next_action_mask")},
                }
    return expected


def rows_of(transitions: Any) -> list[dict[str, Any]]:
    copies = copy_of(transitions)
    return [{name: values[row] for name, values in copies.items()} for row in range(len(copies["rewards"]))]


def copy_of(transitions: Any) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in transitions.items()}


ENDS = st.integers(1, 3).flatmap(
    lambda envs: st.lists(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=envs, max_size=envs), max_size=25)
)


@given(ends=ENDS, n_step=st.integers(2, 6))
def test_every_step_becomes_what_the_definition_says(ends: list[list[int]], n_step: int) -> None:
    steps = make_steps(ends)
    windows = make_windows(n_step, len(ends[0]) if ends else 1)
    given_rows = [row for step in steps for row in rows_of(windows.push(step))]
    expected = plain_n_step(steps, n_step)
    # The reward's sum is exact here: small whole numbers times powers of one half.
    assert_identical({(int(row["obs"][0]) % 10, int(row["obs"][1])): row for row in given_rows}, expected)
    assert len(given_rows) == len(expected)


def test_three_steps_by_hand() -> None:
    # Rewards 1, 2, 4 and gamma 1/2: 1 + 2/2 + 4/4 = 3; the next two starts end with the episode: 2 + 4/2 = 4, and 4.
    steps = make_steps([[0], [0], [1]])
    for step, reward in zip(steps, (1.0, 2.0, 4.0), strict=True):
        step["rewards"][:] = reward
    windows = make_windows(3, 1)
    assert rows_of(windows.push(steps[0])) == rows_of(windows.push(steps[1])) == []
    last = windows.push(steps[2])
    assert last["rewards"].tolist() == [3.0, 4.0, 4.0]
    assert last["discounts"].tolist() == [0.125, 0.25, 0.5]
    assert last["terminated"].tolist() == [True, True, True]
    assert last["obs"][:, 1].tolist() == [0.0, 1.0, 2.0]
    assert last["next_obs"][:, 1].tolist() == [3.0, 3.0, 3.0]


@given(ends=ENDS, n_step=st.integers(2, 5), cut=st.integers(0, 25))
def test_saved_windows_go_on_in_the_middle(ends: list[list[int]], n_step: int, cut: int) -> None:
    steps = make_steps(ends)
    windows = make_windows(n_step, len(ends[0]) if ends else 1)
    for step in steps[:cut]:
        windows.push(step)
    copy = make_windows(n_step, windows.num_envs)
    for step in make_steps([[0] * windows.num_envs] * 7):
        copy.push(step)  # what it held is gone
    copy.load_state_dict(clone(windows.state_dict()))
    for step in steps[cut:]:
        assert_identical(copy_of(copy.push(step)), copy_of(windows.push(step)))
    assert_identical(copy.state_dict(), windows.state_dict())


def test_a_window_is_dropped_where_a_resumed_env_starts_another_episode() -> None:
    steps = make_steps([[0, 0]] * 4)
    windows, copy = make_windows(3, 2), make_windows(3, 2)
    for step in steps[:2]:
        windows.push(step)
    copy.load_state_dict(clone(windows.state_dict()))
    steps[2]["obs"][1] = [70, 0]  # env 1 could not be brought back
    assert [row["obs"].tolist() for row in rows_of(copy.push(steps[2]))] == [[0, 0]]
    assert [row["obs"].tolist() for row in rows_of(copy.push(steps[3]))] == [[0, 1]]


def test_windows_of_another_number_of_envs_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"n-step windows' obs has shape \(3, 2, 2\) .*expected \(3, 1, 2\)"):
        make_windows(3, 1).load_state_dict(make_windows(3, 2).state_dict())


# --- In the memory ---------------------------------------------------------------------------------------------------


def test_a_memory_of_single_steps_has_no_windows_and_no_discounts() -> None:
    buffer = build_replay_buffer(make_setup(n_step=1))
    assert buffer.storage.windows is None  # type: ignore[attr-defined]
    assert "discounts" not in buffer.storage.layout.fields  # type: ignore[attr-defined]


def test_a_replay_buffer_of_n_steps_holds_sums_and_discounts() -> None:
    buffer = build_replay_buffer(make_setup(observation=SPACES.observation, n_step=3, gamma=GAMMA))
    steps = make_steps([[0], [0], [0], [2]])
    for step in steps:
        buffer.add(step)
    assert len(buffer) == 4
    batch = buffer.sample(200)
    expected = plain_n_step(steps, 3)
    for row in range(200):
        transition = expected[0, int(batch["obs"][row, 1])]
        for name in ("rewards", "discounts", "next_obs", "terminated", "actions"):
            assert np.array_equal(batch[name][row].numpy(), transition[name]), name
    assert batch["discounts"].dtype == batch["rewards"].dtype
