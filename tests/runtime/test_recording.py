"""`record` writes what policies do, the same after an interruption; `dataset` shows and converts what is there."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from builders import make_config
from rl_training.commands import messages
from rl_training.commands import record as record_command
from rl_training.datasets.files import read_transitions
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.envs.factory import make_env_factory
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import write_pointer
from rl_training.runtime import recording
from rl_training.runtime.policies import noisy_policy, random_policy
from rl_training.runtime.recording import Plan, Player, Recorder
from rl_training.runtime.trainer import RunOptions, train
from state_comparison import assert_identical
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
    players = [Player("random", random_policy(Discrete(2)))]
    plan = Plan(**{"players": players, "seed": 3, "steps": 300, "env_id": "CartPole-v1", **changes})
    return Recorder(plan, make_env_factory("CartPole-v1"), out)


def stop_after(episodes: int, recorder: Recorder) -> Callable[[], bool]:
    return lambda: recorder.episodes >= episodes


def load(path: Path) -> TransitionDataset:
    return TransitionDataset.from_transitions(read_transitions(path))


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
    looks = iter([False] * 40 + [True] * 10)  # in the middle of an episode
    assert whole.run()
    assert not parts.run(should_stop=lambda: next(looks))
    assert 0 < parts.rows < 40
    assert make_recorder(tmp_path / "parts.npz").run()
    assert np.array_equal(load(tmp_path / "parts.npz").obs, load(tmp_path / "whole.npz").obs)


def test_what_a_kill_leaves_half_done_does_not_matter(tmp_path: Path) -> None:
    """Killed after a piece was written and before that was noted; then after the whole was, before it had its name."""
    whole, parts = make_recorder(tmp_path / "whole.npz"), make_recorder(tmp_path / "parts.npz")
    assert whole.run()
    assert not parts.run(should_stop=stop_after(2, parts))
    folder = tmp_path / "parts.npz.partial"
    shutil.copy(folder / "piece_00000.npz", folder / "piece_00001.npz")
    shutil.copy(tmp_path / "whole.npz", folder / "parts.npz")
    assert make_recorder(tmp_path / "parts.npz").run()
    assert_identical(
        read_transitions(tmp_path / "parts.npz").columns(), read_transitions(tmp_path / "whole.npz").columns()
    )
    assert not folder.exists()


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
        Player(name, lambda seed, action=action: lambda obs, mask: np.array([action]), share)  # type: ignore[misc]
        for name, action, share in (("left", 0, 1.0), ("right", 1, 2.0))
    )
    make_recorder(tmp_path / "data.npz", players=[left, right], steps=100).run()
    dataset = load(tmp_path / "data.npz")
    assert np.bincount(dataset.actions).tolist() == [33, 67]
    assert 32 in dataset.episode_ends  # where the first one's part ends


def test_shares_are_rounded_and_together_all_that_is_asked_for() -> None:
    policy = random_policy(Discrete(2))
    plan = Plan(
        players=[Player(name, policy, share) for name, share in (("a", 2.0), ("b", 0.5), ("c", 0.5))], seed=0, steps=100
    )
    assert plan.amounts == [67, 16, 17]  # up to 66.7, 83.3 and 100


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_noise_spreads_numbers_and_replaces_choices(noise: float) -> None:
    obs, box, choices = np.zeros((1, 1), np.float32), Box(-1.0, 1.0, (1,), np.float32), Discrete(4)
    number = noisy_policy(lambda seed: lambda obs, mask: np.zeros((1, 1), np.float32), noise, box)(0)
    choice = noisy_policy(lambda seed: lambda obs, mask: np.array([3]), noise, choices)(0)
    numbers = np.array([number(obs, None) for _ in range(2_000)])
    drawn = np.array([choice(obs, None) for _ in range(2_000)])
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


@pytest.mark.parametrize(
    ("epsilon", "options", "changed"),
    [(0.0, ["--noise", 0.5], True), (0.5, ["--explore"], True), (0.0, ["--explore"], False)],
)
def test_noise_and_exploration_at_the_checkpoints_step_change_what_is_recorded(
    epsilon: float, options: list[object], changed: bool, tmp_path: Path
) -> None:
    config = make_config(tmp_path / "runs", algo_kwargs={"epsilon_end": epsilon})
    run = train(config, RunOptions(show_progress=False)).run_dir
    for name, more in {"greedy": [], "other": options}.items():
        assert call("record", "--run", run, "--steps", 200, "-o", tmp_path / f"{name}.npz", *more).exit_code == 0
    greedy, other = (load(tmp_path / f"{name}.npz").actions for name in ("greedy", "other"))
    assert (other != greedy).any() == changed


def test_the_best_checkpoints_are_recorded_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(make_config(tmp_path / "runs", checkpoint_interval=30), RunOptions(show_progress=False)).run_dir
    write_pointer(run / "checkpoints", "best", "step_000000030")
    played = []
    monkeypatch.setattr(record_command, "_record", lambda recorder: played.append(recorder.plan.players[0].name))
    for options in ([], ["--best"]):
        call("record", "--run", run, "--steps", 20, "-o", tmp_path / "data.npz", *options)
    assert [Path(name).name for name in played] == ["step_000000060", "step_000000030"]


class Die(BaseException):
    """As a kill: nobody catches it."""


def interrupted(command: list[object], episodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a recording after this many episodes, each of which was on the disk."""
    with monkeypatch.context() as patch:
        left = iter(range(episodes - 1))

        def report_episodes(recorder: Recorder) -> Callable[[], None]:
            def on_episode() -> None:
                if next(left, None) is None:
                    raise Die

            return on_episode

        patch.setattr(recording, "_PIECE_ROWS", 1)
        patch.setattr(record_command, "_report_episodes", report_episodes)
        patch.setattr(messages, "exits_are_errors", contextlib.nullcontext)  # which would report it as the user's
        with pytest.raises(Die):
            call(*command)


BOX_ANSWERS = {"env_id": "rl_training/Identity-v0", "env_kwargs": {"actions": "box"}}
# Policies that draw when they explore (and one that draws when it does not), and the options with which they do.
DRAWING: dict[str, tuple[dict[str, Any], list[str]]] = {
    "epsilon": ({"algo": "dqn", "algo_kwargs": {"epsilon_end": 0.5}}, ["--explore"]),
    "noisy weights": ({"algo": "noisy_dqn"}, ["--explore"]),
    "samples": ({"algo": "ppo"}, ["--explore"]),
    "sampled evaluation": ({"algo": "ppo", "algo_kwargs": {"sampled_evaluation": True}}, []),
    "a squashed actor": ({"algo": "sac", **BOX_ANSWERS}, ["--explore"]),
    "a recurrent policy": ({"algo": "dreamer", "algo_kwargs": {"train_ratio": 4.0}}, ["--explore"]),
    "the policy of IQL": ({"algo": "iql", **BOX_ANSWERS}, ["--explore"]),
    "additional noise": ({"algo": "iql", **BOX_ANSWERS}, ["--explore", "--noise", "0.3"]),
}


@pytest.mark.parametrize("case", DRAWING)
def test_what_policies_draw_goes_on_where_it_stopped(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, options = DRAWING[case]
    run = train(make_config(tmp_path / "runs", **changes), RunOptions(show_progress=False)).run_dir
    command = ["record", "--run", run, "--episodes", 8, "--seed", 2, *options, "--out"]
    assert call(*command, tmp_path / "whole.npz").exit_code == 0
    interrupted([*command, tmp_path / "parts.npz"], 3, monkeypatch)
    result = call(*command, tmp_path / "parts.npz")
    assert "continuing after" in result.stderr
    whole, parts = (read_transitions(tmp_path / f"{name}.npz").columns() for name in ("whole", "parts"))
    assert_identical(parts, whole)
    assert len(np.unique(load(tmp_path / "whole.npz").actions)) > 1


def test_a_mix_that_dies_in_its_second_part_goes_on_to_the_same_file(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = ["--run", runs[0], "--run", runs[1], "--share", 1, "--share", 3, "--explore", "--noise", 0.5]
    command = ["record", *players, "--episodes", 12, "--out"]
    assert call(*command, tmp_path / "whole").exit_code == 0
    for episodes in (5, 2):  # of the second part both times
        interrupted([*command, tmp_path / "parts"], episodes, monkeypatch)
    assert call(*command, tmp_path / "parts").exit_code == 0
    assert_identical(read_transitions(tmp_path / "parts").columns(), read_transitions(tmp_path / "whole").columns())
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.process
def test_a_killed_recording_goes_on_to_the_same_file(tmp_path: Path) -> None:
    command = ["record", "--random", "--env", "Pendulum-v1", "--steps", 20_000, "--out"]
    code = "import rl_training.runtime.recording as r; r._PIECE_SECONDS = 0.0; import rl_training.cli as c; c.main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, command), str(tmp_path / "k.npz")], env=environment
    )
    while not (tmp_path / "k.npz.partial" / "piece_00002.npz").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (tmp_path / "k.npz").exists()
    for name in ("k.npz", "whole.npz"):
        assert call(*command, tmp_path / name, "--quiet").exit_code == 0
    assert_identical(read_transitions(tmp_path / "k.npz").columns(), read_transitions(tmp_path / "whole.npz").columns())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.npz", "whole.npz"]


def test_random_actions_are_recorded_and_repeat_themselves(tmp_path: Path) -> None:
    command = ["record", "--random", "--env", "Pendulum-v1", "--steps", 250, "--seed", 5]
    for name in ("a.npz", "b.npz"):
        assert call(*command, "-o", tmp_path / name).exit_code == 0
    first, again = load(tmp_path / "a.npz"), load(tmp_path / "b.npz")
    assert first.episode_ends.tolist() == [199, 249]
    assert np.array_equal(first.obs, again.obs)
    assert not np.array_equal(first.obs[0], first.obs[200])  # episodes differ in where they begin and what is done
    assert not np.array_equal(first.actions[:50], first.actions[200:])


@pytest.mark.process
def test_a_signal_keeps_what_was_recorded_and_the_same_command_goes_on(tmp_path: Path) -> None:
    options = ["--random", "--env", "Pendulum-v1", "--steps", "10000000", "--out", str(tmp_path / "data.npz")]
    command = [sys.executable, "-m", "rl_training", "record", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress: the recording is running
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


def test_inspect_shows_what_a_dataset_holds(pendulum: Path, tmp_path: Path) -> None:
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


def write_npz(path: Path, **changes: Any) -> Path:
    """Four rows, two episodes, no spaces declared."""
    numbers = np.arange(4)
    columns = {
        "observations": np.zeros((4, 3), np.float32),
        "next_observations": np.zeros((4, 3), np.float32),
        "actions": numbers,
        "rewards": numbers * 1.0,
        "terminations": numbers == 1,
        "truncations": numbers < 0,
    }
    np.savez(path, **{**columns, **changes})
    return path


def test_inspect_distinguishes_an_open_end_from_a_cut(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "data.npz")
    assert "2 (1 terminated, 0 cut, 1 without an end)" in call("dataset", "inspect", path).stdout
    cut = write_npz(tmp_path / "cut.npz", truncations=np.arange(4) == 3)
    assert "2 (1 terminated, 1 cut)" in call("dataset", "inspect", cut).stdout


def test_inspect_counts_the_choices_nobody_made(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "data.npz", actions=np.array([1, 1, 2, 25]))
    shown = call("dataset", "inspect", path).stdout
    assert "3 of 26 tried  0: 0.0 %  1: 50.0 %  2: 25.0 %" in shown
    assert "and 6 more" in shown
    facts = json.loads(call("dataset", "inspect", path, "--json").stdout)
    assert facts["coverage"][0]["shares"] == [0.0, 0.5, 0.25, *[0.0] * 22, 0.25]


@pytest.mark.parametrize("case", ["one row", "equal returns", "returns that differ by rounding", "a range of actions"])
def test_inspect_draws_the_smallest_datasets(case: str, tmp_path: Path) -> None:
    rows = 1 if case == "one row" else 4
    ends = np.ones(4, np.bool_)
    rewards = {"equal returns": np.zeros(4), "returns that differ by rounding": 100.0 + 1e-14 * np.arange(4)}
    actions = np.full((4, 2), 0.3, np.float32) + np.float32(1e-8) * np.arange(4)[:, None]
    path = write_npz(
        tmp_path / "all.npz", terminations=ends, actions=actions, rewards=rewards.get(case, np.arange(4.0))
    )
    np.savez(tmp_path / "data.npz", **{name: array[:rows] for name, array in np.load(path).items()})
    result = call("dataset", "inspect", tmp_path / "data.npz", "--png", tmp_path / "data.png")
    assert result.exit_code == 0, result.output
    assert "█" in result.stdout
    assert (tmp_path / "data.png").stat().st_size > 1_000


def test_the_named_environment_declares_what_a_file_does_not(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "data.npz", actions=np.full((4, 1), 1.7))
    assert "name the environment" in fails("dataset", "inspect", path)
    shown = call("dataset", "inspect", path, "--env", "Pendulum-v1").stdout
    assert "mean +0.85 ± 0.00" in shown
    assert call("dataset", "convert", path, tmp_path / "data.hdf5", "--env", "Pendulum-v1").exit_code == 0
    converted = load(tmp_path / "data.hdf5")
    assert (converted.env_id, converted.actions[0, 0]) == ("Pendulum-v1", np.float32(0.85))
    assert "observations must have shape (4, 4)" in fails("dataset", "inspect", path, "--env", "CartPole-v1")


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npz(tmp_path / "data.npz")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = fails("dataset", "inspect", path, "--png", tmp_path / "data.png")
    assert '--png needs the package matplotlib: pip install "rl-training[offline]"' in message


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
