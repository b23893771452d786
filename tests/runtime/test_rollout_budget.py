"""How many rollouts a run has: schedules end with the last one."""

from pathlib import Path
from typing import Any

import pytest

from builders import make_config
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.trainer import RunOptions, TrainResult, train

QUIET = RunOptions(show_progress=False)
ON_DEVICE = {"execution_backend": "tensor", "env_id": "tensor/CartPole-v1"}


def run(folder: Path, algo: str, total_timesteps: int, **changes: Any) -> TrainResult:
    """Four envs, rollouts of 40 rows, eight gradient steps on each."""
    kwargs = {"learning_rate_schedule": "linear", "learning_rate": 0.01, **changes.pop("algo_kwargs", {})}
    settings = {"num_envs": 4, "log_interval": 1, "eval_episodes": 1, **changes}
    config = make_config(folder, algo=algo, total_timesteps=total_timesteps, algo_kwargs=kwargs, **settings)
    return train(config, QUIET)


def of_updates(result: TrainResult, name: str) -> list[float]:
    """Return the value of a metric at each update."""
    records = read_json_lines(result.run_dir / "metrics.jsonl")
    values = {record["gradient_step"]: record["metrics"][name] for record in records if record["gradient_step"]}
    return list(values.values())


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "gail", "pqn"])
@pytest.mark.parametrize(
    ("total_timesteps", "updates"),
    [(80, 2), (119, 3), (116, 2)],  # at 119, four envs step past the end and fill the rollout
)
def test_the_learning_rate_falls_in_equal_steps_up_to_the_last_update(
    algo: str, total_timesteps: int, updates: int, tmp_path: Path
) -> None:
    result = run(tmp_path, algo, total_timesteps)
    assert result.gradient_step == 8 * updates
    left = [(updates - done) / updates for done in range(updates)]
    assert of_updates(result, "learning_rate") == pytest.approx([0.01 * share for share in left])


@pytest.mark.parametrize("algo", ["ppo", "pqn"])
@pytest.mark.parametrize(("total_timesteps", "updates"), [(80, 2), (81, 3), (30, 1)])
def test_on_the_device_a_run_that_ends_with_a_whole_rollout_learns_from_it_at_its_share(
    algo: str, total_timesteps: int, updates: int, tmp_path: Path
) -> None:
    result = run(tmp_path, algo, total_timesteps, **ON_DEVICE)
    assert (result.step, result.gradient_step) == (40 * updates, 8 * updates)
    left = [(updates - done) / updates for done in range(updates)]
    assert of_updates(result, "learning_rate") == pytest.approx([0.01 * share for share in left])


def test_epsilon_falls_over_its_fraction_of_all_rollouts(tmp_path: Path) -> None:
    # Three rollouts, of which epsilon falls from 1 to 0.1 over two thirds: 1, 0.55, 0.1 while they are collected.
    kwargs = {"epsilon_end": 0.1, "exploration_fraction": 2 / 3}
    result = run(tmp_path, "pqn", 119, algo_kwargs=kwargs)
    assert of_updates(result, "epsilon") == pytest.approx([0.55, 0.1, 0.1])  # logged after an update: of the next one
