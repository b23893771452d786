"""The distributional heads learn the distribution of a return that is known in closed form, not only its mean.

Lottery pays two random rewards, one after the other: the return of the first draw is the sum of two distributions, of
which the second only comes through the target network. Each test trains with the real loop for a few seconds; with the
seeds 0 to 4 every quantile below came within 0.075, and every probability within 0.04.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from builders import make_config
from rl_training.envs.tiny import Lottery
from rl_training.learners.q_learning import QLearner
from rl_training.models.mlp_fqf_network import MLPFQFNetwork
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from rl_training.runtime.trainer import RunOptions, train

pytestmark = pytest.mark.learning

GAMMA = 0.5
DRAWS = torch.eye(2)  # the observations of the first and of the second draw
# Each quantile's own tolerance: neighbours of the eight lie at least 0.1 apart, on average 0.2; means are much closer.
TOLERANCE, MEAN_TOLERANCE = 0.1, 0.05


def learn(algo: str, tmp_path: Path, *, coins: bool = False, **hparams: Any) -> nn.Module:
    """Train on random actions, so that every action is tried at both draws, and give the network."""
    config = make_config(
        tmp_path,
        algo=algo,
        env_id="rl_training/Lottery-v0",
        env_kwargs={"coins": coins},
        total_timesteps=8_000,
        num_envs=16,
        eval_episodes=1,
        seed=0,
        algo_kwargs={
            "gamma": GAMMA,
            "epsilon_start": 1.0,
            "epsilon_end": 1.0,
            "buffer_capacity": 8_000,
            "learning_starts": 800,
            "train_frequency": 16,
            "gradient_steps": 2,
            "batch_size": 256,
            "learning_rate": 5e-3,
            "target_update_interval": 20,
            "hidden_sizes": [32],
            **hparams,
        },
    )
    learner = train(config, RunOptions(show_progress=False)).algorithm
    assert isinstance(learner, QLearner)
    assert learner.act(DRAWS.numpy()).actions.tolist() == [1, 1]  # the higher prize, at both draws
    return learner.recipe.network


# Errors below kappa count squared, which pulls every quantile towards the mean: at kappa = 1 and returns of 0 to 3 what
# is learnt are no quantiles. With a kappa of 0.01 they are the true ones, up to about that much.
# Eight cosines are enough for these quantile functions, which are smooth; 64 leave waves of 0.1 in so short a training.
QUANTILES: dict[str, Any] = {"kappa": 0.01, "num_quantiles": 8}
IMPLICIT = QUANTILES | {"embedding_dim": 8}


def check_quantiles(values: torch.Tensor, taus: np.ndarray) -> None:
    """`values`: (draws, actions, n) at the fractions `taus`, (draws, n)."""
    for draw, action in np.ndindex(2, 2):
        errors = np.abs(values[draw, action].numpy() - Lottery.quantiles(taus[draw], draw, action, GAMMA))
        assert errors.max() < TOLERANCE, (draw, action, errors)
        assert errors.mean() < MEAN_TOLERANCE, (draw, action, errors)


def test_qr_dqn_learns_the_quantiles_of_the_return(tmp_path: Path) -> None:
    network = learn("qr_dqn", tmp_path, **QUANTILES)
    taus = (np.arange(8) + 0.5) / 8
    check_quantiles(network(DRAWS), np.stack([taus, taus]))


def test_iqn_learns_the_quantile_function_of_the_return(tmp_path: Path) -> None:
    network = learn("iqn", tmp_path, num_tau_samples=8, **IMPLICIT)
    assert isinstance(network, MLPIQNetwork)
    taus = np.tile(np.linspace(0.05, 0.95, 19), (2, 1))  # any fractions: it was never asked at these very ones
    values, _ = network(DRAWS, torch.from_numpy(taus).float())
    check_quantiles(values, taus)


def test_fqf_learns_the_quantiles_at_the_fractions_it_proposes(tmp_path: Path) -> None:
    network = learn("fqf", tmp_path, **IMPLICIT)
    assert isinstance(network, MLPFQFNetwork)
    output = network(DRAWS)
    check_quantiles(output.values, output.tau_hats.numpy())
    # Means of two uniform rewards: half of each prize, and half the discounted best prize after the first draw.
    expected = [[0.5 + 0.5, 1.0 + 0.5], [0.5, 1.0]]
    np.testing.assert_allclose(output.q_values.numpy(), expected, atol=0.05)


def test_c51_learns_the_probabilities_of_the_returns(tmp_path: Path) -> None:
    # Coins: 0 or 1 for action 0, 0 or 2 for action 1; the second draw counts half: 0 or 1 after action 1, the best.
    network = learn("c51_dqn", tmp_path, coins=True, v_min=0.0, v_max=3.0, num_atoms=4, gradient_steps=1)
    probabilities = network(DRAWS).softmax(2).numpy()
    expected = [
        [[0.25, 0.5, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]],  # {0, 1} + {0, 1} and {0, 2} + {0, 1}
        [[0.5, 0.5, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]],
    ]
    # 2,000 coins of each kind: a share of 1/2 is known to 0.011, and the sums of them to a little more.
    np.testing.assert_allclose(probabilities, expected, atol=0.06)


@pytest.mark.parametrize(("draw", "action"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_quantiles_of_the_lottery_are_those_of_its_returns(draw: int, action: int) -> None:
    env, returns = Lottery(), []
    env.reset(seed=0)
    for _ in range(4_000):
        env.reset()
        first, second = (env.step(np.int64(chosen))[1] for chosen in ((action, 1) if draw == 0 else (1, action)))
        returns.append(first + GAMMA * second if draw == 0 else second)
    taus = np.linspace(0.05, 0.95, 19)
    # A quantile of 4,000 returns is known to sqrt(tau (1 - tau) / 4,000) / density, at most 0.02 here.
    expected = Lottery.quantiles(taus, draw, action, GAMMA)
    np.testing.assert_allclose(np.quantile(returns, taus), expected, atol=0.06)
