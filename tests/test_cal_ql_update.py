"""Cal-QL: returns by hand, the floor under the penalized values, and CQL where there is none."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import make_box_batch, make_box_setup, make_config
from rl_training.algorithms.cql import build_cql, conservative_gap, sampled_actions
from rl_training.core.setup import Setup
from rl_training.core.spaces import transition_fields
from rl_training.data.dataset_memory import build_memory_with_returns
from rl_training.data.mixed_source import build_online_with_returns
from rl_training.data.returns_to_go import (
    RETURN_FIELDS,
    UNKNOWN,
    ReturnRows,
    dataset_returns,
    episode_columns,
    returns_to_go,
)
from rl_training.errors import CheckpointError, ConfigError
from rl_training.learners.dataset_rewards import scale_rewards
from rl_training.runtime.trainer import RunOptions, train
from state_comparison import assert_identical, clone
from test_cql_update import LOG_NORMAL, POLICY, actor, one_row
from test_iql_update import make_dataset
from test_td3_update import critics, lines

QUIET = RunOptions(show_progress=False)

# --- Returns ----------------------------------------------------------------------------------------------------------


def test_returns_by_hand() -> None:
    # gamma 0.5, rewards 1, 2, 3. Terminated: 3, 2 + 1.5, 1 + 1.75. After a time limit the 3 continues: 3 / 0.5 = 6 at
    # the last step, 2 + 3 and 1 + 2.5 before.
    rewards = np.array([1.0, 2.0, 3.0])
    assert returns_to_go(rewards, 0.5, terminated=True).tolist() == [2.75, 3.5, 3.0]
    assert returns_to_go(rewards, 0.5, terminated=False).tolist() == [3.5, 5.0, 6.0]
    assert episode_columns(rewards, 0.5, terminated=True)["discount_sums"].tolist() == [1.75, 1.5, 1.0]
    assert episode_columns(rewards, 0.5, terminated=False)["discount_sums"].tolist() == [2.0, 2.0, 2.0]


def test_an_episode_that_never_succeeds_is_worth_its_reward_for_ever() -> None:
    # Rewards of -5 and gamma 0.99: -5 / 0.01 = -500 at every step, however long the episode is.
    np.testing.assert_allclose(returns_to_go(np.full(30, -5.0), 0.99, terminated=False), np.full(30, -500.0))


def test_the_returns_of_a_dataset_stop_at_the_ends_of_its_episodes() -> None:
    dataset = make_dataset(returns=(200.0, 202.0))
    assert len(dataset.episode_ends) == 2
    columns = dataset_returns(dataset, 0.5)
    for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
        rows = slice(start, end + 1)
        expected = episode_columns(dataset.rewards[rows], 0.5, terminated=bool(dataset.terminated[end]))
        for name in RETURN_FIELDS:
            np.testing.assert_allclose(columns[name][rows], expected[name], rtol=1e-6)


def test_scaled_and_shifted_returns_are_those_of_scaled_and_shifted_rewards() -> None:
    rewards = np.array([1.0, -2.0, 4.0, 0.5])
    for terminated in (False, True):
        columns = {
            name: torch.from_numpy(values)
            for name, values in episode_columns(rewards, 0.9, terminated=terminated).items()
        }
        state = {"reward_scale": torch.tensor(10.0), "reward_shift": torch.tensor(-5.0)}
        scaled = scale_rewards({"rewards": torch.from_numpy(rewards), **columns}, state)
        expected = returns_to_go(10.0 * rewards - 5.0, 0.9, terminated=terminated)
        np.testing.assert_allclose(scaled["returns_to_go"].numpy(), expected)


# --- Episodes in the environment --------------------------------------------------------------------------------------


def make_rows(num_envs: int = 2, capacity: int = 13) -> ReturnRows:
    fields = transition_fields(make_box_setup().spaces) | RETURN_FIELDS
    return ReturnRows(capacity, fields, gamma=0.9, num_envs=num_envs)


def step_of(number: int, num_envs: int, ended: np.ndarray, terminated: np.ndarray) -> dict[str, np.ndarray]:
    """Step `number` of every env: the observation of env e is (e, number, 0), the reward number * (e + 1)."""
    obs = np.array([[env, number, 0.0] for env in range(num_envs)], np.float32)
    return {
        "obs": obs,
        "next_obs": obs + np.array([0.0, 1.0, 0.0], np.float32),
        "actions": np.zeros((num_envs, 2), np.float32),
        "rewards": np.array([number * (env + 1.0) for env in range(num_envs)]),
        "terminated": ended & terminated,
        "truncated": ended & ~terminated,
    }


@pytest.mark.parametrize(("num_envs", "capacity"), [(1, 5), (2, 13), (3, 100)])
def test_online_returns_are_known_when_their_episode_has_ended(num_envs: int, capacity: int) -> None:
    generator, rows = np.random.default_rng(0), make_rows(num_envs, capacity)
    open_rewards: list[list[float]] = [[] for _ in range(num_envs)]
    known: list[dict[int, float]] = [{} for _ in range(num_envs)]  # by step
    for number in range(40):
        ended, terminated = generator.random((2, num_envs)) < [[0.2], [0.5]]
        rows.add(step_of(number, num_envs, ended, terminated))
        for env in range(num_envs):
            open_rewards[env].append(number * (env + 1.0))
            if ended[env]:
                first = number + 1 - len(open_rewards[env])
                found = returns_to_go(np.array(open_rewards[env]), 0.9, terminated=bool(terminated[env]))
                known[env] |= {first + i: value for i, value in enumerate(found)}
                open_rewards[env] = []
        stored = rows.contents()
        expected = [known[int(env)].get(int(step), float(UNKNOWN)) for env, step, _ in stored["obs"]]
        np.testing.assert_allclose(stored["returns_to_go"], expected, rtol=1e-5)


def test_a_resumed_buffer_continues_its_episodes_and_forgets_broken_ones() -> None:
    rows, loaded = make_rows(), make_rows()
    never = np.zeros(2, np.bool_)
    for number in range(4):
        rows.add(step_of(number, 2, never, never))
    loaded.load_state_dict(clone(rows.state_dict()))
    last = step_of(4, 2, ~never, ~never)
    rows.add(last)
    broken = {name: values.copy() for name, values in last.items()}
    broken["obs"][1] = 99.0  # env 1 has begun another episode
    loaded.add(broken)
    ours, theirs = loaded.contents()["returns_to_go"], rows.contents()["returns_to_go"]
    np.testing.assert_array_equal(ours[0::2], theirs[0::2])
    assert ours[1::2].tolist() == [UNKNOWN] * 4 + [8.0]  # only the new episode's single step, of reward 8
    with pytest.raises(CheckpointError, match="steps of the open episodes must not be negative"):
        loaded.load_state_dict({**rows.state_dict(), "open_steps": np.array([-1, 0])})


# --- The loss ---------------------------------------------------------------------------------------------------------


def test_the_floor_lifts_the_policys_actions_and_not_the_uniform_ones() -> None:
    # As CQL's gap by hand: values 2 (uniform), 1 and 1. A floor of 5 lifts the last two, one of 1.5 as well, 0 none.
    batch = one_row()
    actions, log_densities = sampled_actions(torch.zeros(2), batch, policy=POLICY, apply_actor=actor)
    for floor, lifted in ((5.0, 5.0), (1.5, 1.5), (0.0, 1.0)):
        calibrated = batch | {"returns_to_go": torch.tensor([floor])}
        gap = conservative_gap(lines((1.0, 2.0)), actions, log_densities, calibrated, critics)
        expected = math.log(2.0 * math.exp(2.0) + 2.0 * math.exp(lifted - LOG_NORMAL)) - 1.0
        assert gap.tolist() == [[pytest.approx(expected)]]


def test_values_below_the_floor_are_not_lowered_further() -> None:
    batch = one_row() | {"returns_to_go": torch.tensor([50.0])}
    actions, log_densities = sampled_actions(torch.zeros(2), batch, policy=POLICY, apply_actor=actor)
    params = lines((1.0, 0.0)).requires_grad_()
    (gap,) = conservative_gap(params, actions, log_densities, batch, critics).flatten()
    (gradient,) = torch.autograd.grad(gap, params)
    assert gradient.flatten()[0].item() == pytest.approx(-1.0)  # only the dataset's value, which rises


def test_with_unknown_returns_an_update_is_that_of_cql() -> None:
    agents = [build_cql(make_box_setup(name, calibrated=False)) for name in ("cql", "cal_ql")]
    batch = make_box_batch()
    unknown = {"returns_to_go": torch.full((8,), float(UNKNOWN)), "discount_sums": torch.zeros(8)}
    results = [agents[0].update(dict(batch)), agents[1].update({**batch, **unknown})]
    assert_identical(results[1].metrics, results[0].metrics)
    assert_identical(agents[1].state, agents[0].state)


# --- From the dataset to the environment ------------------------------------------------------------------------------


def cal_ql_setup(algo: str = "cal_ql", **hparams: Any) -> Setup[Any]:
    return replace(make_box_setup(algo, **hparams), dataset=make_dataset(returns=(200.0, 202.0)))


def test_half_of_a_batch_has_the_returns_of_the_dataset() -> None:
    source = build_online_with_returns(cal_ql_setup(gamma=0.5))
    source.add(step_of(3, 1, np.array([True]), np.array([True])))  # reward 3, return 3
    batch = source.sample(16)
    assert (batch["returns_to_go"] == 3.0).view(2, 8).sum(1).tolist() == [4, 4]
    known = set(dataset_returns(cal_ql_setup().dataset, 0.5)["returns_to_go"].tolist())  # type: ignore[arg-type]
    assert set(batch["returns_to_go"].tolist()) == {3.0, *known}


@pytest.mark.parametrize("calibrated", [False, True])
def test_batches_hold_returns_only_where_the_settings_need_them(calibrated: bool) -> None:
    offline = build_memory_with_returns(cal_ql_setup("cql", calibrated=calibrated)).sample(4)
    source = build_online_with_returns(cal_ql_setup(calibrated=calibrated))
    source.add(step_of(0, 1, np.array([True]), np.array([True])))
    for batch in (offline, source.sample(8)):
        assert ("returns_to_go" in batch) == calibrated


def test_a_discount_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="calibrated needs a gamma below 1, got 1"):
        make_box_setup("cal_ql", gamma=1.0)


def run_config(tmp_path: Path, algo: str, **hparams: Any) -> Any:
    own = {"dataset_kind": "random", "dataset_size": 60, "hidden_sizes": [16], **hparams}
    return make_config(tmp_path, algo=algo, env_id="Pendulum-v1", total_timesteps=10, algo_kwargs=own)


def test_a_run_in_the_environment_begins_from_one_on_the_dataset(tmp_path: Path) -> None:
    offline = train(run_config(tmp_path, "cql", calibrated=True), QUIET)
    no_updates = {"init_from": str(offline.run_dir), "learning_starts": 100}
    online = train(run_config(tmp_path, "cal_ql", **no_updates, actor_learning_rate=0.5), QUIET)
    ours, theirs = online.algorithm.state, offline.algorithm.state  # type: ignore[attr-defined]
    assert_identical({**ours, "actor.learning_rate": 0}, {**theirs, "actor.learning_rate": 0})
    assert ours["actor.learning_rate"].item() == 0.5  # of the new run
    with pytest.raises(ConfigError, match=r"cal_ql\.algo_kwargs\.init_from: hidden_sizes must be as in"):
        train(run_config(tmp_path, "cal_ql", **no_updates | {"hidden_sizes": [8]}), QUIET)
    with pytest.raises(CheckpointError, match=r"init_from: .* is a run of cal_ql, but must be one of cql"):
        train(run_config(tmp_path, "cal_ql", **no_updates | {"init_from": str(online.run_dir)}), QUIET)
