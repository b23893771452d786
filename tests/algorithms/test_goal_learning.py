"""Hindsight experience replay solves what is not learned without it, with any algorithm that has the setting."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import make_batch, make_box_batch, make_box_setup, make_config, make_setup
from rl_training.envs.goal_tasks import BitFlip, PointReach
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import MEMORY, POLICY
from rl_training.experiment.registry import registry
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.runtime.evaluation import evaluate_run
from rl_training.runtime.setup import make_setup as make_run_setup
from rl_training.runtime.trainer import RunOptions, TrainResult, resume, train
from state_comparison import assert_identical


def having(setting: str) -> list[str]:
    return sorted(name for name, spec in registry().items() if setting in spec.hparams.model_fields)


WITH_HER = having("her")
QUIET = RunOptions(show_progress=False)
BITS = 6


def flip_bits(tmp_path: Path, her: str) -> TrainResult:
    """A run that is short enough for tests."""
    config = make_config(
        tmp_path,
        env_id="rl_training/BitFlip-v0",
        env_kwargs={"num_bits": BITS},
        total_timesteps=1_200,
        eval_episodes=50,
        algo_kwargs={
            "her": her,
            "batch_size": 128,
            "buffer_capacity": 2_000,
            "learning_starts": 100,
            "train_frequency": 2,
            "hidden_sizes": [64],
            "learning_rate": 4e-3,
            "gamma": 0.95,
            "clip_targets": True,
            "target_update_interval": 25,
            "epsilon_end": 0.1,
            "exploration_fraction": 0.3,
            "loss": "mse",
        },
    )
    return train(config, QUIET)


@pytest.mark.learning
def test_new_goals_solve_bits_that_are_not_solved_without_them(tmp_path: Path) -> None:
    solved, control = flip_bits(tmp_path, "future"), flip_bits(tmp_path, "none")
    rates = [np.mean([episode.success for episode in each.eval_episodes]) for each in (solved, control)]
    assert rates[0] == 1.0
    assert rates[1] < 0.3
    env = BitFlip(BITS)
    for episode in solved.eval_episodes:  # each in the smallest number of steps
        obs, _ = env.reset(seed=episode.seed)
        assert episode.length == np.sum(obs["achieved_goal"] != obs["desired_goal"])
    logged = [json.loads(line)["metrics"] for line in (solved.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [each["success_rate"] for each in logged if "success_rate" in each] == [1.0]


@pytest.mark.parametrize(
    ("info", "expected"), [({"is_success": np.True_}, True), ({"success": 0.0}, False), ({"other": 1}, None)]
)
def test_an_evaluation_reads_both_names_that_environments_give_to_success(
    info: dict[str, Any], expected: bool | None
) -> None:
    class Reports(PointReach):
        def step(self, action: np.ndarray) -> Any:
            return *super().step(action)[:4], info

    config = make_config(Path(), algo="sac", env_id="rl_training/PointReach-v0", eval_envs=1)
    algorithm = registry()["sac"].build_algorithm(make_run_setup(config, Reports))
    (episode,) = evaluate_run(config, Reports, algorithm, [0])
    assert episode.success is expected
    assert ("success" in episode.record()) == (expected is not None)


# Goals are replaced in single steps; targets are compared for single steps, too.
SINGLE_STEPS = {
    "n_step": 1,
    "n_step_start": None,
    "gamma_start": None,
    "self_prediction_steps": 0,
    "prioritized": False,
}


def own_settings(algo: str, **settings: Any) -> dict[str, Any]:
    """Return the settings that the algorithm has."""
    fields = registry()[algo].hparams.model_fields
    return {name: value for name, value in (SINGLE_STEPS | settings).items() if name in fields}


def goal_config(tmp_path: Path, algo: str, **changes: Any) -> TrainConfig:
    spec = registry()[algo]
    own = own_settings(
        algo,
        her="future",
        batch_size=8,
        learning_starts=4,
        learning_rate_schedule="constant",  # whatever the length of the run
        epsilon_start=0.5,
        epsilon_end=0.5,
    )
    env_id = f"rl_training/{'PointReach' if 'box' in spec.actions else 'BitFlip'}-v0"
    return make_config(
        tmp_path, algo=algo, env_id=env_id, **{"total_timesteps": 24, "num_envs": 2, "algo_kwargs": own, **changes}
    )


@pytest.mark.parametrize("algo", WITH_HER)
def test_every_algorithm_with_the_setting_learns_from_new_goals(algo: str, tmp_path: Path) -> None:
    result = train(goal_config(tmp_path, algo), QUIET)
    assert result.gradient_step > 0
    assert {episode.success for episode in result.eval_episodes} <= {False, True}


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_a_stopped_run_continues_exactly(algo: str, tmp_path: Path) -> None:
    whole = train(goal_config(tmp_path / "whole", algo), QUIET)
    half = train(goal_config(tmp_path / "half", algo, total_timesteps=14), QUIET)  # 14: in the middle of episodes
    resumed = resume(half.run_dir, QUIET, total_timesteps=24)
    saved = [open_checkpoint(find_checkpoint(each.run_dir)) for each in (resumed, whole)]
    for part in (POLICY, MEMORY):
        assert_identical(saved[0].load(part), saved[1].load(part))


def test_clipped_rewards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="her: future computes rewards again, as the environment returns them"):
        goal_config(tmp_path, "sac", clip_rewards=True)


def test_runs_on_the_device_which_have_no_goals_refuse_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'execution_backend: tensor needs algo_kwargs\.her: "none"'):
        make_config(
            tmp_path, env_id="CartPole-v1", execution_backend="tensor", num_envs=4, algo_kwargs={"her": "future"}
        )


# --- Targets of rewards that are -1 and 0 -----------------------------------------------------------------------------


def test_every_algorithm_with_new_goals_has_the_setting() -> None:
    assert having("clip_targets") == WITH_HER


@pytest.mark.parametrize("algo", WITH_HER)
def test_clipped_targets_stay_within_the_returns_that_exist(algo: str) -> None:
    spec = registry()[algo]
    is_box = "box" in spec.actions
    own = own_settings(algo, gamma=0.5, v_min=-60.0, v_max=60.0)  # atoms beyond both bounds
    # gamma 0.5: returns of rewards -1 and 0 are in [-2, 0]. These rewards leave that range on both sides.
    for reward, bound in ((50.0, 0.0), (-50.0, -2.0)):
        batch = (make_box_batch() if is_box else make_batch()) | {"rewards": torch.full((8,), reward)}
        settings = [own | {"algo": algo, "clip_targets": on} for on in (True, False)]
        setups = [make_box_setup(**each) if is_box else make_setup(**each) for each in settings]
        clipped, plain = (spec.build_algorithm(setup).update(dict(batch)).metrics for setup in setups)
        assert float(clipped["target_mean"]) == pytest.approx(bound, abs=1e-5)
        assert abs(float(plain["target_mean"])) > 20.0


@pytest.mark.parametrize("algo", WITH_HER)
def test_clipped_targets_need_a_discount_below_one(algo: str) -> None:
    with pytest.raises(ValueError, match="clip_targets needs a gamma below 1, got 1"):
        make_setup(algo=algo, clip_targets=True, gamma=1.0)
