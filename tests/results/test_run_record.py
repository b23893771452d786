"""A run folder is read as it is: finished, unfinished, growing, damaged."""

import fcntl
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.results.run_record import RunRecord
from run_folders import write_run


def test_a_run_has_score_steps_and_records(tmp_path: Path) -> None:
    run = RunRecord(write_run(tmp_path / "run", returns=(1.0, 4.0)))
    assert (run.score, run.steps, run.wall_s, run.status) == (4.0, 200, 4.0, "finished")
    assert run.records["eval/return"] == {100: 1.0, 200: 4.0}
    assert run.records["train/loss"] == {100: 1.0, 200: 0.5}
    assert run.positions([50, 150], "gradient_step") == pytest.approx([25.0, 75.0])
    assert run.positions([100], "wall_s") == pytest.approx([2.0])


def test_settings_that_would_control_a_terminal_are_text(tmp_path: Path) -> None:
    hostile: dict[str, Any] = {"env_id": "\x1b[2J\nx", "algo_kwargs": {"note\x07": "a\rb", "plain": "ü ✓"}}
    run = RunRecord(write_run(tmp_path / "run", **hostile))
    assert run.env_id == r"\x1b[2J\nx"
    assert {name: text for name, text in run.settings.items() if name.startswith("algo_kwargs")} == {
        r"algo_kwargs.note\x07": r"a\rb",
        "algo_kwargs.plain": "ü ✓",
    }


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", returns=(1.0, 2.0), finished=False)
    with (path / "eval.jsonl").open("a") as file:
        file.write('{"step": 300, "episode": 0, "return": 9.0, "length": 10}\n{"step": 300, "epis')
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 250, "metrics": {"lo')
    run = RunRecord(path)
    assert run.score == 2.0  # the evaluation that is being written does not count yet
    assert (run.steps, run.status) == (200, "interrupted")


@pytest.mark.process
def test_the_status_tells_running_from_interrupted_and_failed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", finished=False)
    lock = path / ".lock"
    lock.touch()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # holds the lock as a training process does
        with lock.open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(write_end, b"x")
            signal.pause()
        os._exit(0)
    os.read(read_end, 1)
    try:
        assert RunRecord(path).status == "running"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert RunRecord(path).status == "interrupted"
    (path / "crash").mkdir()
    (path / "crash" / "traceback.txt").touch()
    assert RunRecord(path).status == "failed"


def test_a_run_that_was_started_is_interrupted_also_without_a_record(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", returns=(), finished=False)
    assert RunRecord(path).status == "not started"
    (path / "metadata.json").write_text('{"starts": [{"step": 0}]}')
    assert RunRecord(path).status == "interrupted"


def test_a_pipe_in_place_of_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", finished=False)
    os.mkfifo(path / ".lock")
    assert RunRecord(path).status == "interrupted"


HUGE = 10**400  # a float has no such number


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 300, "metrics": ' + "[" * 100_000,
        f'{{"step": {HUGE}, "metrics": {{"loss": 1.0}}}}',
        '{"step": -300, "metrics": {"loss": 1.0}}',
        '{"step": true, "metrics": {"loss": 1.0}}',
    ],
    ids=["deep", "huge", "negative", "switch"],
)
def test_a_record_that_no_run_writes_is_left_out(line: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", returns=(1.0, 4.0), finished=False)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    run = RunRecord(path)
    assert run.records["train/loss"] == {100: 1.0, 200: 0.5}
    assert run.steps == 200


def test_numbers_that_cannot_be_drawn_are_infinite_and_have_no_place(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", returns=(1.0, 4.0))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 300, "wall_s": [1], "steps_per_s": {HUGE}, "metrics": {{"loss": -{HUGE}}}}}\n')
        file.write('{"step": 400, "wall_s": Infinity, "metrics": {"loss": 1e305, "accuracy": NaN}}\n')
    run = RunRecord(path)
    assert run.records["train/loss"] == {100: 1.0, 200: 0.5, 300: -math.inf, 400: math.inf}
    assert math.isnan(run.records["train/accuracy"][400])
    assert run.records["speed/steps_per_s"][300] == math.inf
    assert run.positions([100, 200], "wall_s") == pytest.approx([2.0, 4.0])


def test_a_time_that_is_none_is_not_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", returns=(1.0, 4.0))
    (path / "result.json").write_text('{"step": 200, "wall_s": 1e200, "eval": []}')
    assert RunRecord(path).wall_s == 0.0


def test_settings_are_not_read_from_a_file_of_any_size(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    with (path / "config.yaml").open("a") as file:
        file.truncate(100 * 2**30)  # without content: it takes no space on the disk
    with pytest.raises(ConfigError, match="more than the 1,048,576 of any such file"):
        RunRecord(path).config  # noqa: B018


def test_damaged_files_are_harmless(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "result.json").write_text("[1, 2")
    (path / "eval.jsonl").write_bytes(b"\xff\xfe\n[]\n3\nnull\n" + (path / "eval.jsonl").read_bytes())
    run = RunRecord(path)
    assert run.status == "interrupted"
    assert run.score == 3.0
    (path / "config.yaml").write_text("just text")
    with pytest.raises(ConfigError, match=r"config.yaml does not hold the settings of a run"):
        assert RunRecord(path).config
    (path / "metrics.jsonl").unlink()
    os.mkfifo(path / "metrics.jsonl")
    assert RunRecord(path).metrics == []
