"""A run that ends before its first update learns nothing, and says so once."""

import logging
from pathlib import Path
from typing import Any

import pytest

from builders import make_config
from rl_training.experiment.population import PopulationConfig
from rl_training.launching.populations import train_population
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult, resume, train

QUIET = RunOptions(show_progress=False)
ON_DEVICE = {"execution_backend": "tensor", "env_id": "tensor/CartPole-v1"}
SHORT_ROLLOUT = "total_timesteps is 36, less than one rollout of num_steps * num_envs = 40 steps: nothing is learned"


def short_run(folder: Path, algo: str, total_timesteps: int, **changes: Any) -> TrainResult:
    """Four envs; rollouts of 40 rows, or updates after 20 steps."""
    changes = {"num_envs": 4, "algo_kwargs": {"learning_starts": 20} if algo == "dqn" else {}, **changes}
    return train(make_config(folder, algo=algo, total_timesteps=total_timesteps, **changes), QUIET)


@pytest.fixture(autouse=True)
def _warnings_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="rl_training")


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "gail", "pqn"])
@pytest.mark.parametrize(
    ("total_timesteps", "step", "gradient_step", "warnings"),
    [
        (36, 36, 0, [SHORT_ROLLOUT]),
        (37, 40, 8, []),  # four envs step past the end, and fill the rollout
        (40, 40, 8, []),
    ],
)
def test_a_run_shorter_than_a_rollout_learns_nothing_and_says_so(
    algo: str,
    total_timesteps: int,
    step: int,
    gradient_step: int,
    warnings: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = short_run(tmp_path, algo, total_timesteps)
    assert (result.step, result.gradient_step) == (step, gradient_step)
    assert caplog.messages == warnings


@pytest.mark.parametrize(
    ("total_timesteps", "step", "learns"),
    [(20, 20, False), (21, 24, True)],  # the first update comes with step 21, which is in the sixth step of four envs
)
def test_a_run_within_the_warm_up_learns_nothing_and_says_so(
    total_timesteps: int, step: int, learns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = short_run(tmp_path, "dqn", total_timesteps)
    assert (result.step, result.gradient_step > 0) == (step, learns)
    warning = "total_timesteps is 20, too few for an update (see algo_kwargs.learning_starts): nothing is learned"
    assert caplog.messages == ([] if learns else [warning])


@pytest.mark.parametrize("algo", ["ppo", "pqn", "dqn"])
def test_on_the_device_a_run_takes_a_whole_iteration_and_learns(
    algo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert short_run(tmp_path, algo, 18, **ON_DEVICE).gradient_step > 0
    assert caplog.messages == []


def test_acting_and_a_longer_continuation_do_not_warn_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = short_run(tmp_path, "ppo", 36)
    caplog.clear()
    load_policy(result.run_dir)
    longer = resume(result.run_dir, QUIET, total_timesteps=80, settings={"algo_kwargs": {"learning_rate": 0.01}})
    assert longer.gradient_step > 0
    assert caplog.messages == []


def test_a_stack_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kwargs = {"learning_starts": 200}
    config = make_config(tmp_path, total_timesteps=16, num_envs=2, algo_kwargs=kwargs, **ON_DEVICE)
    train_population(PopulationConfig(base=config, seeds=(0, 1, 2), run="stacked"), QUIET)
    assert len([message for message in caplog.messages if "nothing is learned" in message]) == 1
