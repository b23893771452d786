"""What PPO and PQN share: minibatches of a rollout, and the statistics that scale it."""

import numpy as np
import torch

from rl_training.learners.rollout_scaling import RolloutScaling
from rl_training.learners.rollouts import mean_metrics, minibatches
from rollouts import make_ppo_setup, make_rollout
from state_comparison import assert_identical


def test_minibatches_are_a_shuffle_of_all_rows_in_one_tensor() -> None:
    indices = torch.zeros(4, dtype=torch.int64)
    seen = []
    for chosen in minibatches(indices, 12, np.random.default_rng(0)):
        assert chosen is indices  # a compiled step recognises it
        seen += chosen.tolist()
    assert seen == np.random.default_rng(0).permutation(12).tolist()
    assert seen != list(range(12))


def test_metrics_are_averaged_by_name() -> None:
    history = [
        {"loss": torch.tensor(1.0), "entropy": torch.tensor(5.0)},
        {"loss": torch.tensor(4.0), "entropy": torch.tensor(7.0)},
    ]
    assert {name: value.item() for name, value in mean_metrics(history).items()} == {"loss": 2.5, "entropy": 6.0}


def test_saved_statistics_scale_the_next_rollout_alike() -> None:
    setup = make_ppo_setup(normalize="both")
    scaling, other = RolloutScaling(setup), RolloutScaling(setup)
    for seed in range(2):
        scaling.scaled(make_rollout(setup, seed))
    policy = {**scaling.policy_state_dict(), "weight": torch.ones(1)}
    other.load_policy_state_dict(other.take_policy_state(policy))
    other.load_state_dict(scaling.state_dict())
    assert policy.keys() == {"weight"}
    assert_identical(other.scaled(make_rollout(setup, 2)), scaling.scaled(make_rollout(setup, 2)))
    assert_identical(other.policy_state_dict(), scaling.policy_state_dict())
