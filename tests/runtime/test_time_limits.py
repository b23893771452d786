"""`max_episode_steps`: episodes that would never end are truncated, and a run without a limit says so."""

from pathlib import Path
from typing import Any

import pytest

from builders import make_config
from rl_training.envs.tiny import Identity
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.trainer import RunOptions, train


def make_long() -> Identity:
    """Build an env whose episodes are longer than the check before training."""
    return Identity(length=3_000)


@pytest.mark.parametrize("env_factory", [None, make_long, lambda: Identity(length=3_000)])
def test_episodes_of_training_and_evaluation_are_truncated(env_factory: Any, tmp_path: Path) -> None:
    config = make_config(tmp_path, env_id="rl_training/Identity-v0", total_timesteps=60, max_episode_steps=7)
    result = train(config, RunOptions(env_factory=env_factory, show_progress=False))
    lengths = [episode["length"] for episode in read_json_lines(result.run_dir / "episodes.jsonl")]
    assert lengths == [7] * 8
    assert {episode.length for episode in result.eval_episodes} == {7}


@pytest.mark.parametrize(("max_episode_steps", "warned"), [(None, True), (2_000, False)])
def test_a_run_without_a_limit_is_warned_before_training(
    max_episode_steps: int | None, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path, total_timesteps=12, eval_episodes=1, max_episode_steps=max_episode_steps)
    train(config, RunOptions(env_factory=make_long, show_progress=False))
    assert any("has no time limit" in text and "set max_episode_steps" in text for text in caplog.messages) is warned


def test_a_limit_is_given_once_and_needs_an_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_episode_steps is given twice: as a setting of the run and in env_kwa"):
        make_config(tmp_path, max_episode_steps=7, env_kwargs={"max_episode_steps": 7})
    with pytest.raises(ConfigError, match="max_episode_steps needs an environment, but env_id is empty"):
        TrainConfig(algo="bc", total_timesteps=1, max_episode_steps=7, algo_kwargs={"dataset_path": "x.npz"})
