"""`verify`: a segment of a reported run is run again and equals the record, or the first difference is named."""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builders import make_config
from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.results.report import write_report
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import find_runs
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.trainer import resume, train
from rl_training.runtime.verifying import Verification, _starting_points, verify_report
from run_folders import write_run

QUIET = RunOptions(show_progress=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    config = make_config(folder, log_interval=10, eval_interval=20, checkpoint_interval=20, keep_checkpoints=9)
    train(config, QUIET, run_dir=folder / "runs" / "seed0")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "all")
    return tmp_path / "all"


def report_of(folder: Path) -> Path:
    return write_report(find_runs(folder / "runs"), folder / "report.html")


def verify(report: Path, *, seed: int = 0, steps: int = 1000) -> Verification:
    return verify_report(report, seed=seed, steps=steps, options=QUIET)


def edit(file: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, file.read_text(), count=1)
    assert count == 1
    file.write_text(changed)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, words), "--quiet"])


def test_every_segment_equals_the_record(folder: Path) -> None:
    report = report_of(folder)
    before = {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()}
    assert _starting_points(RunRecord(folder / "runs/seed0")) == [0, 20, 40]
    found = [verify(report, seed=seed) for seed in range(6)]
    assert {(each.first, each.last, each.evaluations, each.metrics, each.difference) for each in found} == {
        (0, 60, 3, 6, ""),
        (20, 60, 2, 4, ""),
        (40, 60, 1, 2, ""),
    }
    assert {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()} == before


def test_the_segment_is_limited(folder: Path) -> None:
    found = verify(report_of(folder), steps=10)
    assert found.last == found.first + 10
    assert (found.evaluations, found.metrics, found.difference) == (0, 1, "")
    with pytest.raises(ConfigError, match=r"nothing was recorded between step .*: give a larger --steps"):
        verify(report_of(folder), steps=1)


def test_the_command_says_whether_the_record_is_true(folder: Path) -> None:
    report = report_of(folder)
    result = command(report, "--seed", 0)
    assert (result.exit_code, result.stdout.splitlines()[-1].split(None, 1)) == (0, ["result", "equals the record"])
    edit(folder / "runs/seed0/metrics.jsonl", r'("step": 60, .*"loss": )[^,}]+', r"\g<1>0.125")
    result = command(report_of(folder), "--seed", 0)
    assert result.exit_code == 1
    assert re.search(r"differs: the record of metrics was .*'loss': 0.125.*, is now .*'loss': ", result.stdout)


def test_made_up_evaluations_are_found(folder: Path) -> None:
    run = folder / "runs/seed0"
    edit(run / "eval.jsonl", r'("step": 60, .*"return": )[^,}]+', r"\g<1>99.0")
    assert "the evaluation was (60, [{" in verify(report_of(folder)).difference


def test_a_result_that_was_not_evaluated_is_found(folder: Path) -> None:
    edit(folder / "runs/seed0/result.json", r'("return": )[^,}]+', r"\g<1>99.0")
    assert "the result was [[{" in verify(report_of(folder)).difference


def test_files_that_changed_since_the_report_are_found_without_training(folder: Path) -> None:
    report = report_of(folder)
    edit(folder / "runs/seed0/eval.jsonl", r'"return": [^,}]+', '"return": 99.0')
    assert verify(report).difference.endswith("eval.jsonl is changed since the report was made")
    (folder / "runs/seed0/eval.jsonl").unlink()
    assert verify(report).difference.endswith("eval.jsonl is gone since the report was made")


def test_numbers_that_were_edited_in_the_report_are_found(folder: Path) -> None:
    report = report_of(folder)
    edit(report, r'("eval/return":\{"steps":\[20,40,60\],"values":\[)[^,]+', r"\g<1>99.0")
    assert "the numbers of eval/return in the report are not those of" in verify(report).difference


def test_a_run_folder_that_is_gone_is_named(folder: Path) -> None:
    report = report_of(folder)
    shutil.rmtree(folder / "runs")
    result = command(report)
    assert result.exit_code == 2
    assert f"the run folder {folder / 'runs/seed0'} is gone" in result.stderr


def test_a_resumed_run_is_repeated_from_checkpoints_with_its_present_settings(folder: Path) -> None:
    run = folder / "runs/seed0"
    resume(run, QUIET, total_timesteps=120)
    assert _starting_points(RunRecord(run)) == [80, 100]  # the earlier ones were for a run of 60 steps
    found = verify(report_of(folder))
    assert found.first in (80, 100)
    assert (found.last, found.difference) == (120, "")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match="no checkpoint with its present settings from before step 120 is left"):
        verify(report_of(folder))


def test_a_run_that_does_not_repeat_exactly_is_refused(folder: Path) -> None:
    edit(folder / "runs/seed0/metadata.json", r'"resume": "exact', '"resume": "at the start of an episode')
    with pytest.raises(ConfigError, match="does not resume exactly, so it cannot be repeated: at the start of an"):
        verify(report_of(folder))


def test_a_report_without_finished_runs_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", finished=False)
    with pytest.raises(ConfigError, match="no finished run to repeat: resume one to its end"):
        verify(report_of(tmp_path))
