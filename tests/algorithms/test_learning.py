"""DQN learns tiny environments whose answer is known: the values themselves, not only the trend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import make_config, make_setup
from rl_training.algorithms.dqn import build_dqn
from rl_training.envs.tiny import Chain
from rl_training.learners.q_learning import QLearner
from rl_training.runtime.trainer import RunOptions, TrainResult, train

pytestmark = pytest.mark.learning

# Exploring at random throughout, so that every action is tried everywhere: Q-learning is off-policy.
RANDOM = {"epsilon_start": 1.0, "epsilon_end": 1.0}


def learn(
    tmp_path: Path, env_id: str, steps: int, *, num_envs: int = 1, env_kwargs: Any = None, **hparams: Any
) -> TrainResult:
    config = make_config(
        tmp_path,
        env_id=f"rl_training/{env_id}",
        env_kwargs=env_kwargs or {},
        total_timesteps=steps,
        num_envs=num_envs,
        eval_episodes=10,
        algo_kwargs={"batch_size": 32, "buffer_capacity": 5_000, "learning_starts": 100, **RANDOM, **hparams},
    )
    return train(config, RunOptions(show_progress=False))


def q_values(result: TrainResult, obs: np.ndarray) -> np.ndarray:
    assert isinstance(result.algorithm, QLearner)
    return result.algorithm._q_values(obs)


@pytest.mark.parametrize(("double_q", "num_envs"), [(False, 1), (True, 3)])
def test_the_values_of_the_chain_are_the_optimal_ones(double_q: bool, num_envs: int, tmp_path: Path) -> None:
    result = learn(
        tmp_path,
        "Chain-v0",
        1_500,
        num_envs=num_envs,
        double_q=double_q,
        gamma=0.9,
        learning_rate=5e-3,
        target_update_interval=25,
        hidden_sizes=[32],
    )
    optimal = Chain.optimal_q(0.9)
    assert optimal[:4, 1] == pytest.approx([0.729, 0.81, 0.9, 1.0])  # 0.9 ** 3, 0.9 ** 2, 0.9, 1
    # The row of the right end is left out: no action is ever taken there.
    np.testing.assert_allclose(q_values(result, np.eye(5, dtype=np.float32))[:4], optimal[:4], atol=0.02)
    assert result.eval_return == 1.0
    assert [episode.length for episode in result.eval_episodes] == [4] * 10


def test_a_time_limit_does_not_lower_the_values(tmp_path: Path) -> None:
    # Each episode of Identity is cut after 4 steps, by truncation: Q* = [a is s] + gamma / (1 - gamma) all the same.
    result = learn(
        tmp_path,
        "Identity-v0",
        1_200,
        env_kwargs={"size": 3, "length": 4},
        gamma=0.5,
        learning_rate=5e-3,
        target_update_interval=25,
        hidden_sizes=[32],
    )
    np.testing.assert_allclose(q_values(result, np.eye(3, dtype=np.float32)), np.eye(3) + 1.0, atol=0.02)
    assert [episode.ret for episode in result.eval_episodes] == [4.0] * 10


def test_the_arms_of_the_bandit_get_their_means(tmp_path: Path) -> None:
    # Every episode terminates at once, so that gamma does not matter: Q*(a) = means[a].
    result = learn(
        tmp_path,
        "TwoArmedBandit-v0",
        1_000,
        env_kwargs={"means": [0.2, 0.8], "noise": 0.1},
        gamma=0.99,
        learning_rate=3e-3,
        batch_size=128,
        hidden_sizes=[8],
    )
    np.testing.assert_allclose(q_values(result, np.ones((1, 1), np.float32)), [[0.2, 0.8]], atol=0.03)
    assert result.eval_return == pytest.approx(0.8, abs=0.1)  # ten pulls with noise 0.1


def test_the_bright_quadrant_of_an_image_is_found_by_the_cnn(tmp_path: Path) -> None:
    result = learn(
        tmp_path,
        "TinyImage-v0",
        1_000,
        env_kwargs={"size": 8},
        gamma=0.0,
        learning_rate=2e-3,
        hidden_sizes=[64],
        learning_starts=200,
    )
    assert [episode.ret for episode in result.eval_episodes] == [10.0] * 10  # right at every one of 100 images
    images = np.full((4, 8, 8, 1), 32, np.uint8)
    for quadrant, image in enumerate(images):
        row, column = 4 * (quadrant // 2), 4 * (quadrant % 2)
        image[row : row + 4, column : column + 4] = 255
    np.testing.assert_allclose(q_values(result, images), np.eye(4), atol=0.1)


def overestimation(double_q: bool) -> float:
    """How far above the truth, 0, the first of two states is valued: from it comes no reward, then N(0, 1) and the end.

    The values of eight actions that are all worth 0 waver with the rewards; their maximum is above 0 on average.
    """
    learner = build_dqn(
        make_setup(
            num_actions=8,
            double_q=double_q,
            hidden_sizes=(),
            gamma=1.0,
            loss="mse",
            learning_rate=0.05,
            learning_rate_schedule="constant",
            target_update_interval=50,
        )
    )
    generator, estimates = torch.Generator().manual_seed(0), []
    states = torch.eye(3)
    for count in range(1_000):
        state = torch.randint(2, (64,), generator=generator)
        rewards = torch.where(state == 1, torch.randn(64, generator=generator), 0.0)
        actions = torch.randint(8, (64,), generator=generator)
        batch = {"obs": states[state], "next_obs": states[torch.ones_like(state)], "actions": actions}
        learner.update(batch | {"rewards": rewards, "terminated": state == 1})
        if count >= 500:
            estimates.append(learner._q_values(states[:1].numpy()).mean())
    return float(np.mean(estimates))


def test_double_dqn_overestimates_far_less_than_dqn() -> None:
    # Over five seeds: 0.20 to 0.25 for DQN, 0.01 to 0.09 for Double DQN.
    assert overestimation(double_q=False) > 0.15
    assert abs(overestimation(double_q=True)) < 0.1


def test_learning_leaves_the_global_generators_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    learn(tmp_path, "Chain-v0", 150)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]
