"""`train_mopo` fits before it learns and rolls out on time, with and without an environment; it goes on exactly."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

import rl_training
from builders import make_config
from rl_training.algorithms.mbpo import MBPO
from rl_training.cli import app
from rl_training.envs.terminations import NEVER
from rl_training.errors import CheckpointError, ConfigError, DatasetError, SpaceError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.mopo_trainer import train_mopo
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult, resume
from stand_ins import Images, StopAt
from state_comparison import assert_identical, assert_same_run

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)


def in_env(tmp_path: Path, **changes: Any) -> TrainConfig:
    """60 updates on 60 random transitions of Pendulum; the ensemble is fitted once, rollouts come every 20 updates."""
    settings = {
        "model_train_frequency": 0,
        "rollout_refresh_interval": 20,
        "rollout_horizon": 2,
        **changes.pop("algo_kwargs", {}),
    }
    small = {"algo": "mopo", "env_id": "Pendulum-v1", "eval_episodes": 1, "algo_kwargs": settings}
    return make_config(tmp_path, **{**small, **changes})


def write_file(path: Path, *, seed: int = 0, rows: int = 100) -> Path:
    """Episodes of ten steps with three observed numbers; every fifth terminates."""
    rng = np.random.default_rng(seed)
    obs, ends = rng.uniform(-0.9, 0.9, (rows, 3)).astype(np.float32), np.arange(rows) % 10 == 9
    terminations = ends & (np.arange(rows) % 50 == 49)
    np.savez(
        path,
        observations=obs,
        next_observations=obs + 0.1 * rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminations=terminations,
        truncations=ends & ~terminations,
    )
    return path


def from_file(tmp_path: Path, **changes: Any) -> TrainConfig:
    file = tmp_path / "data.npz"
    if not file.is_file():
        write_file(file)
    dataset = {"dataset_kind": "npz", "dataset_path": str(file), "dataset_size": None, "held_out": 0.2}
    hparams = {**dataset, **changes.pop("algo_kwargs", {})}
    return in_env(tmp_path / "runs", **{"env_id": "", "algo_kwargs": hparams, **changes})


def mopo_of(result: TrainResult) -> MBPO:
    assert isinstance(result.algorithm, MBPO)
    return result.algorithm


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    result = train_mopo(in_env(tmp_path, log_interval=20), QUIET)
    assert (result.step, result.gradient_step) == (60, 60)  # steps are gradient steps
    assert {"critic_loss", "actor_loss", "entropy", "alpha"} <= set(result.metrics)
    assert len(result.eval_episodes) == 1
    records = read_json_lines(result.run_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == [20, 40, 60]
    shown = records[-1]["metrics"]
    assert {"model_loss", "holdout_mse", "model_epochs", "rollout_reward", "rollout_penalty"} <= set(shown)
    assert shown["rollout_penalty"] > 0.0
    assert (shown["rollout_length"], shown["synthetic_transitions"]) == (2.0, 4 * 20 * 2)  # Pendulum never terminates
    checkpoint = open_checkpoint(result.checkpoint)
    memory = checkpoint.load(MEMORY)
    assert set(memory["real"]) == {"rows", "digest", "generator"}  # the dataset's own rows lie where they did
    assert len(memory["model"]["rows"]) == 4 * 20 * 2
    assert "ensemble" in checkpoint.load(TRAINING)["algorithm"]
    assert not any("log_variance" in name for name in checkpoint.load(POLICY))


@pytest.mark.parametrize(
    ("settings", "fits", "rollouts"),
    [
        ({}, [0], [0, 20, 40, 60]),
        # No multiples of the ten updates that are made at once: groups of them end there.
        ({"rollout_refresh_interval": 25, "model_train_frequency": 33}, [0, 33], [0, 25, 50]),
    ],
)
def test_the_ensemble_is_fitted_before_the_first_update_and_rollouts_come_on_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], fits: list[int], rollouts: list[int]
) -> None:
    seen: dict[str, list[int]] = {"fits": [], "rollouts": []}
    fit, rollout = MBPO.update_model, MBPO.rollout

    def noted_fit(self: MBPO, transitions: Any, on_epoch: Any) -> Any:
        seen["fits"].append(self.policy.num_updates)
        assert len(transitions["rewards"]) == 60  # the whole dataset
        return fit(self, transitions, on_epoch)

    def noted_rollout(self: MBPO, memory: Any, horizon: int) -> int:
        seen["rollouts"].append(self.policy.num_updates)
        return rollout(self, memory, horizon)

    monkeypatch.setattr(MBPO, "update_model", noted_fit)
    monkeypatch.setattr(MBPO, "rollout", noted_rollout)
    train_mopo(in_env(tmp_path, algo_kwargs=settings), QUIET)
    assert seen == {"fits": fits, "rollouts": rollouts}


def test_a_long_fit_reports_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"model_max_epochs": 3, "model_patience": 3}
    with caplog.at_level("INFO", logger="rl_training"):
        train_mopo(in_env(tmp_path, algo_kwargs=settings), QUIET)
        short = [message for message in caplog.messages if message.startswith("epoch ")]
        monkeypatch.setattr("rl_training.runtime.model_training._PROGRESS_SECONDS", 0.0)
        caplog.clear()
        train_mopo(in_env(tmp_path, algo_kwargs=settings), QUIET)
    assert short == []  # one that takes no time is silent
    begin = caplog.messages.index("fitting the ensemble to 60 transitions")
    *epochs, end = caplog.messages[begin + 1 : begin + 5]
    for number, message in zip((1, 2, 3), epochs, strict=True):
        assert re.fullmatch(rf"epoch {number} of at most 3: model_loss -?[\d.]+, holdout_mse [\d.]+", message)
    assert re.fullmatch(r"fitted in 3 epochs: holdout_mse [\d.]+, rollout_penalty [\d.]+", end)


def test_evaluating_more_often_changes_nothing(tmp_path: Path) -> None:
    seldom, often = (train_mopo(in_env(tmp_path, eval_interval=interval), QUIET) for interval in (0, 10))
    assert_identical(often.algorithm.state_dict(), seldom.algorithm.state_dict())


def test_one_config_and_seed_give_one_result(tmp_path: Path) -> None:
    first, again = (train_mopo(in_env(tmp_path, seed=3), QUIET) for _ in range(2))
    other = train_mopo(in_env(tmp_path, seed=4), QUIET)
    assert first.metrics == again.metrics != other.metrics


# --- Resuming --------------------------------------------------------------------------------------------------------


class StopFromTheStart(StopAt):
    """At 0, stops while the ensemble is fitted."""

    def on_start(self, run: Run) -> None:
        self.on_step(run)


@pytest.mark.parametrize("make", [in_env, from_file])
@pytest.mark.parametrize("stop", [0, 35])
def test_stopped_and_resumed_equals_unbroken(stop: int, make: Callable[..., TrainConfig], tmp_path: Path) -> None:
    hparams = {"model_train_frequency": 45, "held_out": 0.2, "dataset_size": 100}
    settings = {"total_timesteps": 97, "log_interval": 13, "eval_interval": 29, "algo_kwargs": hparams}
    env = {"env_id": "rl_training/Identity-v0", "env_kwargs": {"actions": "box"}} if make is in_env else {}
    unbroken = train_mopo(make(tmp_path, **settings, **env), QUIET)
    stopped = train_mopo(
        make(tmp_path, **settings, **env), RunOptions(callbacks=[StopFromTheStart(stop)], show_progress=False)
    )
    assert stopped.interrupted
    assert stop <= stopped.step < 97
    resumed = resume(stopped.run_dir, QUIET)
    assert resumed.step == 97
    assert_same_run(resumed, unbroken)


def test_another_dataset_in_the_same_place_is_refused(tmp_path: Path) -> None:
    result = train_mopo(from_file(tmp_path), QUIET)
    write_file(tmp_path / "data.npz", seed=1)
    with pytest.raises(CheckpointError, match=r"the run learned from 80 transitions .*data.npz now holds 80 others"):
        resume(result.run_dir, QUIET, total_timesteps=90)


# --- Without an environment ------------------------------------------------------------------------------------------


def test_a_run_on_a_file_alone_is_evaluated_on_its_held_out_part(tmp_path: Path) -> None:
    result = train_mopo(from_file(tmp_path, eval_interval=30), QUIET)
    assert result.run_dir.name.startswith("mopo__dataset__seed0__")
    assert result.eval_episodes == []
    middle, end = read_json_lines(result.run_dir / "eval.jsonl")
    assert (middle["step"], end["step"]) == (30, 60)
    assert set(end["held_out"]) == {"model_mse", "action_error"}
    assert end["held_out"]["model_mse"] == pytest.approx(result.metrics["held_out_model_mse"], rel=1e-5)
    assert mopo_of(result).rollouts._rule is None  # the terminations of rollouts are learned from the file
    answer = CliRunner().invoke(app, ["evaluate", str(result.run_dir), "--json"])
    assert json.loads(answer.stdout)["held_out"] == pytest.approx(end["held_out"], rel=1e-5)


def test_the_agent_of_a_file_predicts_saves_and_loads_without_it(tmp_path: Path) -> None:
    agent = rl_training.MOPO(from_file(tmp_path), show_progress=False)
    agent.learn()
    saved = agent.save(tmp_path / "agent")
    (tmp_path / "data.npz").unlink()
    obs = np.random.default_rng(1).uniform(-1.0, 1.0, (20, 3)).astype(np.float32)
    loaded = rl_training.MOPO.load(saved)
    assert np.array_equal(loaded.predict(obs), agent.predict(obs))
    assert loaded.predict(obs[0]).shape == (2,)
    with pytest.raises(ConfigError, match="env_id is empty: there is no environment to evaluate in"):
        loaded.evaluate()


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"held_out": 0.0}, "held_out must be in (0, 1) if env_id is empty, got 0"),
        ({"dataset_kind": "random", "dataset_path": None}, "dataset_kind random needs an environment to act in"),
    ],
)
def test_without_an_environment_some_settings_are_needed(hparams: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        from_file(tmp_path, algo_kwargs=hparams)
    assert str(caught.value).startswith(f"mopo.algo_kwargs: {message}")


# --- Environments and what is refused --------------------------------------------------------------------------------


class Pendulum(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of the user; `env_id` is not used."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))


def test_the_terminations_of_an_environment_of_the_user_are_learned(tmp_path: Path) -> None:
    trained = train_mopo(in_env(tmp_path), RunOptions(env_factory=Pendulum, show_progress=False))
    assert mopo_of(trained).rollouts._rule is None
    result = train_mopo(in_env(tmp_path), QUIET)
    assert mopo_of(result).rollouts._rule == NEVER
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert np.array_equal(load_policy(result.run_dir)[1].act(obs).actions, result.algorithm.act(obs).actions)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        # Three minibatches an epoch: the first update spoils the weights, and the loss of the second one shows it.
        ({}, "model_loss is nan after epoch 1 of the fit"),
        # One of all rows: only what is held out sees the spoilt weights, and no epoch follows whose loss would.
        ({"model_batch_size": 60, "model_max_epochs": 1}, "holdout_mse is inf after epoch 1 of the fit"),
    ],
)
def test_a_first_fit_that_diverges_ends_the_run_at_once_with_the_reason(
    tmp_path: Path, settings: dict[str, int], reason: str
) -> None:
    config = in_env(tmp_path, algo_kwargs={"model_learning_rate": 1e30, "model_patience": 5, **settings})
    with pytest.raises(TrainingError, match=rf"{reason} at gradient step 0: .*model_learning_rate"):
        train_mopo(config, QUIET)
    (run_dir,) = tmp_path.iterdir()
    assert reason in (run_dir / "crash" / "traceback.txt").read_text()
    assert not (run_dir / "checkpoints").exists()  # nothing to go on from


def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_mopo trains MOPO, but algo is 'dqn'"):
        train_mopo(make_config(tmp_path), QUIET)
    with pytest.raises(SpaceError, match="mopo needs a box action space"):
        train_mopo(in_env(tmp_path, env_id="CartPole-v1"), QUIET)
    with pytest.raises(SpaceError, match="mopo needs vector observations"):
        train_mopo(in_env(tmp_path), RunOptions(env_factory=Images, show_progress=False))
    with pytest.raises(DatasetError, match="has a single transition to learn from"):
        train_mopo(in_env(tmp_path, algo_kwargs={"dataset_size": 1}), QUIET)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.startswith("mopo/")])
def test_the_configs_that_come_with_the_package_load(name: str) -> None:
    config = load_config(f"configs/{name}")
    assert config.algo == "mopo"
    assert config.total_updates == config.total_timesteps


def test_the_class_is_exported() -> None:
    assert rl_training.MOPO.algo_name == "mopo"
    assert rl_training.train_mopo is train_mopo
