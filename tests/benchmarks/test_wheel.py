"""The check of the wheel: what it runs, and that a failure is a line of the results and an exit code."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.command_line import UsageError
from benchmarks.results import read_lines

from benchmarks import wheel

PASSED = {"interpreter": "python3.11", "outcome": "passed", "versions": {"python": "3.11.7", "rl-training": "0.3.0"}}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "rl_training-0.3.0-py3-none-any.whl"
    file.write_text("")
    monkeypatch.setattr(wheel, "build_wheel", lambda folder: file)
    monkeypatch.setattr(wheel, "describe_run", dict)
    return file


@pytest.mark.process
def test_a_step_runs_without_the_repository_on_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/repository/src")
    assert wheel.run_step(["sh", "-c", "echo $PWD $PYTHONPATH"], tmp_path).split() == [str(tmp_path)]


@pytest.mark.process
def test_a_step_that_fails_is_named_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(wheel.StepError, match=r"sh -c .* ended with 3:\nno such thing"):
        wheel.run_step(["sh", "-c", "echo no such thing >&2; exit 3"], tmp_path)


def test_torch_is_installed_first_and_everything_with_the_pinned_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[Any]] = []
    monkeypatch.setattr(wheel, "run_step", lambda command, folder: commands.append(list(command)))
    wheel.install(tmp_path, tmp_path / "a.whl", tmp_path)
    assert [str(command[-1]).partition("==")[0] for command in commands] == ["torch", str(tmp_path / "a.whl")]
    assert all(command[-3:-1] == ["-c", wheel.CONSTRAINTS] for command in commands)


@pytest.mark.process
@pytest.mark.parametrize(("outcome", "code"), [("passed", 0), ("failed", 1)])
def test_each_python_gets_a_line_and_one_failure_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built: Path, outcome: str, code: int
) -> None:
    outcomes = iter([PASSED, {**PASSED, "outcome": outcome}])
    monkeypatch.setattr(wheel, "check_python", lambda python, file, folder: next(outcomes))
    assert wheel.run(Namespace(python=["python3", "python3"], out=tmp_path)) == code
    lines = read_lines(tmp_path / "wheel.jsonl")
    assert [line["outcome"] for line in lines] == ["passed", outcome]
    assert lines[0]["wheel"] == built.name


def test_an_error_of_the_smoke_test_is_its_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: object) -> None:
        raise wheel.StepError("rl-training list ended with 1")

    monkeypatch.setattr(wheel, "create_environment", fail)
    line = wheel.check_python("python3", tmp_path, tmp_path)
    assert line == {"interpreter": "python3", "outcome": "failed", "message": "rl-training list ended with 1"}


@pytest.mark.process
def test_a_program_that_is_no_python_is_refused(tmp_path: Path, built: Path) -> None:
    with pytest.raises(UsageError, match="--python must be a program that starts Python, got 'false'"):
        wheel.run(Namespace(python=["false"], out=tmp_path))


def test_the_summary_names_each_python_and_what_was_installed() -> None:
    failed = {"interpreter": "python3.13", "outcome": "failed", "message": "no wheel of torch"}
    assert wheel.summarize_wheel([PASSED, failed]) == {
        "3.11.7": {"outcome": "passed", "rl-training": "0.3.0"},
        "python3.13": {"outcome": "failed"},
    }
