"""Dreamer learns a tiny world whose answer is known: the policy, and the values that it learnt by imagining alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from builders import make_config
from rl_training.algorithms.dreamer import Dreamer
from rl_training.envs.tiny import Chain
from rl_training.models.dreamer_two_hot import two_hot_mean
from rl_training.runtime.dreamer_trainer import train_dreamer
from rl_training.runtime.trainer import RunOptions

pytestmark = pytest.mark.learning

NUM_STATES, GAMMA = 4, 0.8


def values_along_the_way(learner: Dreamer) -> list[float]:
    """What the critic expects in each state of an episode that goes straight to the right."""
    carry, values = None, []
    for state in range(NUM_STATES - 1):
        result = learner.act(np.eye(NUM_STATES, dtype=np.float32)[[state]], carry=carry)
        assert result.carry is not None
        assert result.actions.tolist() == [1]
        carry = result.carry
        logits = learner._parts["critic"].module(torch.from_numpy(carry["features"]))
        values.append(two_hot_mean(logits, learner._bins).item())
    return values


def test_the_chain_is_walked_straight_and_valued_by_its_discounted_reward(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        algo="dreamer",
        env_id="rl_training/Chain-v0",
        env_kwargs={"num_states": NUM_STATES},
        total_timesteps=1_000,
        eval_episodes=5,
        algo_kwargs={
            "buffer_capacity": 2_000,
            "batch_size": 16,
            "sequence_length": 6,
            "imagination_horizon": 4,
            "learning_starts": 100,
            "train_ratio": 32,  # 300 updates
            "gamma": GAMMA,
            "learning_rate": 1e-2,
            "actor_learning_rate": 3e-3,
            "critic_learning_rate": 1e-2,
            "deter_size": 32,
            "hidden_size": 32,
            "num_bins": 21,
            "symlog_limit": 1.0,
        },
    )
    result = train_dreamer(config, RunOptions(show_progress=False))
    assert [episode.length for episode in result.eval_episodes] == [NUM_STATES - 1] * 5
    assert isinstance(result.algorithm, Dreamer)
    optimal = Chain.optimal_q(GAMMA, NUM_STATES)[:-1, 1]
    assert optimal == pytest.approx([0.64, 0.8, 1.0])
    np.testing.assert_allclose(values_along_the_way(result.algorithm), optimal, atol=0.1)
