"""Atari runs in several sittings: when they stop, what is kept of them, and curves of their training."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.atari import StopAfter, first_at, median_rate, shares_of, training_curve, wall_at, write_run
from benchmarks.results import read_lines


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
    def results(started: str, step: int) -> dict[str, Any]:
        curve = [{"frames": 1_000_000, "complete": True, "mean_return": 3.0}] if step > 1 else []
        return {"sittings": [{"started": started}], "step": step, "training_curve": curve, "curve": []}

    out = tmp_path / "iqn-pong.jsonl"
    for started, step in (("first", 1), ("second", 1), ("first", 2)):
        write_run(out, results(started, step))
    lines = read_lines(out)
    assert [(line["sittings"][0]["started"], line["step"]) for line in lines] == [("second", 1), ("first", 2)]
    assert lines[1]["training_curve"] == {"frames": [1_000_000], "complete": [True], "mean_return": [3.0]}


def test_cores_are_dealt_out_evenly_or_not_at_all() -> None:
    assert shares_of([2, 3, 5, 7, 8], 2) == [[2, 3], [5, 7, 8]]
    assert shares_of([0, 1], 3) == [(), (), ()]


def test_training_returns_are_averaged_per_million_frames() -> None:
    # With 4 frames a step, a million frames are 250,000 steps; an episode that ends at their last step is theirs.
    episodes = [{"step": step, "return": ret} for step, ret in ((100_000, -21), (250_000, -19), (250_001, 3))]
    metrics = [{"step": 250_000, "wall_s": 40.0}, {"step": 300_000, "wall_s": 50.0}]
    assert training_curve(episodes, metrics, 4) == [
        {"frames": 1_000_000, "complete": True, "wall_s": 40.0, "episodes": 2, "mean_return": -20.0},
        {"frames": 2_000_000, "complete": False, "wall_s": 50.0, "episodes": 1, "mean_return": 3.0},
    ]
    assert training_curve([], [], 4) == []


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
