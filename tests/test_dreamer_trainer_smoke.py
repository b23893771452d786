"""`train_dreamer` learns on time, leaves a whole run folder, goes on exactly after a stop, and learns a small world."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from builders import make_config
from rl_training.algorithms.dreamer import Dreamer
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.dreamer_trainer import train_dreamer
from rl_training.runtime.trainer import RunOptions, resume
from stand_ins import StopAt
from state_comparison import assert_identical

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    """60 steps of Catch with the smallest networks; from step 20 on an update every 2 steps."""
    settings = {"learning_starts": 20, "batch_size": 4, "train_ratio": 8, **changes.pop("algo_kwargs", {})}
    small = {"algo": "dreamer", "env_id": "rl_training/Catch-v0", "eval_episodes": 2, "algo_kwargs": settings}
    return make_config(tmp_path, **{**small, **changes})


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    result = train_dreamer(config_of(tmp_path, log_interval=20), QUIET)
    assert (result.step, result.gradient_step) == (60, 40 // 2)
    assert {"world_model_loss", "actor_loss", "critic_loss"} <= set(result.metrics)
    records = read_json_lines(result.run_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == [20, 40, 60]
    assert "return_range" in records[-1]["metrics"]
    assert json.loads((result.run_dir / "result.json").read_text())["step"] == 60
    checkpoint = open_checkpoint(result.checkpoint)
    rows = 60 + -(-60 // 7)  # an observation per step, and the first one of each episode of 7 steps
    assert len(checkpoint.load(MEMORY)["rings"]["0"]["rows"]) == rows
    assert {"slow_critic", "return_low", "critic.params"} <= set(checkpoint.load(TRAINING)["algorithm"])
    assert not any(name.startswith("critic") for name in checkpoint.load(POLICY))


@pytest.mark.parametrize(("env_id", "num_envs"), [("rl_training/Catch-v0", 1), ("rl_training/TinyDict-v0", 3)])
def test_a_run_that_was_stopped_within_an_episode_goes_on_exactly(env_id: str, num_envs: int, tmp_path: Path) -> None:
    changes = {"env_id": env_id, "num_envs": num_envs, "algo_kwargs": {"buffer_capacity": 45}}
    unbroken = train_dreamer(config_of(tmp_path / "unbroken", **changes), QUIET)
    stop = RunOptions(show_progress=False, callbacks=[StopAt(33)])  # in mid-episode
    stopped = train_dreamer(config_of(tmp_path / "stopped", **changes), stop)
    assert stopped.step == 33
    resumed = resume(stopped.run_dir, QUIET)
    ours, theirs = (open_checkpoint(result.checkpoint) for result in (resumed, unbroken))
    for part in (POLICY, TRAINING, MEMORY):
        mine, other = ours.load(part), theirs.load(part)
        for each in (mine, other):
            each.pop("log_positions", None)
        assert_identical(mine, other)
    assert [e.record() for e in resumed.eval_episodes] == [e.record() for e in unbroken.eval_episodes]


def test_a_player_remembers_its_episode_and_predict_does_not(tmp_path: Path) -> None:
    agent = rl_training.Dreamer(config_of(tmp_path), show_progress=False)
    agent.learn()
    policy = agent._policy()
    assert isinstance(policy, Dreamer)
    list(policy._parts["actor"].named(policy.state["actor.params"]).values())[-2].mul_(1_000.0)  # sure of what it does
    pictures = np.random.default_rng(0).integers(256, size=(30, 16, 16, 1), dtype=np.uint8)
    play, again = agent.player(), agent.player()
    played = [int(play(obs)) for obs in pictures]
    assert played == [int(again(obs)) for obs in pictures]
    assert played != [int(agent.predict(obs)) for obs in pictures]
    assert int(agent.player()(pictures[3])) == int(agent.predict(pictures[3]))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_vector_is_learnt_from_as_well(env_id: str, tmp_path: Path) -> None:
    result = train_dreamer(config_of(tmp_path, env_id=env_id, num_envs=2), QUIET)
    assert result.gradient_step == 20
    assert all(np.isfinite(value) for value in result.metrics.values())


def test_what_it_cannot_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_dreamer trains Dreamer, but algo is 'dqn'"):
        train_dreamer(make_config(tmp_path), QUIET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.startswith("dreamer/")])
def test_the_shipped_configs_load(name: str) -> None:
    assert load_config(f"configs/{name}").algo == "dreamer"
