"""Resume with other settings: in a new run folder, recorded, exact from there; what the state depends on is refused."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import rl_training
from builders import make_config, make_setup, small_hparams
from rl_training.cli import app
from rl_training.core.setup import Setup
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.manifest import TRAINING
from rl_training.experiment.registry import ROWS
from rl_training.experiment.run_dir import read_run_config
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.hparams.fields import Fixed
from rl_training.runtime.changed_settings import _carry, changed_settings
from rl_training.runtime.trainer import RunOptions, TrainResult, resume, train
from stand_ins import StopAt
from state_comparison import assert_same_run

QUIET = RunOptions(show_progress=False)
ROW = {spec.name: spec for spec in ROWS}
# May change when a run is resumed. A new setting belongs here, or it is marked `Fixed`.
CHANGEABLE = {
    "total_timesteps",
    "device",
    "worker_timeout",
    "worker_start",
    "threads",
    "matmul_precision",
    "acceleration",
    "check_compiled_every",
    "deterministic",
    "output_dir",
    "log_interval",
    "eval_interval",
    "eval_episodes",
    "eval_envs",
    "stop_return",
    "checkpoint_interval",
    "checkpoint_minutes",
    "keep_checkpoints",
    "tensorboard",
    "algo_kwargs",
}


def stopped_at(tmp_path: Path, step: int, **changes: Any) -> TrainResult:
    options = RunOptions(show_progress=False, callbacks=[StopAt(step)])
    return train(make_config(tmp_path / "runs", **changes), options)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def learning_rates(result: TrainResult) -> dict[str, float]:
    state = open_checkpoint(result.checkpoint).load(TRAINING)["algorithm"]
    return {name: float(value) for name, value in state.items() if name.endswith("learning_rate")}


# --- A new run folder ------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_a_changed_setting_continues_the_run_in_a_new_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = stopped_at(tmp_path, 30, algo_kwargs={"learning_rate_schedule": "constant"})
    before = contents(old.run_dir)
    settings = {"algo_kwargs": {"learning_rate": 0.005}, "eval_episodes": 3}
    with caplog.at_level(logging.INFO, "rl_training"):
        new = resume(old.run_dir, QUIET, settings=settings)
    assert contents(old.run_dir) == before
    assert (new.run_dir.parent, new.step) == (old.run_dir.parent, 60)
    assert new.run_dir != old.run_dir
    assert learning_rates(new) == {"learning_rate": pytest.approx(0.005)}
    written = read_run_config(new.run_dir)
    assert (written.algo_kwargs["learning_rate"], written.eval_episodes) == (0.005, 3)
    (start,) = json.loads((new.run_dir / "metadata.json").read_text())["starts"]
    assert start["changed_settings"] == {
        "eval_episodes": {"old": 2, "new": 3},
        "algo_kwargs.learning_rate": {"old": 0.001, "new": 0.005},
    }
    assert "algo_kwargs.learning_rate changes from 0.001 to 0.005 at step 30" in caplog.text


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_the_new_run_resumes_exactly(algo: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algo": algo, "total_timesteps": 80}
    old = stopped_at(tmp_path, 30, **changes)
    settings = {"algo_kwargs": {"learning_rate": 0.005, "gamma": 0.9}}
    whole = resume(old.run_dir, QUIET, settings=settings)
    stopping = RunOptions(show_progress=False, callbacks=[StopAt(31)])
    broken = resume(old.run_dir, stopping, settings=settings)
    assert broken.run_dir != whole.run_dir
    assert_same_run(resume(broken.run_dir, QUIET), whole)


@pytest.mark.learning
def test_a_new_run_that_was_killed_at_once_keeps_the_changed_settings(tmp_path: Path) -> None:
    old = stopped_at(tmp_path, 30)

    class Killed(rl_training.Callback):
        def on_start(self, run: Any) -> None:
            raise KeyboardInterrupt

    settings = {"algo_kwargs": {"learning_rate": 0.005}}
    with pytest.raises(KeyboardInterrupt):
        resume(old.run_dir, RunOptions(show_progress=False, callbacks=[Killed()]), settings=settings)
    (fork,) = set((tmp_path / "runs").iterdir()) - {old.run_dir}
    assert_same_run(resume(fork, QUIET), resume(old.run_dir, QUIET, settings=settings))


@pytest.mark.learning
def test_a_constant_learning_rate_after_a_linear_one_is_the_full_one(tmp_path: Path) -> None:
    kwargs = {"learning_rate_schedule": "linear"}
    old = stopped_at(tmp_path, 40, algo_kwargs=kwargs)
    assert learning_rates(old)["learning_rate"] < 0.001
    new = resume(old.run_dir, QUIET, settings={"algo_kwargs": {"learning_rate_schedule": "constant"}})
    assert learning_rates(new)["learning_rate"] == pytest.approx(0.001)


@pytest.mark.learning
def test_load_takes_settings_of_the_algorithm(tmp_path: Path) -> None:
    old = stopped_at(tmp_path, 30)
    before = contents(old.run_dir)
    agent = rl_training.DQN.load(old.run_dir, algo_kwargs={"gamma": 0.9}, show_progress=False)
    assert agent.config.algo_kwargs["gamma"] == 0.9
    new = agent.learn()
    assert contents(old.run_dir) == before
    assert read_run_config(new.run_dir).algo_kwargs["gamma"] == 0.9
    assert agent.learn(total_timesteps=70).run_dir == new.run_dir  # the next call continues there


@pytest.mark.learning
def test_resume_takes_settings_on_the_command_line(tmp_path: Path) -> None:
    old = stopped_at(tmp_path, 30)
    before = contents(old.run_dir)
    words = ["resume", str(old.run_dir), "--set", "algo_kwargs.learning_rate=5e-3", "--set", "eval_episodes=1"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.stderr
    assert contents(old.run_dir) == before
    (new,) = set((tmp_path / "runs").iterdir()) - {old.run_dir}
    config = load_config(new / "config.yaml")
    assert (config.algo_kwargs["learning_rate"], config.eval_episodes) == (0.005, 1)
    refused = CliRunner().invoke(app, ["resume", str(old.run_dir), "--set", "seed=5"])
    assert refused.exit_code == 2
    assert "error: seed cannot change on resume, from 0 to 5: the saved random streams continue" in refused.stderr


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_at(tmp_path_factory.mktemp("stopped"), 30).run_dir


@pytest.mark.learning
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 1}, "seed cannot change on resume, from 0 to 1: the saved random streams continue"),
        ({"num_envs": 2}, "num_envs cannot change on resume, from 1 to 2: the saved environments"),
        ({"env_id": "CartPole-v1"}, "env_id cannot change on resume"),
        ({"env_kwargs": {"num_states": 4}}, "env_kwargs cannot change on resume"),
        ({"algo_kwargs": {"n_step": 3}}, "algo_kwargs.n_step cannot change on resume, from 1 to 3"),
        ({"algo_kwargs": {"buffer_capacity": 300}}, "algo_kwargs.buffer_capacity cannot change on resume"),
        ({"algo_kwargs": {"prioritized": True}}, "algo_kwargs.prioritized cannot change on resume"),
        (
            {"algo_kwargs": {"hidden_sizes": [32]}},
            "algo_kwargs.hidden_sizes cannot change on resume: the saved 1.weight has shape (16, 5), and would need",
        ),
        ({"algo_kwargs": {"dueling": True}}, "algo_kwargs.dueling cannot change on resume: the saved state has other"),
        ({"algo_kwargs": {"gamma": 0.99}}, "no setting changes: each has the given value already"),
        ({"algo_kwargs": {"gama": 0.9}}, "dqn.algo_kwargs: unknown setting 'gama'; did you mean 'gamma'?"),
        ({"algo_kwargs": {"gamma": 1.5}}, "dqn.algo_kwargs.gamma must be in [0, 1], got 1.5"),
    ],
)
def test_what_the_saved_state_depends_on_cannot_change(
    settings: dict[str, Any], message: str, stopped_run: Path
) -> None:
    before = contents(stopped_run)
    with pytest.raises(ConfigError) as caught:
        resume(stopped_run, QUIET, settings=settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert list(stopped_run.parent.iterdir()) == [stopped_run]
    assert contents(stopped_run) == before


@pytest.mark.parametrize("settings", [{"hidden_sizes": [32]}, {"dueling": True}])
def test_load_refuses_settings_that_the_saved_state_does_not_fit(settings: dict[str, Any], stopped_run: Path) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=f"algo_kwargs.{name} cannot change on resume: the saved"):
        rl_training.DQN.load(stopped_run, algo_kwargs=settings)


def test_the_discount_is_part_of_stored_sums_of_rewards() -> None:
    old = TrainConfig(algo="n_step_dqn", env_id="x", total_timesteps=1)
    with pytest.raises(ConfigError, match=r"gamma cannot change on resume: the saved replay buffer holds sums of 3"):
        changed_settings(old, old.updated(algo_kwargs={"gamma": 0.5}))


def test_every_setting_of_a_run_may_change_or_says_why_not() -> None:
    fixed = {
        name
        for name, field in TrainConfig.model_fields.items()
        if any(isinstance(mark, Fixed) for mark in field.metadata)
    }
    assert TrainConfig.model_fields.keys() - fixed == CHANGEABLE


def test_a_variant_keeps_the_marks() -> None:
    marks = ROW["rainbow_dqn"].hparams.model_fields["v_min"].metadata
    assert any(isinstance(mark, Fixed) for mark in marks)


# --- Over the registry -----------------------------------------------------------------------------------------------

SHAPES: dict[str, Any] = {
    "hidden_sizes": [24],
    "network": "simba",
    "layer_norm": True,
    "dueling": True,
    "noisy": True,
    "num_atoms": 7,
    "num_quantiles": 9,
    "embedding_dim": 5,
    "num_critics": 6,
    "num_ensembles": 5,
    "model_hidden_sizes": [24],
    "deter_size": 16,
    "num_latents": 5,
    "num_classes": 6,
    "hidden_size": 24,
    "num_bins": 9,
    "discriminator_hidden_sizes": [24],
    "absorbing_state": True,
    "normalize": "both",
    "normalize_observations": True,
    "shared_trunk": "yes",
}
CASES = [
    (algo, name)
    for algo, row in ROW.items()
    for name, value in SHAPES.items()
    if name in row.hparams.model_fields
    and {**row.hparams().model_dump(), **small_hparams(algo)}[name] != value
    and (algo, name) not in {("iqn", "num_quantiles"), ("iql_online", "normalize_observations"), ("bbf", "noisy")}
]


def setup_of(algo: str, **hparams: Any) -> Setup[Any]:
    action: gym.Space[Any] = Discrete(2) if "discrete" in ROW[algo].actions else Box(-1.0, 1.0, (2,), np.float32)
    setup, settings = make_setup(algo=algo, action=action), ROW[algo].hparams
    return replace(setup, hparams=settings(**{**small_hparams(algo), **hparams}))


def carried(algo: str, **hparams: Any) -> dict[str, Any]:
    old = ROW[algo].build_algorithm(setup_of(algo))
    new = ROW[algo].build_algorithm(setup_of(algo, **hparams))
    changed = {f"algo_kwargs.{name}": (None, value) for name, value in hparams.items()}
    _carry(old.policy_state_dict(), old.policy_state_dict(), new.policy_state_dict(), changed)
    return _carry(old.state_dict(), old.state_dict(), new.state_dict(), changed)


@pytest.mark.parametrize(("algo", "name"), CASES)
def test_a_setting_that_shapes_the_state_is_refused_by_name(algo: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"algo_kwargs.{name} cannot change on resume: the saved"):
        carried(algo, **{name: SHAPES[name]})


RATES = [(algo, name) for algo, row in ROW.items() for name in row.hparams.model_fields if name.endswith("rning_rate")]
OUTSIDE = {("fqf", "fraction_learning_rate")}  # not in the state: every update reads the setting


@pytest.mark.parametrize(("algo", "name"), [case for case in RATES if case not in OUTSIDE])
def test_a_learning_rate_takes_effect(algo: str, name: str) -> None:
    state = json.dumps(carried(algo, **{name: 0.0078125}), default=lambda value: np.asarray(value).tolist())
    assert "0.0078125" in state


def test_the_initial_value_of_what_was_learned_cannot_change(tmp_path: Path) -> None:
    old = ROW["sac"].build_algorithm(setup_of("sac"))
    new = ROW["sac"].build_algorithm(setup_of("sac", alpha=0.5))
    saved = {**old.state_dict()}
    saved["temperature.params"] = saved["temperature.params"] - 1.0
    message = "algo_kwargs.alpha cannot change on resume: it decides the initial temperature.params, which training has"
    with pytest.raises(ConfigError, match=message):
        _carry(saved, old.state_dict(), new.state_dict(), {"algo_kwargs.alpha": ("auto", 0.5)})


def test_a_constant_of_the_settings_takes_its_new_value() -> None:
    old = ROW["sac"].build_algorithm(setup_of("sac", alpha=0.25))
    new = ROW["sac"].build_algorithm(setup_of("sac", alpha=0.5))
    changed = {"algo_kwargs.alpha": (0.25, 0.5)}
    state = _carry(old.state_dict(), old.state_dict(), new.state_dict(), changed)
    assert float(state["temperature.params"].exp()) == pytest.approx(0.5)
