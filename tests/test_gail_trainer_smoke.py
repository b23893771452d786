"""`train_gail`: whole run folders from recorded experts, exact resume, acting without the data, and what is refused."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

import rl_training
from builders import make_config
from rl_training.cli import app
from rl_training.errors import CheckpointError, ConfigError, DatasetError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, TRAINING
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.gail_trainer import train_gail
from rl_training.runtime.trainer import RunOptions, resume
from stand_ins import StopAt
from state_comparison import assert_identical, parts_of

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)


def record(path: Path, env_id: str = "CartPole-v1", steps: int = 50, seed: int = 0) -> Path:
    """Random transitions, as `rl-training record` writes them."""
    words = ["record", "--random", "--env", env_id, "--steps", steps, "--seed", seed, "--out", path, "--quiet"]
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, answer.stderr
    return path


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    """A run on CartPole that imitates what lies in `expert.npz`."""
    file = tmp_path / "expert.npz"
    if not file.is_file():
        record(file)
    expert = {"expert_dataset_kind": "npz", "expert_dataset_path": str(file), "expert_dataset_size": None}
    hparams = {**expert, **changes.pop("algo_kwargs", {})}
    settings = {"algo": "gail", "env_id": "CartPole-v1", "num_envs": 2, "total_timesteps": 100, **changes}
    return make_config(tmp_path / "runs", **{**settings, "algo_kwargs": hparams})


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    config = config_of(tmp_path, total_timesteps=210, log_interval=100, tensorboard=True)
    result = train_gail(config, QUIET)
    assert result.step == 210
    # A rollout has 10 * 2 rows, learnt from twice in minibatches of 10: ten rollouts; the last 10 steps fill none.
    assert result.gradient_step == 10 * 2 * 2 == config.spec.updates_until(config.hparams, 200)
    wanted = {"policy_loss", "discriminator_loss", "discriminator_accuracy", "imitation_reward_mean", "env_reward_mean"}
    assert wanted <= set(result.metrics)
    assert result.metrics["env_reward_mean"] == 1.0  # CartPole pays 1 a step, whatever the discriminator thinks
    assert 0.0 < result.metrics["imitation_reward_mean"] != 1.0

    folder = result.run_dir
    assert folder.name.startswith("gail__CartPole-v1__seed0__")
    assert load_config(folder / "config.yaml").hparams == config.hparams
    episodes = read_json_lines(folder / "episodes.jsonl")
    assert all(episode["return"] == episode["length"] for episode in episodes)  # the env's, not the learnt ones
    assert [line["step"] for line in read_json_lines(folder / "metrics.jsonl")] == [100, 200, 210]
    assert json.loads((folder / "result.json").read_text())["step"] == 210
    assert open_checkpoint(result.checkpoint).step == 210


def test_one_config_and_seed_give_one_result(tmp_path: Path) -> None:
    first, again = (train_gail(config_of(tmp_path, seed=3), QUIET) for _ in range(2))
    other = train_gail(config_of(tmp_path, seed=4), QUIET)
    assert first.run_dir != again.run_dir
    assert first.metrics == again.metrics != other.metrics


def test_evaluating_more_often_changes_nothing(tmp_path: Path) -> None:
    seldom, often = (train_gail(config_of(tmp_path, eval_interval=interval), QUIET) for interval in (0, 20))
    assert_identical(often.algorithm.state_dict(), seldom.algorithm.state_dict())


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.startswith("gail/")])
def test_the_shipped_configs_train(name: str, tmp_path: Path) -> None:
    shipped = load_config(f"configs/{name}")
    expert = record(tmp_path / "expert.npz", shipped.env_id)
    hparams = {**shipped.algo_kwargs, "expert_dataset_path": expert, "num_steps": 16, "minibatch_size": 64}
    steps = 16 * shipped.num_envs
    config = shipped.updated(total_timesteps=steps, eval_episodes=1, output_dir=tmp_path, algo_kwargs=hparams)
    result = train_gail(config, QUIET)
    assert (result.step, result.gradient_step > 0) == (steps, True)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("Pendulum-v1", {"max_episode_steps": 20}),  # actions between -2 and 2
        ("FrozenLake-v1", {"max_episode_steps": 20}),  # discrete observations
        ("rl_training/TinyImage-v0", {"size": 6}),
        ("rl_training/TinyDict-v0", {}),
        ("rl_training/Masked-v0", {"multi": True}),  # action masks
    ],
)
def test_every_kind_of_space_trains_and_resumes(env_id: str, env_kwargs: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(tmp_path, algo="gail", env_id=env_id, env_kwargs=env_kwargs, total_timesteps=40)
    result = train_gail(config, QUIET)
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert resume(result.run_dir, QUIET, total_timesteps=60).step == 60


def test_an_agent_is_recorded_and_imitated_on_the_command_line(tmp_path: Path) -> None:
    def call(*words: object) -> Any:
        answer = CliRunner().invoke(app, [str(word) for word in words])
        assert answer.exit_code == 0, answer.stderr
        return answer

    expert = rl_training.PPO(make_config(tmp_path, algo="ppo", env_id="CartPole-v1"), show_progress=False).learn()
    call("record", "--run", expert.run_dir, "--episodes", 1, "--out", tmp_path / "expert.npz", "--quiet")
    (tmp_path / "config.yaml").write_text(config_of(tmp_path).to_yaml())
    call("train", "-c", tmp_path / "config.yaml", "--quiet")
    (run,) = (tmp_path / "runs").iterdir()
    call("resume", run, "--total-timesteps", 140, "--quiet")
    (tmp_path / "expert.npz").unlink()
    call("evaluate", run, "--episodes", 2)  # needs no expert any more
    call("predict", run, "--obs", "[0, 0, 0, 0]")


# --- Resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hparams",
    [{}, {"expert_shuffle": "labels"}, {"expert_shuffle": "actions"}, {"absorbing_state": True}],
    ids=lambda hparams: " ".join(map(str, hparams.values())),
)
@pytest.mark.parametrize("stop", [24, 60])  # in the middle of a rollout, and after one
def test_a_resumed_run_equals_the_unbroken_one(stop: int, hparams: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(tmp_path, algo_kwargs={"normalize": "both", **hparams})
    unbroken = train_gail(config, QUIET)
    stopped = train_gail(config, RunOptions(show_progress=False, callbacks=[StopAt(stop)]))
    assert stopped.step == stop
    resumed = resume(stopped.run_dir, QUIET)
    assert resumed.metrics == unbroken.metrics
    assert_identical(parts_of(resumed), parts_of(unbroken))


def test_a_checkpoint_holds_the_discriminator_its_draws_and_the_place_in_the_data(tmp_path: Path) -> None:
    parts = parts_of(train_gail(config_of(tmp_path), QUIET))
    kept = parts[TRAINING]["algorithm"]
    assert {"discriminator.params", "discriminator.adam_mean", "discriminator.adam_count", "generator"} <= kept.keys()
    assert int(kept["discriminator.adam_count"]) == 5 * 2  # five rollouts
    assert {"digest", "generator"} <= parts[MEMORY]["expert"].keys()


def test_another_expert_is_refused_on_resuming(tmp_path: Path) -> None:
    result = train_gail(config_of(tmp_path), QUIET)
    (tmp_path / "expert.npz").unlink()
    record(tmp_path / "expert.npz", seed=1)
    with pytest.raises(CheckpointError, match=r"the run learned from 50 transitions .* now holds 50 others"):
        resume(result.run_dir, QUIET, total_timesteps=200)


# --- What is refused -------------------------------------------------------------------------------------------------


def edited(path: Path, **columns: np.ndarray | None) -> None:
    """Write a recorded file again with other columns, or without some."""
    with np.load(path) as file:
        found = {name: file[name] for name in file.files} | columns
    np.savez(path, **{name: array for name, array in found.items() if array is not None})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"actions": None}, "actions"),
        ({"actions": np.full(50, 2)}, r"actions are outside Discrete\(2\)"),
        ({"actions": np.full(50, 0.5)}, "actions must be whole numbers"),
        ({"actions": np.zeros((50, 3), np.int64)}, r"actions must have shape \(50,\), found \(50, 3\)"),
        ({"observations": np.full((50, 4), np.nan)}, "not finite"),
        ({"observations": np.zeros((50, 3)), "next_observations": np.zeros((50, 3))}, r"must have shape \(50, 4\)"),
    ],
)
def test_expert_data_that_will_not_do_are_refused_in_one_line(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path)
    edited(tmp_path / "expert.npz", **columns)
    with pytest.raises(DatasetError, match=message) as caught:
        train_gail(config, QUIET)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with np.load(tmp_path / "expert.npz") as file:
        empty = {name: file[name][:0] for name in file.files if name != "metadata"}
    np.savez(tmp_path / "expert.npz", **empty)
    with pytest.raises(DatasetError, match=r"expert\.npz.* no rows"):
        train_gail(config, QUIET)


def test_an_expert_of_another_environment_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "expert.npz", "MountainCar-v0")
    with pytest.raises(DatasetError, match=r"expert.npz has the observation space Box.* but the environment has Box"):
        train_gail(config_of(tmp_path), QUIET)


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"expert_dataset_path": None}, "expert_dataset_path is missing: expert_dataset_kind npz needs it"),
        ({"expert_dataset_kind": "random"}, "expert_dataset_path must be null for expert_dataset_kind random, got "),
        (
            {"expert_dataset_kind": "minari", "expert_dataset_path": None},
            "expert_dataset_path or expert_dataset_id is missing: expert_dataset_kind minari needs it",
        ),
        (
            {"expert_dataset_kind": "minari", "expert_dataset_id": "a/b-v0"},
            "give expert_dataset_path or expert_dataset_id, not both",
        ),
    ],
)
def test_settings_that_name_no_expert_are_refused(hparams: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, algo_kwargs=hparams)
    assert str(caught.value).startswith(f"gail.algo_kwargs: {message}")


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"expert_dataset_path": "no/such.npz"}, "expert_dataset_path: there is no dataset no/such.npz; `rl-training"),
        (
            {"expert_dataset_kind": "minari", "expert_dataset_path": None, "expert_dataset_id": "no/such-v0"},
            "expert_dataset_id 'no/such-v0': there is no such dataset",
        ),
    ],
)
def test_an_expert_that_is_not_there_is_refused_by_the_settings_name(
    hparams: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        train_gail(config_of(tmp_path, algo_kwargs=hparams), QUIET)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"reward_form": "softplus"}, "gail.algo_kwargs.reward_form must be 'positive', 'negative' or 'airl', got"),
        ({"discriminator_updates": 0}, "gail.algo_kwargs.discriminator_updates must be >= 1, got 0"),
        ({"discriminator_learning_rate": 0.0}, "gail.algo_kwargs.discriminator_learning_rate must be > 0, got 0.0"),
        ({"gradient_penalty": -1.0}, "gail.algo_kwargs.gradient_penalty must be >= 0, got -1.0"),
        ({"discriminator_lr": 1.0}, "gail.algo_kwargs: unknown setting 'discriminator_lr'"),
        ({"minibatch_size": 3}, "gail.algo_kwargs: minibatch_size must divide the rollout"),
        ({"absorbing_state": True, "gamma": 1.0}, "gail.algo_kwargs: absorbing_state needs gamma < 1, got 1.0"),
    ],
)
def test_settings_out_of_range_are_refused(hparams: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, algo_kwargs=hparams)
    assert str(caught.value).startswith(message)


def test_an_environment_is_needed_and_another_algorithm_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env_id is missing: gail learns in an environment"):
        config_of(tmp_path, env_id="")
    with pytest.raises(ConfigError, match="train_gail trains GAIL, but algo is 'ppo'"):
        train_gail(make_config(tmp_path, algo="ppo"), QUIET)


def test_an_environment_of_the_users_own_can_be_imitated_in(tmp_path: Path) -> None:
    agent = rl_training.GAIL(
        config_of(tmp_path, env_id="mine"), env_factory=lambda: gym.make("CartPole-v1"), show_progress=False
    )
    assert agent.learn().step == 100
    assert agent.predict(np.zeros(4, np.float32)) in (0, 1)
