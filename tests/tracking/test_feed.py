"""The feed: one point per step, complete and in order, from files that grow, are truncated, or come from elsewhere."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.results.run_record import Status
from rl_training.tracking.feed import Feed, Point

SETTINGS = {"algo": "dqn", "eval_episodes": 2, "eval_interval": 20, "num_envs": 1, "total_timesteps": 100}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    return tmp_path


def metrics(step: int, wall_s: float = 1.0, **values: float) -> dict[str, Any]:
    return {"step": step, "gradient_step": step // 2, "wall_s": wall_s, "steps_per_s": 9.0, "metrics": values}


def episode(step: int, number: int, ret: float) -> dict[str, Any]:
    return {"step": step, "episode": number, "seed": 7, "return": ret, "length": 4}


def append(path: Path, *records: object) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def steps(feed: Feed, status: Status = "running", after: int = -1) -> list[int]:
    return [point.step for point in feed.points(status, after=after)]


def test_metrics_and_evaluation_of_a_step_are_one_point(run: Path) -> None:
    append(run / "metrics.jsonl", metrics(20, 3.0, loss=0.5, **{"my/x": 7.0}))
    append(run / "eval.jsonl", episode(20, 0, 1.0), episode(20, 1, 4.0))
    append(run / "metrics.jsonl", {"step": 20, "gradient_step": 10, "wall_s": 4.0, "metrics": {"my/y": 8.0}})
    (run / "metadata.json").write_text(json.dumps({"starts": [{"started": "2026-01-02T00:00:00+00:00"}]}))
    values = {
        "train/loss": 0.5,
        "my/x": 7.0,
        "my/y": 8.0,
        "gradient_step": 10.0,
        "time/wall_s": 4.0,
        "speed/steps_per_s": 9.0,
        "eval/return_mean": 2.5,
        "eval/return_std": 1.5,
        "eval/return_min": 1.0,
        "eval/return_max": 4.0,
        "eval/length_mean": 4.0,
    }
    start = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    assert Feed(run).points("finished", after=-1) == [Point(20, values, start + 4.0)]


def test_held_out_evaluations_are_points_too(run: Path) -> None:
    append(run / "eval.jsonl", {"step": 20, "held_out": {"loss": 0.25}})
    (point,) = Feed(run).points("interrupted", after=-1)
    assert point.values == {"eval/loss": 0.25}


def test_a_step_waits_for_its_evaluation(run: Path) -> None:
    feed = Feed(run)
    append(run / "metrics.jsonl", metrics(10), metrics(20))
    assert steps(feed) == [10]  # no evaluation is due at 10
    append(run / "eval.jsonl", episode(20, 0, 1.0))
    assert steps(feed, after=10) == []
    append(run / "eval.jsonl", episode(20, 1, 1.0))
    assert steps(feed, after=10) == []  # a callback may still log something at this step
    append(run / "metrics.jsonl", metrics(30))
    assert steps(feed, after=10) == [20, 30]


def test_evaluations_are_due_whenever_the_envs_cross_the_interval(run: Path) -> None:
    (run / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, "num_envs": 8}))
    append(run / "metrics.jsonl", metrics(16), metrics(24))
    assert steps(Feed(run)) == [16]


@pytest.mark.parametrize(("status", "expected"), [("finished", [20]), ("interrupted", []), ("failed", [])])
def test_a_resume_repeats_an_evaluation_that_was_interrupted(run: Path, status: Status, expected: list[int]) -> None:
    append(run / "metrics.jsonl", metrics(20))
    append(run / "eval.jsonl", episode(20, 0, 1.0))
    assert steps(Feed(run), status) == expected
    append(run / "eval.jsonl", episode(20, 1, 1.0))
    assert steps(Feed(run), status) == [20]


def test_an_unfinished_line_is_read_when_it_is_whole(run: Path) -> None:
    text = json.dumps(metrics(11, loss=2.0)) + "\n"
    feed, file = Feed(run), run / "metrics.jsonl"
    append(file, metrics(10))
    with file.open("a") as log:
        log.write(text[:30])
    assert steps(feed) == [10]
    with file.open("a") as log:
        log.write(text[30:])
    (point,) = feed.points("running", after=10)
    assert (point.step, point.values["train/loss"]) == (11, 2.0)


@pytest.mark.parametrize("more", [[], [13], [13, 14, 15, 16]])  # shorter than before, as long, longer
def test_a_truncated_file_is_read_again(more: list[int], run: Path) -> None:
    feed, file = Feed(run), run / "metrics.jsonl"
    append(file, metrics(10), metrics(11), metrics(12), metrics(13))
    assert steps(feed) == [10, 11, 12, 13]
    file.unlink()
    append(file, metrics(10), metrics(11), metrics(12, wall_s=5.0), *(metrics(step, wall_s=6.0) for step in more))
    assert steps(feed, after=11) == [12, *more]


def test_what_is_no_record_is_left_out(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n[1]\n{\n" + b"[" * 5_000 + b"\n")
    odd = {"a": "text", "b": None, "c": [1], "d": float("nan"), "e": 10**400, "f": 1.5}
    append(run / "metrics.jsonl", {"step": 2**63, "metrics": {}}, {"step": True}, {"step": -1}, {"metrics": {}}, "x")
    append(run / "metrics.jsonl", {"step": 5, "metrics": odd}, {"step": 6, "metrics": 7})
    append(run / "eval.jsonl", {"step": 5, "return": "high", "length": 1})
    (point,) = Feed(run).points("finished", after=-1)
    assert (point.step, point.values) == (5, {"train/f": 1.5})
