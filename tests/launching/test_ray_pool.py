"""Workers that are tasks of a real Ray cluster on this machine: `make test-ray` runs these tests."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.exactness import differences

from builders import make_config
from rl_training.experiment.claims import holder_of
from rl_training.experiment.run_dir import create_run_dir, is_in_use, read_result
from rl_training.launching.pool import Ended, LaunchOptions, Pool, open_pool, run_all

pytestmark = [pytest.mark.ray, pytest.mark.process]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # otherwise a token is written below the home folder


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    options = LaunchOptions(root=tmp_path, launcher="ray", jobs=2, ray={"address": "local"})
    with contextlib.closing(open_pool(options)) as pool:
        yield pool


def create(folder: Path, *, seed: int = 0, steps: int = 3_000) -> Path:
    config = make_config(folder.parent, total_timesteps=steps, log_interval=1_000, checkpoint_interval=100, seed=seed)
    return create_run_dir(config.resolved(), folder)


def wait_for_end(pool: Pool) -> Ended:
    while not (ended := pool.ended()):
        time.sleep(0.05)
    (end,) = ended
    return end


def wait_until(condition: Callable[[], bool], pool: Pool) -> None:
    while not condition():
        assert pool.ended() == []
        time.sleep(0.05)


def is_saved(run: Path) -> bool:
    return any((run / "checkpoints").glob("step_*"))


def test_a_killed_worker_is_started_again_and_its_run_ends_as_an_undisturbed_one(tmp_path: Path, pool: Pool) -> None:
    other = create(tmp_path.with_name("undisturbed") / "run")
    assert [end.status for end in run_all([other], LaunchOptions(root=other.parent))] == ["finished"]
    run = create(tmp_path / "run")
    pool.submit(run)
    wait_until(lambda: is_saved(run) and holder_of(run) is not None, pool)
    holder = holder_of(run)
    assert holder is not None
    assert holder.pid != os.getpid()
    os.kill(holder.pid, signal.SIGKILL)
    assert wait_for_end(pool) == Ended(run, "finished")
    assert differences(run, other) == []


def test_a_run_is_stopped_and_submitted_again(tmp_path: Path, pool: Pool) -> None:
    run = create(tmp_path / "run")
    pool.submit(run)
    wait_until(lambda: is_in_use(run), pool)
    pool.stop(run)
    assert wait_for_end(pool) == Ended(run, "interrupted")
    assert is_saved(run)
    assert not is_in_use(run)
    pool.submit(run)
    assert wait_for_end(pool) == Ended(run, "finished")


def test_closing_the_pool_saves_what_runs(tmp_path: Path, pool: Pool) -> None:
    runs = [create(tmp_path / str(seed), seed=seed, steps=10_000_000) for seed in range(3)]
    for run in runs:
        pool.submit(run)
    wait_until(lambda: sum(map(is_in_use, runs)) == 2, pool)
    pool.close()
    assert sum(map(is_saved, runs)) == 2
    assert [is_in_use(run) or read_result(run) is not None for run in runs] == [False] * 3
