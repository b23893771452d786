"""Atari runs in several sittings: when they stop, what is kept of them, and curves of their training."""

from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.__main__ import main
from benchmarks.atari import (
    AtariSetting,
    StopAfter,
    first_at,
    median_rate,
    open_agent,
    shares_of,
    training_curve,
    wall_at,
    write_run,
)
from benchmarks.command_line import UsageError
from benchmarks.results import Line, read_lines
from benchmarks.rows.atari import ATARI_ROWS, AtariRow
from benchmarks.summaries import summarize_atari
from benchmarks.summarize import atari_entry, over_games

from rl_training import load_config
from rl_training.envs.envpool_envs import available_cores
from rl_training.experiment.run_dir import is_in_use
from rl_training.results.human_normalized import RANDOM_AND_HUMAN

CARTPOLE = AtariRow(
    config="dqn/cartpole.yaml",
    env_id="CartPole-v1",
    steps=40,
    execution_backend="local_sync",
    eval_interval=20,
    final_episodes=7,
    window=80,
)


@pytest.fixture
def small_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that runs in a second."""
    monkeypatch.setitem(ATARI_ROWS, "dqn-cartpole", CARTPOLE)


def play(folder: Path, *options: str) -> list[Line]:
    """Run the small row and return its lines."""
    words = [
        "atari",
        "dqn-cartpole",
        "--device",
        "cpu",
        "--steps",
        "40",
        "--run",
        str(folder / "runs"),
        "--out",
        str(folder),
    ]
    assert main([*words, "--eval-episodes", "1", *options]) == 0
    return read_lines(folder / "atari" / "dqn-cartpole.jsonl")


@pytest.mark.parametrize("name", ATARI_ROWS)
def test_a_row_is_an_algorithm_on_a_game_that_its_config_may_share_with_others(name: str) -> None:
    row = ATARI_ROWS[name]
    config = load_config(row.config)
    assert config.total_timesteps == row.steps
    (game,) = (game for game in RANDOM_AND_HUMAN if row.env_id in (f"ALE/{game}-v5", f"{game}NoFrameskip-v4"))
    assert name == f"{config.algo}-{game.lower()}"
    assert config.env_id == row.env_id or row.steps == 100_000  # the games of Atari 100k share a config
    assert row.steps % row.eval_interval == row.frames % row.window == 0


def test_atari_100k_is_scored_on_four_games_over_100_episodes() -> None:
    for algo in ("bbf", "dreamer"):
        rows = [row for name, row in ATARI_ROWS.items() if name.startswith(f"{algo}-")]
        assert sorted(row.env_id.removesuffix("NoFrameskip-v4") for row in rows) == [
            "Boxing",
            "Breakout",
            "Freeway",
            "Pong",
        ]
        assert {(row.frames, row.final_episodes, len(row.published)) for row in rows} == {(400_000, 100, 3)}
        assert len({row.config for row in rows}) == 1


@pytest.mark.process
@pytest.mark.usefixtures("small_row")
def test_each_seed_has_its_run_which_the_same_command_continues(tmp_path: Path) -> None:
    play(tmp_path)
    play(tmp_path, "--seeds", "1")
    first, second = play(tmp_path)  # seed 0 again, which has nothing left to do
    assert (second["seed"], second["step"], len(second["sittings"])) == (0, 40, 1)
    assert (first["seed"], first["step"]) == (1, 40)
    assert first["final"]["returns"] != second["final"]["returns"]
    assert len(list((tmp_path / "runs" / "dqn-cartpole").glob("*__seed*"))) == 2


@pytest.mark.process
@pytest.mark.usefixtures("small_row")
def test_a_row_decides_on_its_episodes_its_evaluations_and_its_curve(tmp_path: Path) -> None:
    (line,) = play(tmp_path)
    assert len(line["final"]["returns"]) == 7
    assert line["final"]["mean_return"] == fmean(line["final"]["returns"])
    assert line["curve"]["step"] == [20, 40]
    assert line["training_curve"]["frames"][:1] == [80]  # 20 steps of 4 frames


def line(seed: int, final: float | None) -> Line:
    """Return the facts of a run that a summary reads."""
    times = {"wall_s": 1.0, "training_steps_per_s": 1.0}
    played = None if final is None else {"mean_return": final}
    return {"row": "", "seed": seed, "step": 100_000, "finished": True, "final": played, **times}


def test_a_summary_compares_the_final_policy_with_random_play_and_a_human() -> None:
    # Boxing (6.1 - 0.1) / 12
    played, waiting = summarize_atari([line(0, 6.1), line(1, None)], "BoxingNoFrameskip-v4")
    assert (played["final"], played["human_normalized"]) == (6.1, pytest.approx(0.5))
    assert (waiting["final"], waiting["human_normalized"]) == (None, None)


def test_games_of_a_config_are_summarised_together_over_the_seeds_that_played_all() -> None:
    # Boxing 0 and 0.5, Freeway 1 and 1, Pong 0 and 1: seed 2 played no Freeway. Mean of six 3.5 / 6; medians of the
    # means 0.25, 1 and 0.5; the interquartile mean leaves out one of six at each end: (0 + 0.5 + 1 + 1) / 4.
    scores = {
        "bbf-boxing": {0: 0.1, 1: 6.1, 2: 99.0},
        "bbf-freeway": {0: 29.6, 1: 29.6},
        "bbf-pong": {0: -20.7, 1: 14.6, 2: 20.0},
        "dqn-pong": {0: 14.6},
    }
    entries = {
        name: atari_entry(name, [line(seed, score) for seed, score in by_seed.items()])
        for name, by_seed in scores.items()
    }
    (config, found), *others = over_games(entries).items()
    assert (config, others) == ("bbf/atari100k.yaml", [])  # one game of a config is no aggregate
    ours = found["ours"]
    assert (ours["rows"], ours["seeds"]) == (3, [0, 1])
    assert ours["mean"] == pytest.approx(3.5 / 6)
    assert ours["median"] == pytest.approx(0.5)
    assert ours["iqm"] == pytest.approx(2.5 / 4)


@pytest.mark.usefixtures("small_row")
def test_a_seed_among_the_changes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--set seed=1: give --seeds 1"):
        play(tmp_path, "--set", "seed=1")


def test_a_run_plays_the_game_of_its_row_with_evaluations_on_all_cores(tmp_path: Path) -> None:
    setting = AtariSetting(name="bbf-freeway", run=tmp_path, seconds=1.0, seed=3, device="cpu")
    config = open_agent(setting)[0].config
    assert (config.algo, config.env_id, config.seed) == ("bbf", "FreewayNoFrameskip-v4", 3)
    assert (config.eval_envs, config.eval_interval) == (available_cores(), 20_000)


@pytest.mark.parametrize(("loop", "stops_at_once"), [("on_policy", False), ("off_policy", True)])
def test_atari_stops_between_rollouts_where_there_are_any(loop: str, stops_at_once: bool) -> None:
    stop = StopAfter(seconds=-1.0)
    config = SimpleNamespace(spec=SimpleNamespace(loop=loop))
    run: Any = SimpleNamespace(config=config, memory=[1], stop_reason="", interrupted=False)
    stop.on_step(run)
    assert bool(run.stop_reason) == stops_at_once
    run.memory = []
    stop.on_step(run)
    assert run.stop_reason
    assert run.interrupted


def test_a_sitting_replaces_the_line_of_its_run_and_keeps_the_others(tmp_path: Path) -> None:
    def results(started: str, seed: int, step: int) -> dict[str, Any]:
        curve = [{"frames": 1_000_000, "complete": True, "mean_return": 3.0}] if step > 1 else []
        return {"seed": seed, "sittings": [{"started": started}], "step": step, "training_curve": curve, "curve": []}

    out = tmp_path / "iqn-pong.jsonl"
    for run in (("first", 0, 1), ("second", 0, 1), ("first", 1, 1), ("first", 0, 2)):
        write_run(out, results(*run))
    lines = read_lines(out)
    found = [(line["sittings"][0]["started"], line["seed"], line["step"]) for line in lines]
    assert found == [("second", 0, 1), ("first", 1, 1), ("first", 0, 2)]
    assert lines[2]["training_curve"] == {"frames": [1_000_000], "complete": [True], "mean_return": [3.0]}


def test_processes_that_write_lines_of_a_row_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def read(path: Path) -> list[Line]:
        found.append(is_in_use(path.parent))
        return []

    monkeypatch.setattr("benchmarks.atari.read_lines", read)
    write_run(
        tmp_path / "bbf-pong.jsonl", {"seed": 0, "sittings": [{"started": "now"}], "training_curve": [], "curve": []}
    )
    assert found == [True]
    assert not is_in_use(tmp_path)


def test_several_seeds_of_several_rows_have_a_process_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["atari", "bbf-pong", "dqn-pong", "--seeds", "0,2", "--steps", "9"]
    started: list[list[str]] = []

    def start(command: list[str], **kwargs: Any) -> Any:
        started.append(command[command.index("atari") :])
        return SimpleNamespace(pid=1, wait=lambda: 0)

    monkeypatch.setattr("sys.argv", ["benchmarks", *words])
    monkeypatch.setattr("benchmarks.atari.subprocess.Popen", start)
    assert main([*words, "--run", str(tmp_path)]) == 0
    options = ["--seeds", "0,2", "--steps", "9", "--seeds"]  # the last --seeds counts
    assert started == [["atari", name, *options, seed] for name in ("bbf-pong", "dqn-pong") for seed in ("0", "2")]
    assert "--- dqn-pong seed 2: exit code 0" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "bbf-pong").iterdir()) == ["seed0.txt", "seed2.txt"]


def test_cores_are_dealt_out_evenly_or_not_at_all() -> None:
    assert shares_of([2, 3, 5, 7, 8], 2) == [[2, 3], [5, 7, 8]]
    assert shares_of([0, 1], 3) == [(), (), ()]


def test_training_returns_are_averaged_per_window_of_frames() -> None:
    # With 4 frames a step, a million frames are 250,000 steps; an episode that ends at their last step is theirs.
    episodes = [{"step": step, "return": ret} for step, ret in ((100_000, -21), (250_000, -19), (250_001, 3))]
    metrics = [{"step": 250_000, "wall_s": 40.0}, {"step": 300_000, "wall_s": 50.0}]
    assert training_curve(episodes, metrics, 4, 1_000_000) == [
        {"frames": 1_000_000, "complete": True, "wall_s": 40.0, "episodes": 2, "mean_return": -20.0},
        {"frames": 2_000_000, "complete": False, "wall_s": 50.0, "episodes": 1, "mean_return": 3.0},
    ]
    assert training_curve([], [], 4, 1_000_000) == []


def test_median_rate_leaves_out_the_interval_with_an_evaluation() -> None:
    metrics = [{"gradient_step": 10 * i, "wall_s": wall} for i, wall in enumerate([0.0, 1.0, 2.0, 9.0, 10.0])]
    assert median_rate(metrics, "gradient_step") == 10.0
    assert median_rate(metrics[:1], "gradient_step") is None


def test_atari_curve_names_the_first_evaluation_at_a_target() -> None:
    metrics = [{"step": 10, "wall_s": 1.0}, {"step": 20, "wall_s": 2.5}]
    curve = [{"step": 10, "wall_s": 1.0, "mean_return": 3.0}, {"step": 20, "wall_s": 2.5, "mean_return": 18.0}]
    assert (wall_at(metrics, 15), wall_at(metrics, 20), wall_at(metrics, 5)) == (1.0, 2.5, None)
    assert first_at(curve, 18.0) == {"step": 20, "wall_s": 2.5}
    assert first_at(curve, 20.9) is None
