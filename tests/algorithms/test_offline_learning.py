"""Offline algorithms learn from tiny files whose answer is known: the values themselves, not only the trend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import make_config
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.sac import SAC
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.offline import OfflineLearner
from rl_training.runtime.trainer import RunOptions, TrainResult, train

pytestmark = pytest.mark.learning

QUICK = {"batch_size": 256, "learning_rate": 5e-3, "hidden_sizes": [32], "tau": 0.05, "held_out": 0.01}


def learn(tmp_path: Path, algo: str, columns: dict[str, Any], steps: int, **hparams: Any) -> TrainResult:
    """Learn from a file alone: there is no environment."""
    rows = len(columns["rewards"])
    columns = {"truncations": np.zeros(rows, np.bool_), "next_observations": columns["observations"]} | columns
    np.savez(tmp_path / "data.npz", **columns)
    dataset = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "data.npz"), "dataset_size": None}
    settings = {**QUICK, **dataset, **hparams}
    config = make_config(tmp_path, algo=algo, env_id="", total_timesteps=steps, algo_kwargs=settings)
    return train(config, RunOptions(show_progress=False))


def learner_of(result: TrainResult) -> OfflineLearner:
    assert isinstance(result.algorithm, OfflineLearner)
    return result.algorithm


def values(result: TrainResult, obs: np.ndarray) -> np.ndarray:
    recipe = learner_of(result).recipe
    assert isinstance(recipe, IQL)
    with torch.no_grad():
        found: np.ndarray = recipe.value.module(torch.from_numpy(obs)).numpy()
    return found


def two_arms(rows: int = 1_000) -> dict[str, np.ndarray]:
    """One step, one observation; four times in five the worse arm, -0.8, was pulled, which brings 0; 0.8 brings 1."""
    better = np.arange(rows) % 5 == 0
    return {
        "observations": np.ones((rows, 1), np.float32),
        "actions": np.where(better, 0.8, -0.8).astype(np.float32)[:, None],
        "rewards": better.astype(np.float32),
        "terminations": np.ones(rows, np.bool_),
    }


ONE = np.ones((1, 1), np.float32)


def test_bc_pulls_the_arms_as_they_were_pulled(tmp_path: Path) -> None:
    result = learn(tmp_path, "bc", two_arms(), 600)
    assert result.algorithm.act(ONE).actions.item() == pytest.approx(0.2 * 0.8 - 0.8 * 0.8, abs=0.1)  # -0.48


def test_iql_picks_the_better_arm_although_it_was_seldom_pulled(tmp_path: Path) -> None:
    # Q is 1 and 0. V, the expectile of 0.9: 0.9 * 0.2 * (1 - V) = 0.1 * 0.8 * V, so that V = 0.18 / 0.26 = 0.692.
    # Weights e^(5 * 0.308) : e^(5 * -0.692) = e^5 : 1. The mean: 0.8 * (0.2 e^5 - 0.8) / (0.2 e^5 + 0.8) = 0.758.
    result = learn(tmp_path, "iql", two_arms(), 600, expectile=0.9, beta=5.0)
    assert values(result, ONE) == pytest.approx(0.692, abs=0.04)
    assert result.algorithm.act(ONE).actions.item() == pytest.approx(0.758, abs=0.05)


def test_a_low_expectile_believes_the_worse_arm(tmp_path: Path) -> None:
    # 0.1 * 0.2 * (1 - V) = 0.9 * 0.8 * V: V = 0.02 / 0.74 = 0.027.
    result = learn(tmp_path, "iql", two_arms(), 400, expectile=0.1)
    assert values(result, ONE) == pytest.approx(0.027, abs=0.03)


@pytest.mark.parametrize("algo", ["td3_bc", "rebrac"])
def test_td3_bc_and_rebrac_climb_the_critic_to_the_better_arm_or_imitate_by_their_weight(
    algo: str, tmp_path: Path
) -> None:
    loose, strict = ({"alpha": 20.0}, {"alpha": 1e-4}) if algo == "td3_bc" else ({}, {"actor_penalty": 1e4})
    plain = {"normalize_observations": False}
    better = learn(tmp_path, algo, two_arms(), 400, **plain, **loose)
    assert better.algorithm.act(ONE).actions.item() > 0.7
    assert better.metrics["q_value_mean"] == pytest.approx(0.2, abs=0.05)
    imitated = learn(tmp_path, algo, two_arms(), 400, **plain, **strict)
    assert imitated.algorithm.act(ONE).actions.item() == pytest.approx(0.2 * 0.8 - 0.8 * 0.8, abs=0.1)  # -0.48


def test_cql_picks_the_better_arm_and_gives_low_values_to_actions_without_data(tmp_path: Path) -> None:
    settings = {"normalize_observations": False, "conservative_weight": 0.1, "actor_learning_rate": 5e-3, "alpha": 0.01}
    result = learn(tmp_path, "cql", two_arms(), 400, **settings)
    assert result.algorithm.act(ONE).actions.item() == pytest.approx(0.8, abs=0.2)
    assert isinstance(result.algorithm, ActorCritic)
    assert isinstance(result.algorithm.recipe, SAC)
    obs, actions = torch.ones(3, 1), torch.tensor([[0.8], [0.0], [-0.8]])
    with torch.no_grad():
        better, unseen, worse = result.algorithm.recipe.critics.module(obs, actions).mean(0).tolist()
    assert better > max(worse, unseen), (better, unseen, worse)
    assert unseen < (better + worse) / 2  # a straight line between the arms would give the mean


def test_a_time_limit_does_not_lower_the_values_and_a_termination_does(tmp_path: Path) -> None:
    # From state 0 to state 1 and back, 1, 0, 1, 0, ... for ever, cut off after every three steps, whatever is done.
    # V(0) = 1 + gamma V(1), V(1) = gamma V(0), gamma = 0.5: 4/3 and 2/3. Taking the limit for an end: less.
    rows = 600
    state = (np.arange(rows) % 3) % 2
    columns = {
        "observations": np.eye(2, dtype=np.float32)[state],
        "next_observations": np.eye(2, dtype=np.float32)[1 - state],
        "actions": np.random.default_rng(0).uniform(-1.0, 1.0, (rows, 1)).astype(np.float32),
        "rewards": (state == 0).astype(np.float32),
        "terminations": np.zeros(rows, np.bool_),
        "truncations": np.arange(rows) % 3 == 2,
    }
    states = np.eye(2, dtype=np.float32)
    result = learn(tmp_path, "iql", columns, 500, gamma=0.5)
    np.testing.assert_allclose(values(result, states), [4 / 3, 2 / 3], atol=0.05)
    assert result.metrics["held_out_value_error"] < 0.1

    # Now every third step terminates. State 0 is left twice, once for good: V(0) = 1 + gamma V(1) / 2 = 1 / (1 - 1/8),
    # V(1) = gamma V(0).
    ends = columns | {"terminations": columns["truncations"], "truncations": columns["terminations"]}
    ended = learn(tmp_path, "iql", ends, 500, gamma=0.5)
    np.testing.assert_allclose(values(ended, states), [8 / 7, 4 / 7], atol=0.05)


def test_choices_are_cloned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1.0, 1.0, (1_000, 2)).astype(np.float32)
    columns = {
        "observations": obs,
        "actions": (obs[:, 0] > obs[:, 1]).astype(np.int64),
        "rewards": np.zeros(1_000, np.float32),
        "terminations": np.ones(1_000, np.bool_),
    }
    result = learn(tmp_path, "bc", columns, 500)
    assert result.metrics["held_out_action_error"] < 0.05
    assert result.metrics["held_out_log_likelihood"] > -0.15
    assert np.array_equal(result.algorithm.act(np.array([[0.5, -0.5], [-0.5, 0.5]], np.float32)).actions, [1, 0])
