"""A worker trains the runs of a folder that nobody else trains, until none is free."""

import os
import platform
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builders import make_config
from rl_training.cli import app
from rl_training.experiment.claims import Claim, claim_run, holder_of
from rl_training.experiment.run_dir import create_run_dir, write_result
from rl_training.launching import process
from rl_training.launching.local import LocalPool
from rl_training.launching.marks import ask_to_stop, forget, read_failure, record_failure
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.process import RunProcess
from rl_training.launching.worker import work
from stand_ins import EndedProcess


class Processes:
    """Stands for the processes of a worker: each ends at once, with the next exit code of its run; then with 0."""

    def __init__(self, codes: dict[str, list[int]]) -> None:
        self.codes, self.started = codes, list[str]()

    def __call__(self, folder: Path, flags: Sequence[str]) -> EndedProcess:
        assert holder_of(folder) is not None
        self.started.append(folder.name)
        codes = self.codes.get(folder.name)
        return EndedProcess(folder, codes.pop(0) if codes else 0)


@pytest.fixture
def codes() -> dict[str, list[int]]:
    return {}


@pytest.fixture
def processes(codes: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch) -> Processes:
    stand_in = Processes(codes)
    monkeypatch.setattr(process, "start_process", stand_in)
    return stand_in


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    config = make_config(tmp_path).resolved()
    return {name: create_run_dir(config, tmp_path / name) for name in ("a", "b", "c")}


@pytest.fixture
def held(runs: dict[str, Path]) -> Iterator[Claim]:
    """Claim run a for another worker."""
    claim = claim_run(runs["a"])
    assert claim is not None
    yield claim
    claim.release()


def test_a_worker_trains_what_is_open(tmp_path: Path, runs: dict[str, Path], processes: Processes) -> None:
    write_result(runs["b"], {"step": 1, "wall_s": 1.0, "eval": []})
    assert work(tmp_path)
    assert processes.started == ["a", "c"]
    assert [path.name for path in runs["a"].iterdir() if "claim" in path.name] == []


def test_a_worker_goes_seed_by_seed_over_all_folders(tmp_path: Path, processes: Processes) -> None:
    config = make_config(tmp_path).resolved()
    for group in ("a", "b"):
        for seed in (10, 2):
            create_run_dir(config, tmp_path / group / f"seed{seed}")
    assert work(tmp_path)
    assert processes.started == ["seed2", "seed2", "seed10", "seed10"]


def test_a_worker_leaves_runs_that_others_hold_or_that_were_stopped(
    tmp_path: Path, runs: dict[str, Path], processes: Processes, held: Claim
) -> None:
    ask_to_stop(runs["c"])
    assert work(tmp_path)
    assert processes.started == ["b"]


def test_a_run_that_fails_is_tried_again_twice_after_the_others(
    tmp_path: Path, codes: dict[str, list[int]], runs: dict[str, Path], processes: Processes
) -> None:
    codes |= {"a": [2] * 9, "b": [1]}
    assert work(tmp_path)
    assert processes.started == ["a", "b", "c", "a", "a", "b"]
    failure = read_failure(runs["a"])
    assert failure is not None
    assert (failure.count, failure.host) == (3, platform.node())
    assert failure.message == f"ended with exit code 2; see {runs['a']}/log.txt"
    assert work(tmp_path, retries=3)  # more retries than before
    assert processes.started[6:] == ["a"]


def test_a_run_whose_worker_died_without_a_new_checkpoint_has_failed(
    tmp_path: Path, runs: dict[str, Path], processes: Processes, held: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_failure(runs["a"], "earlier")
    record_failure(runs["a"], "earlier")
    monkeypatch.setattr("rl_training.experiment.claims._process_start", lambda pid: "later")  # as for a reused pid
    assert work(tmp_path)
    assert processes.started == ["b", "c"]
    failure = read_failure(runs["a"])
    assert failure is not None
    assert (failure.count, failure.message) == (3, f"its worker on {platform.node()} ended without a new checkpoint")


def test_failures_are_counted_from_the_newest_checkpoint_on(tmp_path: Path) -> None:
    assert [record_failure(tmp_path, "x").count for _ in range(3)] == [1, 2, 3]
    (tmp_path / "checkpoints" / "step_000000010").mkdir(parents=True)
    assert [record_failure(tmp_path, "x").count for _ in range(2)] == [1, 2]
    forget(tmp_path)
    assert read_failure(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"count": "2", "checkpoint": "", "message": "", "host": ""}'])
def test_a_damaged_record_of_failures_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "failed.json").write_text(text)
    assert read_failure(tmp_path) is None
    assert record_failure(tmp_path, "x").count == 1


class LastingProcess:
    """Stands for a process that trains until it is told to end."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.received.append("terminate")
        self.code = 75

    def kill(self) -> None:
        self.received.append("kill")

    def wait(self) -> int:
        return 75


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> LastingProcess:
    stand_in = LastingProcess()
    monkeypatch.setattr(process, "start_process", lambda folder, flags: stand_in)
    return stand_in


def test_a_run_is_stopped_by_a_file_in_its_folder(runs: dict[str, Path], held: Claim, lasting: LastingProcess) -> None:
    run = RunProcess(held, [])
    assert run.poll() is None
    ask_to_stop(runs["a"])
    assert run.poll() is None
    end = run.poll()
    assert end is not None
    assert (end.status, lasting.received) == ("interrupted", ["terminate"])
    assert holder_of(runs["a"]) is None


def test_a_run_that_another_worker_took_over_is_killed_without_saving(held: Claim, lasting: LastingProcess) -> None:
    run = RunProcess(held, [])
    held.lost = True
    end = run.poll()
    assert end is not None
    assert (end.status, lasting.received) == ("interrupted", ["kill"])


@pytest.mark.process
def test_a_signal_makes_the_worker_save_its_run_and_end(
    tmp_path: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting = LastingProcess()

    def start(folder: Path, flags: Sequence[str]) -> LastingProcess:
        os.kill(os.getpid(), signal.SIGTERM)
        return lasting

    monkeypatch.setattr(process, "start_process", start)
    assert not work(tmp_path)
    assert lasting.received == ["terminate"]
    assert [holder_of(run) for run in runs.values()] == [None] * 3


def test_a_closed_local_pool_has_released_its_runs_and_reports_them(
    tmp_path: Path, runs: dict[str, Path], lasting: LastingProcess
) -> None:
    pool = LocalPool(LaunchOptions(root=tmp_path))
    pool.submit(runs["a"])
    assert pool.ended() == []
    assert holder_of(runs["a"]) is not None
    pool.close()
    assert holder_of(runs["a"]) is None
    assert [end.status for end in pool.ended()] == ["interrupted"]


# --- The commands ----------------------------------------------------------------------------------------------------


def call(*arguments: object) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.stdout.splitlines()


def test_status_shows_what_each_run_does(tmp_path: Path, runs: dict[str, Path], held: Claim) -> None:
    record_failure(runs["b"], "ended with exit code 2")
    code, lines = call("status", tmp_path)
    assert code == 0
    assert lines[0].startswith(f"a       running   step 0 of 60, on {platform.node()}, process {os.getpid()}, since 20")
    assert lines[1:] == [
        "b       failed    once at step 0 of 60: ended with exit code 2",
        "c       waiting   step 0 of 60",
        "3 runs  1 running, 1 failed, 1 waiting",
    ]


def test_work_ends_with_0_if_all_is_done_and_with_2_and_a_table_if_a_run_failed(
    tmp_path: Path, codes: dict[str, list[int]], runs: dict[str, Path], processes: Processes
) -> None:
    codes["b"] = [2]
    code, lines = call("work", tmp_path, "--retries", 0, "--quiet")
    assert code == 2
    assert lines == [
        f"b       failed    once at step 0 of 60: ended with exit code 2; see {runs['b']}/log.txt",
        "3 runs  2 finished, 1 failed",
    ]
    assert call("work", tmp_path, "--quiet") == (0, ["3 runs  3 finished"])


def test_control_characters_in_names_are_not_printed(tmp_path: Path) -> None:
    create_run_dir(make_config(tmp_path).resolved(), tmp_path / "red\x1b[31m")
    assert call("status", tmp_path)[1][0].startswith(r"red\x1b[31m  waiting")


@pytest.mark.parametrize("command", ["work", "status"])
def test_a_folder_without_runs_is_an_error(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 2
    assert "no run found in" in result.stderr
