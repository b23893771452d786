"""Evaluation episodes that are played at the same time: the same returns as one after the other."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from benchmarks.exactness import COMBINATIONS, differences, run_unbroken
from gymnasium.spaces import Box, Discrete

from builders import make_config
from rl_training import DQN
from rl_training.core.types import ActResult, Carry
from rl_training.envs.factory import EnvFactory, RegisteredEnv
from rl_training.envs.tiny import Chain
from rl_training.envs.vector import SyncEnvs
from rl_training.envs.workers import AsyncEnvs
from rl_training.errors import ConfigError, EnvError
from rl_training.runtime.evaluation import (
    EvalEpisode,
    EvaluationInterrupted,
    evaluate_episodes,
    evaluate_run,
    evaluate_together,
)
from rl_training.runtime.trainer import RunOptions, train

pytestmark = pytest.mark.process

SEEDS = [11, 12, 13, 14, 15]


def evaluate(factory: EnvFactory, algorithm: Any, num_envs: int, **settings: Any) -> list[EvalEpisode]:
    config = make_config(Path("unused"), eval_envs=num_envs, **settings)
    return evaluate_run(config, factory, algorithm, SEEDS)


def in_turn(factory: EnvFactory, algorithm: Any) -> list[EvalEpisode]:
    with SyncEnvs(factory) as envs:
        return evaluate_episodes(envs, algorithm, SEEDS)


class Untrained:
    """A policy whose actions depend on the observation to the last bit."""

    weights = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)

    def act(self, obs: np.ndarray, **options: Any) -> ActResult:
        assert len(obs) == 1  # products over several rows are rounded differently
        return ActResult(obs.dot(self.weights).argmax(1))


@pytest.mark.parametrize("num_envs", [2, 3, 9])
def test_returns_seeds_and_lengths_are_those_of_one_episode_after_the_other(num_envs: int) -> None:
    factory, algorithm = RegisteredEnv("CartPole-v1"), Untrained()
    expected = in_turn(factory, algorithm)
    assert len({episode.length for episode in expected}) > 2  # they end at different times
    assert evaluate(factory, algorithm, num_envs) == expected


class Counting:
    """A recurrent policy: its carry counts the steps of the episode; it acts by the count modulo 2."""

    def act(self, obs: np.ndarray, *, carry: Carry | None = None, **options: Any) -> ActResult:
        count = carry["count"] if carry else np.zeros(len(obs), np.int64)
        return ActResult(count % 2, {"count": count + 1})


class FirstValid:
    def act(self, obs: np.ndarray, *, action_mask: np.ndarray | None = None, **options: Any) -> ActResult:
        assert action_mask is not None
        return ActResult(action_mask.argmax(1))


@pytest.mark.parametrize(
    ("factory", "algorithm"),
    [(RegisteredEnv("rl_training/Chain-v0"), Counting()), (RegisteredEnv("rl_training/Masked-v0"), FirstValid())],
    ids=["carry", "masks"],
)
def test_each_episode_has_its_own_carry_and_masks(factory: EnvFactory, algorithm: Any) -> None:
    assert evaluate(factory, algorithm, 2) == in_turn(factory, algorithm)


class Timed(gym.Env[np.ndarray, np.int64]):
    """Its episodes are as long as their seed says; the return is the process in which they were played."""

    observation_space, action_space = Box(0, 1, (1,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.left = seed or 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), float(os.getpid()) if self.left == 0 else 0.0, self.left == 0, False, {}


class Left:
    def act(self, obs: np.ndarray, **options: Any) -> ActResult:
        return ActResult(np.zeros(len(obs), np.int64))


def test_a_free_env_plays_the_next_episode_and_reports_come_in_order() -> None:
    algorithm: Any = Left()
    reported: list[int] = []
    with AsyncEnvs(Timed, 2) as envs:
        seeds = [9, 2, 3, 2, 4]
        episodes = evaluate_together(envs, algorithm, seeds, on_episode=lambda each: reported.append(each.episode))
        slow, fast = envs.pids
    # The second env plays 2 + 3 + 2 steps while the first one plays 9, and begins with the last 4 after 7.
    assert [episode.ret for episode in episodes] == [slow, fast, fast, fast, fast]
    assert [episode.length for episode in episodes] == seeds
    assert reported == [0, 1, 2, 3, 4]


def test_an_env_without_an_end_is_cut_and_a_signal_ends_the_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    algorithm: Any = Left()
    with AsyncEnvs(Chain, 2) as envs:
        episodes = evaluate_together(envs, algorithm, [1, 2, 3], max_steps=4)
        assert [episode.length for episode in episodes] == [4, 4, 4]
        assert "evaluation episode 2 (seed 3) was cut at 4 steps" in caplog.messages
        with pytest.raises(EvaluationInterrupted):
            evaluate_together(envs, algorithm, [1, 2], interrupted=lambda: True)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", r"env \d gave no answer for 0.5 s \(worker_timeout\) and was stopped"),
        ("exit", r"env \d ended its process with exit code 3"),
    ],
)
def test_a_hung_or_dead_env_is_named_with_its_episode(fault: str, message: str) -> None:
    factory = RegisteredEnv("rl_training/Misbehaving-v0", {"fault": fault, "step": 2, "episode": 1})
    with pytest.raises(EnvError, match=message + r" at step 2 of episode [23] \(seed 1[34]\)"):
        evaluate(factory, Left(), 2, worker_timeout=0.5)


def test_a_run_does_not_depend_on_the_number_of_evaluation_envs(tmp_path: Path) -> None:
    case = replace(COMBINATIONS[0], name="one", settings={"total_timesteps": 300, "eval_episodes": 3})
    one = run_unbroken(case, tmp_path)
    three = run_unbroken(replace(case, name="three"), tmp_path, eval_envs=3)
    assert differences(three, one) == []
    assert DQN.load(three).evaluate(4) == DQN.load(one).evaluate(4)
    assert case.config(tmp_path).digest() == case.config(tmp_path, eval_envs=3).digest()


def test_more_envs_than_memory_are_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, eval_envs=10**6, eval_episodes=10**6)
    with pytest.raises(ConfigError, match=r"an evaluation in 1,000,000 environments .* eval_envs"):
        train(config, RunOptions(show_progress=False))
