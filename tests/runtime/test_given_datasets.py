"""Datasets that users give: required, recognised by the file's name, and as arrays kept in the run folder."""

import logging
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

import rl_training
from builders import make_config
from rl_training.api.algorithms import managed_class
from rl_training.cli import app
from rl_training.core.spaces import Spaces
from rl_training.datasets.files import write_transitions
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.datasets.transitions import build_transitions, match_columns
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.manifest import MEMORY
from rl_training.experiment.registry import ROWS
from rl_training.hparams.bc import BCHParams
from rl_training.hparams.datasets import dataset_choice
from rl_training.launching.seed_runs import run_seeds
from rl_training.runtime.dataset_loading import GivenDataset, load_transition_dataset
from rl_training.runtime.trainer import RunOptions, resume, train
from stand_ins import StopAt
from state_comparison import assert_identical, assert_same_run, parts_of

FROM_DATA = [spec.name for spec in ROWS if dataset_choice(spec.hparams()) is not None]
QUIET = RunOptions(show_progress=False)


def make_arrays(*, rows: int = 100, seed: int = 0, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return episodes of ten steps with three observed numbers and actions of two in [-scale, scale]."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-0.9, 0.9, (rows + 1, 3)).astype(np.float32)
    return {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": scale * obs[:-1, :2],
        "rewards": rng.normal(size=rows),
        "terminations": np.zeros(rows, np.bool_),
        "truncations": np.arange(rows) % 10 == 9,
    }


def write_file(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def as_dataset(arrays: dict[str, np.ndarray], space: gym.Space[Any] | None = None) -> TransitionDataset:
    names = match_columns(arrays, "arrays")
    columns = {column: arrays[name] for column, name in names.items()}
    spaces = Spaces(Box(-1.0, 1.0, (3,), np.float32), space) if space is not None else None
    return TransitionDataset.from_transitions(build_transitions(columns, source="arrays", spaces=spaces))


def settings(tmp_path: Path, **changes: Any) -> TrainConfig:
    """Return the config of a short run of BC that names no dataset and no environment."""
    nothing = {"dataset_kind": None, "dataset_size": None}
    hparams = {**nothing, **changes.pop("algo_kwargs", {})}
    return make_config(tmp_path / "runs", **{"algo": "bc", "env_id": "", "algo_kwargs": hparams, **changes})


def agent_of(tmp_path: Path, dataset: GivenDataset, **changes: Any) -> rl_training.BC:
    return rl_training.BC(settings(tmp_path, **changes), dataset=dataset, show_progress=False)


# --- One is required -------------------------------------------------------------------------------------------------


def test_the_algorithms_that_learn_from_data_are_known() -> None:
    assert {"iql", "bc", "mopo", "gail"} <= set(FROM_DATA)


@pytest.mark.parametrize("algo", FROM_DATA)
def test_an_algorithm_that_learns_from_data_needs_a_dataset(algo: str, tmp_path: Path) -> None:
    env_id = "Pendulum-v1"
    with pytest.raises(ConfigError) as of_python:
        managed_class(algo).for_env(env_id, 100, output_dir=tmp_path / "runs")
    config = TrainConfig(algo=algo, env_id=env_id, total_timesteps=100, output_dir=tmp_path / "runs")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    of_cli = CliRunner().invoke(app, ["train", "-c", str(tmp_path / "config.yaml")])
    with pytest.raises(ConfigError) as of_config:
        train(config, QUIET)
    for message in (str(of_python.value), of_cli.stderr, str(of_config.value)):
        assert f"{algo} learns from a dataset, and none is given" in message
        assert "dataset= takes the path of a file, a dict of arrays or a TransitionDataset" in message
        assert "--set algo_kwargs." + ("expert_" if algo == "gail" else "") + "dataset_path=FILE" in message
        assert "\n" not in message.rstrip()
    assert of_cli.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_random_actions_are_learned_from_only_if_they_are_asked_for(tmp_path: Path) -> None:
    agent = rl_training.BC.for_env("CartPole-v1", 10, algo_kwargs={"dataset_kind": "random"}, output_dir=tmp_path)
    assert agent.config.algo_kwargs["dataset_kind"] == "random"


def test_algorithms_that_learn_in_an_environment_take_no_dataset() -> None:
    with pytest.raises(ConfigError, match="dqn learns in an environment, not from a dataset: leave dataset out"):
        rl_training.DQN.for_env("CartPole-v1", 100, dataset=make_arrays())


def test_a_dataset_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="dataset must be a path, a dict of arrays or a TransitionDataset, got list"):
        agent_of(tmp_path, [1, 2])  # type: ignore[arg-type]


def test_the_folder_of_several_seeds_is_named_by_a_config_that_names_the_dataset(tmp_path: Path) -> None:
    config = make_config(tmp_path, algo="bc")
    with pytest.raises(ConfigError, match="give the dataset there, dataset_path"):
        run_seeds(config, [0], options=RunOptions(dataset=make_arrays()))


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.npz", "data.hdf5", "data.h5", "data.parquet", "data"])
def test_the_name_of_a_file_gives_its_kind(name: str, tmp_path: Path) -> None:
    write_transitions(as_dataset(make_arrays(), Box(-1.0, 1.0, (2,), np.float32)).to_transitions(), tmp_path / name)
    dataset = load_transition_dataset(BCHParams(dataset_path=tmp_path / name))
    assert np.array_equal(dataset.actions, make_arrays()["actions"])


def test_a_name_that_gives_no_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(ConfigError, match=r"data\.csv: a dataset is a file ending in \.npz, \.hdf5"):
        agent_of(tmp_path, tmp_path / "data.csv").learn()


def test_a_file_given_in_python_replaces_the_random_dataset_of_a_config(tmp_path: Path) -> None:
    write_file(tmp_path / "data.npz", make_arrays())
    agent = rl_training.IQL("configs/iql/pendulum.yaml", dataset=tmp_path / "data.npz")
    chosen = dataset_choice(agent.config.hparams)
    assert chosen is not None
    # 20,000 was the number of rows to generate; of the file, all rows are used
    assert (chosen.dataset_kind, chosen.dataset_path, chosen.dataset_size) == (None, tmp_path / "data.npz", None)


@pytest.mark.parametrize("space", [Box(-2.0, 3.0, (2,), np.float32), Discrete(5, start=3)])
def test_a_dataset_written_and_read_again_has_the_same_rows(space: gym.Space[Any], tmp_path: Path) -> None:
    arrays = make_arrays(scale=2.0)
    if isinstance(space, Discrete):
        arrays["actions"] = np.arange(100) % 5 + 3
    dataset = as_dataset(arrays, space)
    write_transitions(dataset.to_transitions(), tmp_path / "data.npz")
    again = load_transition_dataset(BCHParams(dataset_path=tmp_path / "data.npz"))
    for name in ("obs", "actions", "rewards", "next_obs", "terminated", "truncated"):
        assert np.array_equal(getattr(again, name), getattr(dataset, name)), name
    assert again.spaces == dataset.spaces


# --- Arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_a_path_arrays_and_a_dataset_give_the_same_run(tmp_path: Path) -> None:
    write_file(tmp_path / "data.npz", make_arrays())
    given: list[GivenDataset] = [str(tmp_path / "data.npz"), make_arrays(), as_dataset(make_arrays())]
    by_path, by_arrays, by_dataset = (agent_of(tmp_path, one).learn() for one in given)
    for result in (by_arrays, by_dataset):
        assert_same_run(result, by_path)
        config = load_config(result.run_dir / "config.yaml")
        assert (config.algo_kwargs["dataset_kind"], config.algo_kwargs["dataset_path"]) == ("arrays", None)
    assert not (by_path.run_dir / "dataset.npz").exists()


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["bc", "gail"])
def test_a_run_on_arrays_resumes_exactly_without_them(algo: str, tmp_path: Path) -> None:
    arrays = make_arrays()
    arrays["actions"] = np.arange(100) % 2
    arrays["observations"], arrays["next_observations"] = (
        np.repeat(arrays[name][:, :1], 4, 1) for name in ("observations", "next_observations")
    )
    prefix = "expert_" if algo == "gail" else ""
    config = make_config(
        tmp_path,
        algo=algo,
        env_id="CartPole-v1",
        algo_kwargs={f"{prefix}dataset_kind": None, f"{prefix}dataset_size": None},
    )
    whole = train(config, RunOptions(show_progress=False, dataset=arrays))
    stopped = train(config, RunOptions(show_progress=False, dataset=arrays, callbacks=[StopAt(30)]))
    moved = stopped.run_dir.rename(tmp_path / "moved")
    assert_same_run(resume(moved, QUIET), whole)


@pytest.mark.learning
def test_a_run_on_arrays_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    whole = agent_of(tmp_path, make_arrays()).learn()
    killed = shutil.copytree(whole.run_dir, tmp_path / "killed")
    shutil.rmtree(killed / "checkpoints")
    (killed / "result.json").unlink()
    assert_same_run(resume(killed, QUIET), whole)


@pytest.mark.learning
def test_other_data_are_refused_when_a_run_continues(tmp_path: Path) -> None:
    run_dir = agent_of(tmp_path, make_arrays()).learn().run_dir
    kept = (run_dir / "dataset.npz").read_bytes()
    agent = rl_training.BC.load(run_dir, dataset=make_arrays(seed=1), show_progress=False)
    with pytest.raises(CheckpointError, match=r"learned from 90 transitions \(digest .*\), but dataset now holds 90"):
        agent.learn(total_timesteps=70)
    assert (run_dir / "dataset.npz").read_bytes() == kept


@pytest.mark.learning
def test_a_saved_agent_needs_its_arrays_to_continue(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, make_arrays())
    agent.learn()
    saved = agent.save(tmp_path / "agent")
    with pytest.raises(ConfigError, match=r"this run has no such file: pass the data as dataset=, to load\(\) if"):
        rl_training.BC.load(saved, show_progress=False).learn(total_timesteps=70)
    longer = rl_training.BC.load(saved, dataset=make_arrays(), show_progress=False).learn(total_timesteps=70)
    assert_identical(parts_of(longer), parts_of(agent.learn(total_timesteps=70)))
    assert resume(longer.run_dir, QUIET, total_timesteps=80).step == 80  # the new folder keeps them


@pytest.mark.learning
def test_a_fork_of_a_run_on_arrays_keeps_them(tmp_path: Path) -> None:
    first = agent_of(tmp_path, make_arrays()).learn()
    fork = resume(first.run_dir, QUIET, total_timesteps=70, output_dir=tmp_path / "forks")
    shutil.rmtree(first.run_dir)
    assert resume(fork.run_dir, QUIET, total_timesteps=80).step == 80


@pytest.mark.learning
def test_a_dataset_that_was_moved_is_named_when_the_run_is_loaded(tmp_path: Path) -> None:
    write_file(tmp_path / "data.npz", make_arrays())
    whole = agent_of(tmp_path, tmp_path / "data.npz", total_timesteps=80).learn()
    first = agent_of(tmp_path, tmp_path / "data.npz").learn()
    moved = (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    result = rl_training.BC.load(first.run_dir, dataset=moved, show_progress=False).learn(total_timesteps=80)
    assert parts_of(result)[MEMORY]["digest"] == parts_of(whole)[MEMORY]["digest"]
    assert load_config(result.run_dir / "config.yaml").algo_kwargs["dataset_path"] == str(moved)


# --- What is held out ------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_without_an_environment_a_part_is_held_out_and_the_user_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        result = agent_of(tmp_path, make_arrays()).learn()
    assert "there is no environment to evaluate in: 1 of 10 episodes are held out for that" in caplog.text
    assert "held_out_log_likelihood" in result.metrics
    evaluated = CliRunner().invoke(app, ["evaluate", str(result.run_dir), "--json"])
    assert evaluated.exit_code == 0, evaluated.stderr
    chosen = agent_of(tmp_path, make_arrays(), algo_kwargs={"held_out": 0.1}).learn()
    assert_same_run(result, chosen)


@pytest.mark.learning
def test_with_an_environment_nothing_is_held_out_unless_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path, algo="iql", env_id="rl_training/Identity-v0", env_kwargs={"actions": "box"})
    result = train(config, QUIET)
    assert "held_out_log_likelihood" not in result.metrics
    assert "held out" not in caplog.text
