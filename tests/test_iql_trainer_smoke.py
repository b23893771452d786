"""`train_iql` and `train_bc`: whole run folders with and without an environment, exact resume, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation
from typer.testing import CliRunner

import rl_training
from builders import make_config
from rl_training.cli import app
from rl_training.core.spaces import transition_fields
from rl_training.datasets.files import read_transitions
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import CheckpointError, ConfigError, DatasetError, SpaceError, TrainingError, UserError
from rl_training.experiment.checkpointing import save_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.launching import process
from rl_training.launching.seed_runs import run_seeds
from rl_training.learners.offline import OfflineLearner
from rl_training.runtime import offline_evaluation, setup
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.iql_trainer import train_bc, train_iql
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult, resume, train
from stand_ins import Images, StopAt
from state_comparison import assert_identical, assert_same_run, parts_of

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)
TRAIN: dict[str, Callable[..., TrainResult]] = {"iql": train_iql, "bc": train_bc}
METRICS = {
    "iql": {"value_loss", "critic_loss", "actor_loss", "q_value_mean", "value_mean", "advantage_weight_mean"},
    "bc": {"actor_loss", "log_likelihood", "action_error"},
}


def in_env(tmp_path: Path, **changes: Any) -> TrainConfig:
    identity = {"algo": "iql", "env_id": "rl_training/Identity-v0", "env_kwargs": {"actions": "box"}}
    return make_config(tmp_path, **{**identity, **changes})


def write_file(path: Path, *, seed: int = 0, rows: int = 100) -> Path:
    """Episodes of ten steps with three observed numbers; actions of two repeat the first two."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-0.9, 0.9, (rows, 3)).astype(np.float32)
    columns = {
        "observations": obs,
        "next_observations": rng.uniform(-0.9, 0.9, (rows, 3)).astype(np.float32),
        "actions": obs[:, :2],
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminations": np.zeros(rows, np.bool_),
        "truncations": np.arange(rows) % 10 == 9,
    }
    np.savez(path, **columns)
    return path


def from_file(tmp_path: Path, **changes: Any) -> TrainConfig:
    file = tmp_path / "data.npz"
    if not file.is_file():
        write_file(file)
    dataset = {"dataset_kind": "npz", "dataset_path": str(file), "dataset_size": None, "held_out": 0.2}
    hparams = {**dataset, **changes.pop("algo_kwargs", {})}
    return make_config(tmp_path / "runs", **{"algo": "iql", "env_id": "", "algo_kwargs": hparams, **changes})


# --- With an environment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", TRAIN)
def test_a_run_leaves_everything_in_its_folder(algo: str, tmp_path: Path) -> None:
    config = in_env(
        tmp_path,
        algo=algo,
        total_timesteps=60,
        log_interval=25,
        eval_interval=40,
        checkpoint_interval=30,
        tensorboard=True,
        algo_kwargs={"held_out": 0.2, "normalize_observations": True, "reward_scale": "return"},
    )
    result = TRAIN[algo](config, QUIET)
    assert (result.step, result.gradient_step) == (60, 60)  # steps are gradient steps
    assert METRICS[algo] | {"held_out_log_likelihood"} <= set(result.metrics)
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert len(result.eval_episodes) == 2

    folder = result.run_dir
    assert folder.name.startswith(f"{algo}__rl_training-Identity-v0__seed0__")
    assert load_config(folder / "config.yaml").hparams == config.hparams
    records = read_json_lines(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == [25, 50, 60]
    assert all(record["step"] == record["gradient_step"] for record in records)
    assert all("episodes" not in record["metrics"] for record in records)  # none is played
    evaluations = read_json_lines(folder / "eval.jsonl")
    assert [line["step"] for line in evaluations if "held_out" in line] == [40, 60]
    assert [line["step"] for line in evaluations if "return" in line] == [40, 40, 60, 60]
    assert read_json_lines(folder / "episodes.jsonl") == []
    assert {path.name for path in (folder / "checkpoints").glob("step_*")} >= {"step_000000030", "step_000000060"}
    assert json.loads((folder / "result.json").read_text())["gradient_step"] == 60
    assert open_checkpoint(result.checkpoint).step == 60


@pytest.mark.parametrize("algo", TRAIN)
def test_one_config_and_seed_give_one_result(algo: str, tmp_path: Path) -> None:
    first, again = (TRAIN[algo](in_env(tmp_path, algo=algo, seed=3), QUIET) for _ in range(2))
    other = TRAIN[algo](in_env(tmp_path, algo=algo, seed=4), QUIET)
    assert first.run_dir != again.run_dir
    assert first.metrics == again.metrics != other.metrics


def test_evaluating_more_often_changes_nothing(tmp_path: Path) -> None:
    seldom, often = (train_iql(in_env(tmp_path, eval_interval=interval), QUIET) for interval in (0, 10))
    assert_identical(often.algorithm.state_dict(), seldom.algorithm.state_dict())


@pytest.mark.parametrize("algo", TRAIN)
def test_the_reference_configs_train(algo: str, tmp_path: Path) -> None:
    shipped = load_config(f"configs/{algo}/pendulum.yaml")
    config = shipped.updated(
        total_timesteps=4,
        eval_episodes=1,
        output_dir=tmp_path,
        algo_kwargs={**shipped.algo_kwargs, "dataset_size": 400, "batch_size": 8},
    )
    assert TRAIN[algo](config, QUIET).gradient_step == 4


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.split("/")[0] in TRAIN])
def test_the_shipped_configs_are_valid(name: str) -> None:
    config = load_config(f"configs/{name}")
    assert config.total_updates == config.total_timesteps


# --- Without one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", TRAIN)
def test_a_file_alone_is_learnt_from_and_judged_by_what_is_held_out(algo: str, tmp_path: Path) -> None:
    config = from_file(tmp_path, algo=algo, total_timesteps=200, eval_interval=100, algo_kwargs={"learning_rate": 1e-2})
    result = TRAIN[algo](config, QUIET)
    assert result.run_dir.name.startswith(f"{algo}__dataset__seed0__")
    assert result.eval_episodes == []
    assert result.eval_return is None
    middle, end = read_json_lines(result.run_dir / "eval.jsonl")
    assert (middle["step"], end["step"]) == (100, 200)
    assert end["held_out"]["log_likelihood"] > middle["held_out"]["log_likelihood"]
    assert end["held_out"]["log_likelihood"] == pytest.approx(result.metrics["held_out_log_likelihood"], rel=1e-5)
    (last,) = [record for record in read_json_lines(result.run_dir / "metrics.jsonl") if record["step"] == 200]
    assert "held_out_log_likelihood" in last["metrics"]


@pytest.mark.parametrize("algo", TRAIN)
def test_the_agent_of_a_file_predicts_saves_and_loads_without_it(algo: str, tmp_path: Path) -> None:
    managed = getattr(rl_training, algo.upper())
    agent = managed(from_file(tmp_path, algo=algo, algo_kwargs={"normalize_observations": True}), show_progress=False)
    agent.learn()
    saved = agent.save(tmp_path / "agent")
    (tmp_path / "data.npz").unlink()
    obs = np.random.default_rng(1).uniform(-1.0, 1.0, (20, 3)).astype(np.float32)
    loaded = managed.load(saved)
    assert np.array_equal(loaded.predict(obs), agent.predict(obs))
    assert loaded.predict(obs[0]).shape == (2,)
    with pytest.raises(ConfigError, match="env_id is empty: there is no environment to evaluate in"):
        loaded.evaluate()
    answer = CliRunner().invoke(app, ["predict", str(saved), "--obs", json.dumps(obs.tolist())])
    np.testing.assert_allclose(json.loads(answer.output), agent.predict(obs), atol=1e-6)
    refused = CliRunner().invoke(app, ["evaluate", str(saved)])
    assert (refused.exit_code, "there is no dataset" in refused.stderr) == (2, True)


def test_held_out_data_are_judged_by_the_mean_over_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = cast(OfflineLearner, train_iql(from_file(tmp_path), QUIET).algorithm)
    dataset = TransitionDataset.from_transitions(read_transitions(tmp_path / "data.npz"))
    batch = {name: torch.from_numpy(getattr(dataset, name).copy()) for name in transition_fields(dataset.spaces)}
    monkeypatch.setattr(offline_evaluation, "_ROWS_AT_ONCE", 30)  # of 100
    expected = {name: float(value) for name, value in learner.evaluate_offline(batch).items()}
    assert offline_evaluation.evaluate_offline(learner, dataset) == pytest.approx(expected, rel=1e-5)


def test_the_seed_of_the_dataset_says_which_episodes_are_held_out(tmp_path: Path) -> None:
    configs = [from_file(tmp_path, algo_kwargs={"dataset_seed": seed}) for seed in (0, 0, 1)]
    first, again, other = (parts_of(train_iql(config, QUIET))[MEMORY]["digest"] for config in configs)
    assert first == again != other


@pytest.mark.parametrize("algo", TRAIN)
def test_evaluating_the_agent_of_a_file_asks_the_held_out_data_again(algo: str, tmp_path: Path) -> None:
    result = TRAIN[algo](from_file(tmp_path, algo=algo, algo_kwargs={"normalize_observations": True}), QUIET)
    (line,) = read_json_lines(result.run_dir / "eval.jsonl")
    answer = CliRunner().invoke(app, ["evaluate", str(result.run_dir), "--json"])
    assert json.loads(answer.stdout)["held_out"] == pytest.approx(line["held_out"], rel=1e-5)
    assert "held out    log_likelihood" in CliRunner().invoke(app, ["evaluate", str(result.run_dir)]).stdout
    write_file(tmp_path / "data.npz", seed=1)
    assert "now holds 80 others" in CliRunner().invoke(app, ["evaluate", str(result.run_dir)]).stderr


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"held_out": 0.0}, "held_out must be in (0, 1) if env_id is empty, got 0: without an environment only"),
        (
            {"dataset_kind": "random", "dataset_path": None},
            "dataset_kind random needs an environment to act in, but env_id is empty",
        ),
    ],
)
def test_without_an_environment_some_settings_are_needed(hparams: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        from_file(tmp_path, algo_kwargs=hparams)
    assert str(caught.value).startswith(f"iql.algo_kwargs: {message}")


@pytest.mark.parametrize(("setting", "value"), [("stop_return", 5.0), ("env_kwargs", {"size": 2})])
def test_settings_of_an_environment_are_refused_without_one(setting: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{setting} needs an environment, but env_id is empty"):
        from_file(tmp_path, **{setting: value})


def name_entry_point(file: Path) -> None:
    columns = dict(np.load(file))
    np.savez(file, **columns, metadata=np.array(json.dumps({"env_spec": {"entry_point": "evil_module:Env"}})))


def test_entry_points_are_allowed_on_the_command_line_alone(tmp_path: Path) -> None:
    def call(*words: object) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words])

    config = from_file(tmp_path)
    name_entry_point(tmp_path / "data.npz")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    refused = call("train", "-c", tmp_path / "config.yaml")
    assert refused.exit_code == 2
    assert "the metadata name the entry point 'evil_module:Env'" in refused.stderr
    assert not (tmp_path / "runs").exists()
    assert call("train", "-c", tmp_path / "config.yaml", "--allow-entry-points", "--quiet").exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert "allow_entry" not in (run / "config.yaml").read_text()  # the permission is not kept
    longer = ["resume", run, "--total-timesteps", 70]
    assert "--allow-entry-points (in Python allow_entry_points=True) reads the data anyway" in call(*longer).stderr
    assert call(*longer, "--allow-entry-points").exit_code == 0
    assert call("predict", run, "--obs", "[0, 0, 0]").exit_code == 0  # opens no dataset


def test_an_environment_that_will_not_do_is_refused_before_a_dataset_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "load_transition_dataset", None)
    with pytest.raises(SpaceError, match=r"iql needs a box action space, but CartPole-v1 has Discrete\(2\)"):
        train_iql(in_env(tmp_path, env_id="CartPole-v1", env_kwargs={}), QUIET)


def test_other_algorithms_need_an_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env_id is missing: dqn learns in an environment"):
        make_config(tmp_path, env_id="")


def test_seeds_side_by_side_hand_the_permission_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Ended:
        returncode = 0

        def poll(self) -> int:
            return 0

    def start(folder: Path, flags: list[str]) -> Ended:
        started.append(flags)
        return Ended()

    monkeypatch.setattr(process, "start_process", start)
    for allowed in (True, False):
        run_seeds(in_env(tmp_path), [0], jobs=2, options=RunOptions(allow_entry_points=allowed))
    assert started == [["--allow-entry-points"], []]


def test_fine_tuning_needs_the_permission_for_its_dataset_too(tmp_path: Path) -> None:
    config = from_file(tmp_path)
    file = tmp_path / "data.npz"
    columns = dict(np.load(file))
    np.savez(file, **{**columns, "actions": columns["observations"]})  # three numbers, as the environment's
    name_entry_point(file)
    allowing = RunOptions(show_progress=False, allow_entry_points=True)
    offline = train_iql(config, allowing)
    with pytest.raises(DatasetError, match=r"^iql_online\.algo_kwargs\.init_from: .* name the entry point"):
        train(online(tmp_path, offline.run_dir), QUIET)
    assert train(online(tmp_path, offline.run_dir), allowing).step == 60


def test_seeds_without_an_environment_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env_id is empty: seeds are compared by the returns"):
        run_seeds(from_file(tmp_path), [0, 1])


def test_progress_and_results_speak_of_gradient_steps_and_held_out_data(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(from_file(tmp_path).to_yaml())
    result = CliRunner().invoke(app, ["train", "-c", str(tmp_path / "config.yaml")])
    last = result.stderr.splitlines()[-1]
    assert last.startswith("gradient step 60/60 (100 %)  ")
    assert "episodes" not in last
    for shown in ("value_loss ", "critic_loss ", "actor_loss ", "held_out_log_likelihood ", "learning_rate "):
        assert shown in last
    summary = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert set(summary) == {"held out", "gradient steps", "wall time", "run folder", "evaluate it", "train on"}
    assert summary["gradient steps"].strip() == "60 (all steps taken)"
    assert re.fullmatch(r" *log_likelihood -?[\d.]+, value_error [\d.]+", summary["held out"])


def test_a_run_that_diverges_tells_the_gradient_step(tmp_path: Path) -> None:
    config = in_env(tmp_path, log_interval=20, algo_kwargs={"learning_rate": 1e30})
    with pytest.raises(TrainingError, match=r"is (nan|inf|-inf) at gradient step 20: training has diverged"):
        train_iql(config, QUIET)


# --- Resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [in_env, from_file])
@pytest.mark.parametrize("algo", TRAIN)
def test_stopping_and_resuming_equals_the_unbroken_run(
    algo: str, make: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    settings = {"algo": algo, "total_timesteps": 97, "log_interval": 13, "eval_interval": 29}
    settings["algo_kwargs"] = {"normalize_observations": True, "learning_rate_schedule": "cosine", "held_out": 0.2}
    unbroken = TRAIN[algo](make(tmp_path, **settings), QUIET)
    stopped = TRAIN[algo](make(tmp_path, **settings), RunOptions(callbacks=[StopAt(35)], show_progress=False))
    assert stopped.interrupted
    assert stopped.step < 97
    resumed = resume(stopped.run_dir, QUIET)
    assert resumed.step == 97
    assert_same_run(resumed, unbroken)


def test_a_checkpoint_holds_no_transitions(tmp_path: Path) -> None:
    result = train_iql(from_file(tmp_path), QUIET)
    memory = open_checkpoint(result.checkpoint).load(MEMORY)
    assert set(memory) == {"rows", "digest", "generator"}
    assert memory["rows"] == 80  # two of ten episodes are held out
    assert (result.checkpoint / "memory.safetensors").stat().st_size < 1_000


def test_another_dataset_in_the_same_place_is_refused(tmp_path: Path) -> None:
    result = train_iql(from_file(tmp_path), QUIET)
    write_file(tmp_path / "data.npz", seed=1)
    with pytest.raises(CheckpointError) as caught:
        resume(result.run_dir, QUIET, total_timesteps=90)
    assert "the run learned from 80 transitions (digest " in str(caught.value)
    assert "data.npz now holds 80 others (digest " in str(caught.value)
    write_file(tmp_path / "data.npz", seed=0)
    assert resume(result.run_dir, QUIET, total_timesteps=90).step == 90


def test_the_policy_alone_is_loaded_from_a_run(tmp_path: Path) -> None:
    result = train_iql(in_env(tmp_path), QUIET)
    _, policy = load_policy(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    assert np.array_equal(policy.act(obs).actions, result.algorithm.act(obs).actions)


def test_another_algorithms_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_iql trains IQL, but algo is 'bc'"):
        train_iql(in_env(tmp_path, algo="bc"), QUIET)
    with pytest.raises(ConfigError, match="train_bc trains BC, but algo is 'iql'"):
        train_bc(in_env(tmp_path), QUIET)


# --- Going on in the environment -------------------------------------------------------------------------------------


def online(tmp_path: Path, init_from: Path | None, **hparams: Any) -> TrainConfig:
    changes = {"init_from": None if init_from is None else str(init_from), "learning_starts": 0, **hparams}
    return in_env(tmp_path / "online", algo="iql_online", algo_kwargs=changes)


class Beginning(Callback):
    """Notes what the run begins with, and ends it at once."""

    def on_step(self, run: Run) -> None:
        self.rows = len(run.memory)
        run.stop_reason = "enough"


def test_fine_tuning_begins_with_what_was_learnt_and_its_dataset(tmp_path: Path) -> None:
    offline = train_iql(in_env(tmp_path, algo_kwargs={"normalize_observations": True, "reward_scale": 0.3}), QUIET)
    beginning = Beginning()
    config = online(tmp_path, offline.run_dir, normalize_observations=True, learning_starts=10, learning_rate=1e-3)
    result = train(config, RunOptions(callbacks=[beginning], show_progress=False))
    assert (result.step, result.gradient_step) == (1, 0)
    assert beginning.rows == 60 + 1
    assert_identical(result.algorithm.policy_state_dict(), offline.algorithm.policy_state_dict())
    ours, theirs = result.algorithm.state_dict(), offline.algorithm.state_dict()
    kept = {"critic.params", "critic.adam_square", "value.params", "target_critic", "reward_scale"}
    assert_identical({name: ours[name] for name in kept}, {name: theirs[name] for name in kept})
    assert float(ours["actor.learning_rate"]) == pytest.approx(1e-3)


def test_fine_tuning_goes_on_exactly_and_without_the_offline_run(tmp_path: Path) -> None:
    offline = train_iql(in_env(tmp_path), QUIET)
    config = online(tmp_path, offline.run_dir)
    unbroken = train(config, QUIET)
    assert unbroken.gradient_step == 60
    stopped = train(config, RunOptions(callbacks=[StopAt(30)], show_progress=False))
    shutil.rmtree(offline.run_dir)
    resumed = resume(stopped.run_dir, QUIET)
    assert_identical(parts_of(resumed), parts_of(unbroken))
    obs = np.zeros((1, 3), np.float32)
    assert np.array_equal(load_policy(resumed.run_dir)[1].act(obs).actions, resumed.algorithm.act(obs).actions)


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    cloned = train_bc(in_env(tmp_path, algo="bc"), QUIET)
    offline = train_iql(in_env(tmp_path), QUIET)
    parts = {POLICY: offline.algorithm.policy_state_dict()}
    counters = open_checkpoint(offline.checkpoint).manifest["counters"]
    policy_only = save_checkpoint(tmp_path / "best", config=in_env(tmp_path), counters=counters, parts=parts)
    other = train_iql(in_env(tmp_path, env_kwargs={"actions": "box", "size": 2}), QUIET)
    wrong_file = train_iql(from_file(tmp_path), QUIET)
    for changes, message in (
        ({"init_from": tmp_path / "none"}, "init_from: there is no run or checkpoint at '.*none'"),
        ({"init_from": cloned.run_dir}, "init_from: .* is a run of bc, but must be one of iql"),
        ({"init_from": policy_only}, "init_from: .* holds the policy only .*; give the run folder"),
        ({"init_from": other.run_dir}, r"init_from: .* trained on Box.*\(2,\).*, but the environment has Box.*\(3,\)"),
        (
            {"init_from": wrong_file.run_dir},
            r"init_from: .*data.npz: actions must have shape \(100, 3\), found \(100, 2\)",
        ),
        ({"hidden_sizes": [8]}, r"init_from: hidden_sizes must be as in .*, \(16,\), got \(8,\)"),
        ({"layer_norm": True}, "init_from: layer_norm must be as in .*, False, got True"),
        ({"normalize_observations": True}, "init_from: normalize_observations must be as in"),
        ({"network": "simba"}, "init_from: network must be as in .*, mlp, got simba"),
        ({"buffer_capacity": 50}, "buffer_capacity must hold the 60 transitions of init_from's dataset, got 50"),
    ):
        settings: dict[str, Any] = {"init_from": offline.run_dir, **changes}
        with pytest.raises(UserError, match=rf"^iql_online\.algo_kwargs\.{message}"):
            train(online(tmp_path, **settings), QUIET)
    assert not (tmp_path / "online").exists()  # refused before anything is written


def test_settings_that_cannot_be_continued_are_refused(tmp_path: Path) -> None:
    offline = train_iql(in_env(tmp_path), QUIET)
    with pytest.raises(ConfigError, match="n_step must be 1 and prioritized false"):
        online(tmp_path, offline.run_dir, n_step=2)
    with pytest.raises(ConfigError, match="are taken from a dataset: give init_from"):
        online(tmp_path, None, reward_scale="return")


def stacked_frames() -> gym.Env[Any, Any]:
    grey = TransformObservation(TimeLimit(Images(), 12), lambda obs: obs[..., 0], Box(0, 255, (8, 8), np.uint8))
    return FrameStackObservation(grey, 3)


def test_fine_tuning_takes_a_dataset_of_stacked_frames(tmp_path: Path) -> None:
    options = RunOptions(env_factory=stacked_frames, show_progress=False)
    offline = train_iql(in_env(tmp_path, env_id="frames", env_kwargs={}), options)
    beginning = Beginning()
    config = online(tmp_path, offline.run_dir).updated(env_id="frames", env_kwargs={}, num_envs=2)
    train(config, replace(options, callbacks=[beginning]))
    assert beginning.rows == 60 + 2
