"""BBF: its values, what it composes of, and that it learns with all of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from builders import make_setup
from rl_training import load_config
from rl_training.core.frame_space import FrameStackSpace
from rl_training.experiment.registry import registry
from rl_training.hparams.c51_dqn import BBFHParams
from rl_training.hparams.schedules import annealed_return, epsilon, is_reset, q_learning_updates
from rl_training.learners.q_learning import QLearner
from rl_training.runtime.trainer import RunOptions, train


def test_the_config_for_atari_100k_has_the_published_schedule() -> None:
    # Two updates per env step from step 2,000 on: 196,000. Resets after 20,000, 40,000, 60,000 and 80,000 env steps:
    # 4,000 updates less than if learning had begun with the run. The last one leaves 40,000 updates.
    config = load_config("bbf/atari100k.yaml")
    hparams = config.hparams
    assert isinstance(hparams, BBFHParams)
    total = q_learning_updates(hparams, config.total_timesteps)
    assert total == 196_000
    resets = [update for update in range(1, total + 1) if is_reset(hparams, update, total)]
    assert resets == [q_learning_updates(hparams, step) for step in (20_000, 40_000, 60_000, 80_000)]
    for update in (0, *resets):
        assert annealed_return(hparams, update, total) == pytest.approx((10, 0.97))
        assert annealed_return(hparams, update + 10_000, total) == pytest.approx((3, 0.997))
    assert epsilon(hparams, 4_000, config.total_timesteps) == 0.0


def test_the_network_is_impalas_with_four_times_the_channels_and_acts_as_its_average() -> None:
    image = Box(0, 255, (4, 84, 84), np.uint8)
    setup = make_setup(algo="bbf", observation=image, hidden_sizes=(8,), self_prediction_steps=2)
    learner = registry()["bbf"].build_algorithm(setup)
    assert isinstance(learner, QLearner)
    channels = [part.out_channels for part in learner.recipe.network.modules() if isinstance(part, nn.Conv2d)]
    assert channels == [64] * 5 + [128] * 10 + [128] * 2  # two of the transition
    assert learner.policy is not learner.recipe.q_values
    moved = learner._state["target"].clone()
    obs = torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8)
    rows = {"rewards": torch.zeros(8), "terminated": torch.zeros(8, dtype=torch.bool), "weights": torch.ones(8)}
    future = {
        "future_obs": obs[:, None].expand(-1, 2, -1, -1, -1),
        "future_actions": torch.zeros(8, 2, dtype=torch.int64),
        "follows": torch.ones(8, 2, dtype=torch.bool),
    }
    learner.update({"obs": obs, "next_obs": obs, "actions": torch.zeros(8, dtype=torch.int64), **rows, **future})
    expected = moved + 0.005 * (learner._state["params"] - moved)
    torch.testing.assert_close(learner._state["target"], expected)


def test_other_observations_than_images_are_learned_as_they_are() -> None:
    learner = registry()["bbf"].build_algorithm(make_setup(algo="bbf"))
    assert isinstance(learner, QLearner)
    assert learner._augment is None
    stacked = make_setup(algo="bbf", observation=FrameStackSpace(3, (3, 12, 12)), encoder_width=1)
    with_images = registry()["bbf"].build_algorithm(stacked)
    assert isinstance(with_images, QLearner)
    assert with_images._augment is not None


@pytest.mark.learning
def test_a_run_learns_across_a_reset(tmp_path: Path) -> None:
    config = load_config("bbf/catch.yaml").updated(
        total_timesteps=400,
        eval_episodes=2,
        output_dir=tmp_path,
        acceleration="eager",
        device="cpu",
        tensorboard=False,
        algo_kwargs={
            **load_config("bbf/catch.yaml").algo_kwargs,
            "learning_starts": 100,
            "gradient_steps": 1,
            "reset_interval": 100,
            "hidden_sizes": [16],
        },
    )
    result = train(config, RunOptions(show_progress=False))
    learner = result.algorithm
    assert isinstance(learner, QLearner)
    assert learner.num_updates == 300
    assert int(learner._state["adam_count"]) == 100  # since the reset after 200 updates
