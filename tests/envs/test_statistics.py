"""Wrappers that learn statistics are refused with a setting of the algorithm; fixed statistics are not."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit

from rl_training import DQN, PPO, SAC
from rl_training.envs.statistics import learns_statistics
from rl_training.envs.tiny import Chain
from rl_training.errors import ConfigError


def normalized() -> gym.Env[Any, Any]:
    return TimeLimit(NormalizeObservation(gym.make("Pendulum-v1")), 20)


def normalized_rewards() -> gym.Env[Any, Any]:
    return NormalizeReward(gym.make("Pendulum-v1"))


def fixed() -> gym.Env[Any, Any]:
    env = NormalizeObservation(TimeLimit(Chain(), 20))
    env.obs_rms.mean = np.full(5, 0.2)
    env.update_running_mean = False
    return env


@pytest.mark.parametrize(
    ("algo", "env", "remedy"),
    [
        (PPO, normalized, "NormalizeObservation, .* remove it and set algo_kwargs.normalize: obs;"),
        (PPO, normalized_rewards, "NormalizeReward, .* remove it and set algo_kwargs.normalize: returns;"),
        (SAC, normalized, "NormalizeObservation, .* remove it and set algo_kwargs.normalize_observations: true;"),
        (DQN, normalized, "NormalizeObservation, .* dqn has no setting for this: .*update_running_mean = False"),
        (SAC, normalized_rewards, "NormalizeReward, .* gymnasium.wrappers.TransformReward with constants"),
    ],
)
def test_a_wrapper_that_learns_is_refused_with_what_the_algorithm_offers(
    algo: Any, env: Any, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"the environment has the wrapper {remedy}"):
        algo.for_env(env, 100, output_dir=tmp_path, show_progress=False).learn()
    assert list(tmp_path.iterdir()) == []


def test_fixed_statistics_are_accepted(tmp_path: Path) -> None:
    agent = DQN.for_env(
        fixed, 30, output_dir=tmp_path, algo_kwargs={"learning_starts": 10, "hidden_sizes": [8]}, show_progress=False
    )
    assert agent.learn().run_dir.is_dir()


def test_the_wrappers_of_other_packages_are_recognised_by_their_moments() -> None:
    class Moments:
        mean, var, count = 0.0, 1.0, 0

    class Own(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            super().__init__(env)
            self.statistics = Moments()

    assert learns_statistics(Own(Chain()))
    assert not learns_statistics(TimeLimit(Chain(), 3))
