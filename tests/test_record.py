"""`record` writes what policies do, the same after an interruption; `dataset` shows and converts what is there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from conftest import assert_identical
from rl_training.data import recording
from rl_training.data.dataset_files import read_transitions
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.recording import Plan, Player, Recorder, noisy, random_actions
from rl_training.envs.factory import make_env_factory
from rl_training.errors import ConfigError
from test_cli import call, fails, only_folder, write_config

CHAIN = "rl_training/Chain-v0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short runs on the chain."""
    found = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp("runs")
        assert call("train", "--config", write_config(folder, seed=seed), "--quiet").exit_code == 0
        found.append(only_folder(folder / "runs"))
    return found


def make_recorder(out: Path, **changes: Any) -> Recorder:
    players = [Player("random", random_actions(Discrete(2)))]
    plan = Plan(**{"players": players, "seed": 3, "steps": 300, "env_id": "CartPole-v1", **changes})
    return Recorder(plan, make_env_factory("CartPole-v1"), out)


def stop_after(episodes: int, recorder: Recorder) -> Callable[[], bool]:
    return lambda: recorder.episodes >= episodes


def load(path: Path) -> TransitionDataset:
    return TransitionDataset.of(read_transitions(path))


# --- Recording -------------------------------------------------------------------------------------------------------


def test_an_interrupted_recording_goes_on_to_the_same_file(tmp_path: Path) -> None:
    whole, parts = make_recorder(tmp_path / "whole.npz"), make_recorder(tmp_path / "parts.npz")
    assert whole.run()
    assert not parts.run(should_stop=stop_after(2, parts))
    assert not (tmp_path / "parts.npz").exists()
    again = make_recorder(tmp_path / "parts.npz")
    assert not again.run(should_stop=stop_after(5, again))
    assert make_recorder(tmp_path / "parts.npz").run()
    assert_identical(
        read_transitions(tmp_path / "parts.npz").columns(), read_transitions(tmp_path / "whole.npz").columns()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.npz", "whole.npz"]


def test_an_episode_that_is_interrupted_is_played_again(tmp_path: Path) -> None:
    whole, parts = make_recorder(tmp_path / "whole.npz"), make_recorder(tmp_path / "parts.npz")
    looks = iter([False] * 40 + [True] * 10)  # in the midst of an episode
    assert whole.run()
    assert not parts.run(should_stop=lambda: next(looks))
    assert 0 < parts.rows < 40
    assert make_recorder(tmp_path / "parts.npz").run()
    assert np.array_equal(load(tmp_path / "parts.npz").obs, load(tmp_path / "whole.npz").obs)


def test_pieces_are_written_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_PIECE_ROWS", 50)
    recorder = make_recorder(tmp_path / "data.npz")
    pieces: list[int] = []
    recorder.run(on_episode=lambda: pieces.append(len(list(tmp_path.glob("data.npz.partial/piece_*")))))
    assert pieces[-1] >= 3
    assert len(load(tmp_path / "data.npz")) == 300


def test_other_settings_do_not_go_on_with_a_recording(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path / "data.npz")
    recorder.run(should_stop=stop_after(1, recorder))
    with pytest.raises(ConfigError, match=r"other settings \(seed 3, now 4\)"):
        make_recorder(tmp_path / "data.npz", seed=4).run()


def test_steps_and_episodes_are_exactly_those_asked_for(tmp_path: Path) -> None:
    make_recorder(tmp_path / "steps.npz").run()
    make_recorder(tmp_path / "episodes.npz", steps=None, episodes=7).run()
    steps, episodes = load(tmp_path / "steps.npz"), load(tmp_path / "episodes.npz")
    assert len(steps) == 300
    assert steps.truncated.nonzero()[0].tolist() == [299]  # CartPole's other episodes fall
    assert len(episodes.episode_ends) == 7
    assert episodes.terminated[episodes.episode_ends].all()


def test_shares_divide_the_steps(tmp_path: Path) -> None:
    left, right = (
        Player(name, lambda obs, mask, generator, action=action: np.array([action]), share)  # type: ignore[misc]
        for name, action, share in (("left", 0, 1.0), ("right", 1, 2.0))
    )
    make_recorder(tmp_path / "data.npz", players=[left, right], steps=100).run()
    dataset = load(tmp_path / "data.npz")
    assert np.bincount(dataset.actions).tolist() == [33, 67]
    assert 32 in dataset.episode_ends  # where the first one's part ends


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_noise_spreads_numbers_and_replaces_choices(noise: float) -> None:
    generator, obs = np.random.default_rng(0), np.zeros((1, 1), np.float32)
    box, choices = Box(-1.0, 1.0, (1,), np.float32), Discrete(4)
    number = noisy(lambda *_: np.zeros((1, 1), np.float32), noise, box)
    choice = noisy(lambda *_: np.array([3]), noise, choices)
    numbers = np.array([number(obs, None, generator) for _ in range(2_000)])
    drawn = np.array([choice(obs, None, generator) for _ in range(2_000)])
    # Clipped at one deviation, a standard normal has the deviation 0.72; three of four random choices are not 3.
    assert numbers.std() == pytest.approx({0.0: 0.0, 0.1: 0.1, 1.0: 0.72}[noise], abs=0.02)
    assert np.abs(numbers).max() <= 1.0
    assert (drawn != 3).mean() == pytest.approx(0.75 * noise, abs=0.03)


# --- The commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.npz", "data.hdf5", "data.parquet", "data"])
def test_a_run_is_recorded_greedily_in_every_format(name: str, runs: list[Path], tmp_path: Path) -> None:
    result = call("record", "--run", runs[0], "--episodes", 2, "--out", tmp_path / name, "--quiet")
    evaluation = json.loads(call("evaluate", runs[0], "--episodes", 1, "--json").stdout)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    dataset = load(tmp_path / name)
    assert dataset.env_id == CHAIN
    assert dataset.episode_returns().tolist() == [evaluation["mean"]] * 2  # the chain has no chance in it


def test_two_runs_are_mixed(runs: list[Path], tmp_path: Path) -> None:
    shares = ["--share", 3, "--share", 1]
    result = call("record", "--run", runs[0], "--run", runs[1], *shares, "--steps", 80, "-o", tmp_path / "data.npz")
    assert result.exit_code == 0, result.output
    assert 59 in load(tmp_path / "data.npz").episode_ends
    assert "80 steps" in result.stdout


def test_noise_and_exploration_change_what_is_recorded(runs: list[Path], tmp_path: Path) -> None:
    for name, options in {"greedy": [], "noise": ["--noise", 0.5], "explore": ["--explore"]}.items():
        command = ["record", "--run", runs[0], "--steps", 200, "-o", tmp_path / f"{name}.npz", *options]
        assert call(*command).exit_code == 0
    greedy, noise = (load(tmp_path / f"{name}.npz").actions for name in ("greedy", "noise"))
    assert (noise != greedy).any()
    assert len(load(tmp_path / "explore.npz")) == 200


def test_random_actions_are_recorded_and_repeat_themselves(tmp_path: Path) -> None:
    command = ["record", "--random", "--env", "Pendulum-v1", "--steps", 250, "--seed", 5]
    for name in ("a.npz", "b.npz"):
        assert call(*command, "-o", tmp_path / name).exit_code == 0
    first, again = load(tmp_path / "a.npz"), load(tmp_path / "b.npz")
    assert first.episode_ends.tolist() == [199, 249]
    assert np.array_equal(first.obs, again.obs)


def test_a_signal_keeps_what_was_recorded_and_the_same_command_goes_on(tmp_path: Path) -> None:
    options = ["--random", "--env", "Pendulum-v1", "--steps", "10000000", "--out", str(tmp_path / "data.npz")]
    command = [sys.executable, "-m", "rl_training", "record", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress: it is in the midst
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "continue" in out) == (75, True), err
    assert list(tmp_path.glob("data.npz.partial/piece_*.npz"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", 10], "give --run, once or more, or --random"),
        (["--random", "--steps", 10], "--random needs --env"),
        (["--random", "--env", "CartPole-v1"], "give --steps or --episodes"),
        (["--random", "--env", "CartPole-v1", "--steps", 1, "--episodes", 1], "give --steps or --episodes"),
        (["--random", "--env", "CartPole-v1", "--noise", 0.5, "--steps", 10], "takes no --explore, --noise"),
        (["--random", "--env", "NoSuch-v0", "--steps", 10], "unknown environment 'NoSuch-v0'"),
        (["--run", "no/such/run", "--steps", 10], "no/such/run"),
    ],
)
def test_record_refuses_what_does_not_go_together(options: list[object], message: str, tmp_path: Path) -> None:
    assert message in fails("record", *options, "--out", tmp_path / "data.npz")
    assert not list(tmp_path.iterdir())


def test_record_refuses_shares_runs_and_files_that_do_not_fit(runs: list[Path], tmp_path: Path) -> None:
    out = ["--steps", 10, "--out", tmp_path / "data.npz"]
    assert "one --share per --run" in fails("record", "--run", runs[0], "--share", 1, "--share", 2, *out)
    assert "shares must be above 0" in fails("record", "--run", runs[0], "--share", 0, *out)
    assert "--env goes with --random" in fails("record", "--run", runs[0], "--env", "CartPole-v1", *out)
    assert "data.txt" in fails("record", "--run", runs[0], "--steps", 10, "--out", tmp_path / "data.txt")
    (tmp_path / "data.npz").touch()
    assert "exists" in fails("record", "--run", runs[0], *out)


@pytest.fixture
def pendulum(tmp_path: Path) -> Path:
    path = tmp_path / "pendulum.npz"
    assert call("record", "--random", "--env", "Pendulum-v1", "--steps", 500, "-o", path).exit_code == 0
    return path


def test_inspect_tells_what_a_dataset_holds(pendulum: Path, tmp_path: Path) -> None:
    result = call("dataset", "inspect", pendulum, "--png", tmp_path / "picture.png")
    facts = json.loads(call("dataset", "inspect", pendulum, "--json").stdout)
    dataset = load(pendulum)
    assert result.exit_code == 0, result.output
    assert "3 (0 terminated, 3 cut)" in result.stdout
    assert "█" in result.stdout
    assert (facts["rows"], facts["episodes"], facts["env_id"]) == (500, 3, "Pendulum-v1")
    assert facts["returns"]["min"] == dataset.episode_returns().min()
    assert facts["lengths"] == {"mean": pytest.approx(500 / 3), "min": 100, "max": 200}
    assert facts["coverage"][0]["tried"] == 1.0
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_inspect_shows_the_shares_of_choices(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    assert call("record", "--random", "--env", "CartPole-v1", "--steps", 100, "-o", path).exit_code == 0
    facts = json.loads(call("dataset", "inspect", path, "--json").stdout)
    assert facts["coverage"][0]["shares"] == pytest.approx(np.bincount(load(path).actions) / 100)
    assert "shares of each choice" in call("dataset", "inspect", path).stdout


def test_convert_goes_round_through_all_formats_unchanged(pendulum: Path, tmp_path: Path) -> None:
    path = pendulum
    for name in ("a.hdf5", "b.parquet", "c", "d.npz"):
        result = call("dataset", "convert", path, tmp_path / name)
        assert result.exit_code == 0, result.output
        path = tmp_path / name
    assert_identical(read_transitions(path).columns(), read_transitions(pendulum).columns())


def test_dataset_commands_refuse_with_one_message(pendulum: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(pendulum.read_bytes()[:500])
    assert "broken.npz is damaged" in fails("dataset", "inspect", tmp_path / "broken.npz")
    assert "no dataset" in fails("dataset", "inspect", tmp_path / "none.npz")
    assert "ending in .npz" in fails("dataset", "convert", pendulum, tmp_path / "data.csv")
    assert "exists" in fails("dataset", "convert", pendulum, pendulum)
    assert "ending in .png" in fails("dataset", "inspect", pendulum, "--png", tmp_path / "picture.jpg")
