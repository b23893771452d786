"""The rollout buffer returns what was added, step by step, with the observations that follow its open ends."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from rl_training.core import memory_limits
from rl_training.data.rollout_buffer import RolloutBuffer, build_rollout_buffer, rollout_fields
from rl_training.errors import CheckpointError, ConfigError, SpaceError
from rollouts import fill_rollout, make_ppo_setup
from state_comparison import assert_identical, clone

NUM_ENVS = 3


def make_buffer(num_steps: int = 4, num_envs: int = NUM_ENVS, **settings: Any) -> RolloutBuffer:
    settings = {"observation": Box(-99.0, 99.0, (2,), np.float32), "action": Discrete(5), **settings}
    return build_rollout_buffer(make_ppo_setup(num_steps=num_steps, num_envs=num_envs, **settings))


def step_number(step: int, truncated: Any = False, num_envs: int = NUM_ENVS) -> dict[str, np.ndarray]:
    """A step whose every field holds the numbers of the step and the env."""
    env = np.arange(num_envs)
    number = 10.0 * step + env
    return {
        "obs": np.stack([number, -number], 1).astype(np.float32),
        "next_obs": np.stack([number + 0.5, -number - 0.5], 1).astype(np.float32),
        "actions": (step + env) % 5,
        "rewards": number / 4,
        "terminated": (step + env) % 3 == 0,
        "truncated": np.broadcast_to(truncated, (num_envs,)),
    }


# --- What it returns -------------------------------------------------------------------------------------------------


def test_rows_come_step_by_step_and_env_by_env() -> None:
    buffer = make_buffer(num_steps=2)
    for step in range(2):
        assert not buffer.full
        buffer.add(step_number(step))
        assert len(buffer) == 3 * (step + 1)
    assert buffer.full
    rollout = buffer.rollout()
    assert rollout["obs"].tolist() == [[0, 0], [1, -1], [2, -2], [10, -10], [11, -11], [12, -12]]
    assert rollout["actions"].tolist() == [0, 1, 2, 1, 2, 3]
    assert rollout["rewards"].tolist() == [0, 0.25, 0.5, 2.5, 2.75, 3]
    assert rollout["terminated"].tolist() == [True, False, False, False, False, True]
    assert rollout["truncated"].tolist() == [False] * 6
    dtypes = {name: values.dtype for name, values in rollout.items()}
    assert dtypes == {
        "obs": torch.float32,
        "actions": torch.int64,
        "rewards": torch.float32,
        "terminated": torch.bool,
        "truncated": torch.bool,
        "final_rows": torch.int64,
        "final_obs": torch.float32,
    }


def test_the_observations_after_time_limits_and_after_the_last_step_are_kept() -> None:
    buffer = make_buffer(num_steps=3)
    buffer.add(step_number(0, truncated=[False, True, False]))
    buffer.add(step_number(1))
    buffer.add(step_number(2, truncated=[True, False, False]))
    rollout = buffer.rollout()
    # Row of step s and env e: 3 s + e. The rows of the last step occur once, truncated or not.
    assert rollout["final_rows"].tolist() == [1, 6, 7, 8]
    assert rollout["final_obs"].tolist() == [[1.5, -1.5], [20.5, -20.5], [21.5, -21.5], [22.5, -22.5]]
    assert rollout["truncated"].nonzero().flatten().tolist() == [1, 6]


@given(num_steps=st.integers(1, 6), num_envs=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_every_row_has_its_successor_as_the_next_row_or_among_the_final_ones(
    num_steps: int, num_envs: int, seed: int
) -> None:
    buffer, rng = make_buffer(num_steps, num_envs), np.random.default_rng(seed)
    truncated = rng.random((num_steps, num_envs)) < 0.4
    for step in range(num_steps):
        buffer.add(step_number(step, truncated[step], num_envs))
    rollout = buffer.rollout()
    needed = {step * num_envs + env for step, env in np.argwhere(truncated)}
    needed |= set(range((num_steps - 1) * num_envs, num_steps * num_envs))
    assert sorted(rollout["final_rows"].tolist()) == sorted(needed)
    assert torch.equal(rollout["final_obs"][:, 0], rollout["obs"][rollout["final_rows"], 0] + 0.5)


def test_a_rollout_is_returned_once_and_the_next_one_holds_nothing_of_it() -> None:
    buffer = make_buffer(num_steps=2)
    for step in range(2):
        buffer.add(step_number(step, truncated=True))
    buffer.rollout()
    assert (len(buffer), buffer.full) == (0, False)
    for step in range(5, 7):
        buffer.add(step_number(step))
    rollout = buffer.rollout()
    assert rollout["obs"][:, 0].tolist() == [50, 51, 52, 60, 61, 62]
    assert rollout["final_rows"].tolist() == [3, 4, 5]
    assert rollout["final_obs"][:, 0].tolist() == [60.5, 61.5, 62.5]


def test_the_rows_of_every_rollout_are_in_the_same_tensors() -> None:
    # A compiled step recognises tensors that it has seen before.
    buffer = make_buffer(num_steps=1)
    buffer.add(step_number(0))
    first = buffer.rollout()
    buffer.add(step_number(1))
    again = buffer.rollout()
    assert all(again[name] is first[name] for name in first if not name.startswith("final"))


def test_what_was_added_may_change_afterwards() -> None:
    buffer, transitions = make_buffer(num_steps=1), step_number(0)
    buffer.add(transitions)
    transitions["obs"][:], transitions["next_obs"][:] = np.nan, np.nan
    rollout = buffer.rollout()
    assert torch.isfinite(rollout["obs"]).all()
    assert torch.isfinite(rollout["final_obs"]).all()


@pytest.mark.parametrize(
    ("observation", "stored"),
    [
        (Box(0, 255, (5, 7, 3), np.uint8), torch.uint8),
        (Box(0, 255, (5, 7, 3), np.int64), torch.uint8),
        (Box(0, 1, (5, 7, 3), np.float32), torch.float32),
        (Box(-1, 1, (3,), np.float64), torch.float32),
        (MultiBinary(7), torch.int8),
        (Discrete(4), torch.int64),
    ],
    ids=str,
)
def test_observations_stay_in_their_stored_type(observation: Any, stored: torch.dtype) -> None:
    setup = make_ppo_setup(observation=observation)
    buffer = build_rollout_buffer(setup)
    fill_rollout(buffer, setup.spaces, ends=0.5)
    rollout = buffer.rollout()
    assert rollout["obs"].dtype == rollout["final_obs"].dtype == stored
    assert rollout["obs"].shape == (12, *observation.shape)
    assert rollout["final_obs"].shape[1:] == observation.shape


@pytest.mark.parametrize(
    ("action", "shape", "stored"),
    [
        (Discrete(3), (), torch.int64),
        (MultiDiscrete([3, 2]), (2,), torch.int64),
        (MultiBinary((2, 2)), (2, 2), torch.int64),
        (Box(-1, 1, (2, 3), np.float32), (2, 3), torch.float32),
    ],
    ids=str,
)
def test_actions_of_every_kind_are_stored(action: Any, shape: tuple[int, ...], stored: torch.dtype) -> None:
    setup = make_ppo_setup(action=action)
    buffer = build_rollout_buffer(setup)
    fill_rollout(buffer, setup.spaces)
    actions = buffer.rollout()["actions"]
    assert (actions.shape, actions.dtype) == ((12, *shape), stored)


def test_masks_are_stored_with_their_observations() -> None:
    buffer = make_buffer(num_steps=2, num_envs=2, action=MultiDiscrete([2, 3]), action_mask=True)
    masks = np.random.default_rng(0).random((2, 2, 5)) < 0.5
    for step in range(2):
        transitions = step_number(step, num_envs=2) | {"actions": np.zeros((2, 2)), "action_mask": masks[step]}
        buffer.add(transitions)
    assert np.array_equal(buffer.rollout()["action_mask"].numpy(), masks.reshape(4, 5))


def test_without_masks_there_is_no_such_field() -> None:
    assert "action_mask" not in rollout_fields(make_ppo_setup())


# --- Saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", range(5))
def test_a_loaded_buffer_continues_like_the_saved_one(before: int) -> None:
    buffer, copy = make_buffer(num_steps=4), make_buffer(num_steps=4)
    copy.add(step_number(77, truncated=True))  # which the state replaces
    truncated = [[True, False, False], [False, False, True], [False] * 3, [True] * 3]
    steps = [step_number(step, truncated[step]) | {"next_obs": step_number(step + 1)["obs"]} for step in range(4)]
    for step in range(before):
        buffer.add(steps[step])
    state = clone(buffer.state_dict())
    assert {len(values) for values in state["arrays"].values()} == {before}  # only the filled part
    copy.load_state_dict(state)
    assert (len(copy), copy.full) == (3 * before, before == 4)
    assert_identical(copy.state_dict(), buffer.state_dict())
    for step in range(before, 4):
        for each in (buffer, copy):
            each.add(steps[step])
    assert_identical(copy.rollout(), buffer.rollout())


def test_an_episode_that_a_resume_could_not_continue_ends_where_it_was() -> None:
    buffer, resumed = make_buffer(num_steps=3), make_buffer(num_steps=3)
    buffer.add(step_number(1))  # which ends the episode of env 2
    resumed.load_state_dict(clone(buffer.state_dict()))
    step = step_number(2)
    step["obs"][0] = [10.5, -10.5]  # what followed in env 0; the others start an episode
    resumed.add(step)
    resumed.add(step_number(3))
    rollout = resumed.rollout()
    assert rollout["truncated"].nonzero().flatten().tolist() == [1]  # of env 1
    assert rollout["final_rows"].tolist() == [1, 6, 7, 8]
    assert rollout["final_obs"][:, 0].tolist() == [11.5, 30.5, 31.5, 32.5]


def test_a_state_without_the_newest_observations_continues_all_episodes() -> None:
    buffer, resumed = make_buffer(num_steps=2), make_buffer(num_steps=2)
    buffer.add(step_number(1))
    state = clone(buffer.state_dict())
    del state["last_obs"]  # of a version before they were saved
    resumed.load_state_dict(state)
    resumed.add(step_number(2))
    assert not resumed.rollout()["truncated"].any()


def test_a_rollout_of_other_observations_is_refused_by_name() -> None:
    other = make_buffer(observation=Box(-1.0, 1.0, (4,), np.float32))
    message = (
        r"the stored rollout's obs has shape \(0, 3, 4\) and type float32, expected at most \(4, 3, 2\) of float32"
    )
    with pytest.raises(CheckpointError, match=message):
        make_buffer().load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    "settings",
    [
        {"num_envs": 2},
        {"num_steps": 9},
        {"action": Box(-1.0, 1.0, (1,), np.float32)},
        {"observation": Box(-99, 99, (2,), np.int32)},
    ],
)
def test_a_rollout_that_does_not_fit_is_refused(settings: dict[str, Any]) -> None:
    other = make_buffer(**settings)
    for step in range(5):
        values = step_number(step, num_envs=other.num_envs)
        if not other.full:
            other.add(values | {"actions": values["actions"].reshape(other._arrays["actions"].shape[1:])})
    buffer = make_buffer()
    buffer.add(step_number(0))
    with pytest.raises(CheckpointError, match=r"the stored rollout's \w+ has shape"):
        buffer.load_state_dict(other.state_dict())


def test_a_rollout_with_masks_is_refused_where_there_are_none() -> None:
    other = make_buffer(action_mask=True)
    message = r"does not fit: it holds obs, .*truncated, action_mask, expected obs, .*truncated$"
    with pytest.raises(CheckpointError, match=message):
        make_buffer().load_state_dict(other.state_dict())


# --- Refusals --------------------------------------------------------------------------------------------------------


def test_a_full_buffer_refuses_a_further_step() -> None:
    buffer = make_buffer(num_steps=1)
    buffer.add(step_number(0))
    with pytest.raises(RuntimeError, match=r"the rollout is full: call rollout\(\) before adding the next step"):
        buffer.add(step_number(1))


@pytest.mark.parametrize("steps", [0, 3])
def test_a_part_of_a_rollout_is_not_returned(steps: int) -> None:
    buffer = make_buffer(num_steps=4)
    for step in range(steps):
        buffer.add(step_number(step))
    with pytest.raises(RuntimeError, match=f"the rollout has {steps} of 4 steps"):
        buffer.rollout()


def test_a_rollout_larger_than_memory_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    # A row: 84 * 84 * 4 bytes of image, 8 of action, 4 of reward, 2 flags; 1000 * 128 of them: 3.4 GiB.
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 3 * 2**30)
    image = Box(0, 255, (84, 84, 4), np.uint8)
    setup = make_ppo_setup(observation=image, num_steps=1_000, num_envs=128, minibatch_size=1_000)
    message = r"a rollout of 128,000 rows needs 3\.4 GiB, but only 3\.0 GiB .*lower algo_kwargs\.num_steps or num_envs"
    with pytest.raises(ConfigError, match=message):
        build_rollout_buffer(setup)


def test_masks_over_numbers_are_refused() -> None:
    with pytest.raises(SpaceError, match="action masks need a Discrete or MultiDiscrete action space"):
        make_buffer(action=Box(-1.0, 1.0, (2,), np.float32), action_mask=True)
