"""A pool of workers on other machines: how runs ended is read from their folders, and lost workers are replaced."""

import logging
from pathlib import Path

import pytest

from builders import make_config
from rl_training.errors import TrainingError
from rl_training.experiment.claims import claim_run
from rl_training.experiment.run_dir import create_run_dir, write_result
from rl_training.launching import workers
from rl_training.launching.marks import is_stopped, record_failure
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.workers import WorkerPool


class Cluster:
    """Stands for SLURM or Ray."""

    def __init__(self) -> None:
        self.number: int | None = 0
        self.started: list[int] = []
        self.keeps = True  # whether workers stay alive

    def alive(self) -> int | None:
        return self.number

    def start(self, count: int) -> None:
        self.started.append(count)
        if self.keeps:
            self.number = (self.number or 0) + count

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [create_run_dir(make_config(tmp_path).resolved(), tmp_path / name) for name in "abc"]


def pool_of(tmp_path: Path, cluster: Cluster, runs: list[Path], *, jobs: int = 2) -> WorkerPool:
    pool = WorkerPool(LaunchOptions(root=tmp_path, launcher="slurm", jobs=jobs), cluster)
    for run in runs:
        pool.submit(run)
    return pool


def test_as_many_workers_run_as_there_are_open_runs_and_jobs(
    tmp_path: Path, cluster: Cluster, runs: list[Path]
) -> None:
    pool = pool_of(tmp_path, cluster, runs)
    assert pool.ended() == []
    assert cluster.started == [2]
    for run in runs[:2]:
        write_result(run, {"step": 60, "eval": []})
    cluster.number = 0
    assert [end.status for end in pool.ended()] == ["finished"] * 2
    assert cluster.started == [2, 1]
    cluster.number = None  # the cluster does not answer: nothing is started
    pool.ended()
    assert cluster.started == [2, 1]


def test_how_runs_ended_is_read_from_their_folders(tmp_path: Path, cluster: Cluster, runs: list[Path]) -> None:
    pool = pool_of(tmp_path, cluster, runs)
    for _ in range(2):
        record_failure(runs[0], "no luck")
    pool.stop(runs[1])
    claim = claim_run(runs[1])
    assert claim is not None
    assert pool.ended() == []  # one may be tried again, one is still being saved
    assert pool.running() == [runs[1]]
    claim.release()
    record_failure(runs[0], "no luck")
    assert [(end.folder, end.status, end.message) for end in pool.ended()] == [
        (runs[0], "failed", "no luck"),
        (runs[1], "interrupted", ""),
    ]
    pool.submit(runs[1])
    assert not is_stopped(runs[1])
    assert pool.ended() == []


def test_workers_that_end_at_once_are_not_started_forever(tmp_path: Path, cluster: Cluster, runs: list[Path]) -> None:
    pool = pool_of(tmp_path, cluster, runs)
    cluster.keeps = False
    for _ in range(3):
        pool.ended()
    (runs[0] / "checkpoints" / "step_000000010").mkdir(parents=True)  # progress
    for _ in range(3):
        pool.ended()
    with pytest.raises(TrainingError, match="started 3 times and ended without training any of the 3 open runs"):
        pool.ended()


def test_runs_that_save_nothing_get_one_warning(
    tmp_path: Path, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    never = make_config(tmp_path, checkpoint_interval=0, checkpoint_minutes=0).resolved()
    by_time = make_config(tmp_path, checkpoint_interval=0).resolved()
    pool_of(tmp_path, cluster, [create_run_dir(by_time, tmp_path / "by_time")])
    assert caplog.records == []
    pool_of(tmp_path, cluster, [create_run_dir(never, tmp_path / name) for name in "ab"])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == "a killed worker loses its run: set checkpoint_interval or checkpoint_minutes"


def test_a_closed_pool_starts_no_workers_and_reports_what_ended(
    tmp_path: Path, cluster: Cluster, runs: list[Path]
) -> None:
    pool = pool_of(tmp_path, cluster, runs)
    pool.close()
    write_result(runs[2], {"step": 60, "eval": []})
    assert [end.folder for end in pool.ended()] == [runs[2]]
    assert cluster.started == []
