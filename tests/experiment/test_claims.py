"""A claim makes one worker the only one that trains a run, also on file systems without locks."""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment import claims
from rl_training.experiment.claims import CLAIM, STALE_SECONDS, Claim, claim_run, holder_of
from rl_training.experiment.run_dir import RunInUseError, locked
from rl_training.results.run_record import RunRecord


@pytest.fixture
def claim(tmp_path: Path) -> Iterator[Claim]:
    taken = claim_run(tmp_path, "step_000000010")
    assert taken is not None
    yield taken
    taken.release()


def edit(folder: Path, *, age: float = 0.0, **changes: Any) -> None:
    """Change what the claim says, and when it was renewed."""
    file = folder / CLAIM
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    then = time.time() - age
    os.utime(file, (then, then))


def test_a_run_is_claimed_once_and_is_free_after_its_release(tmp_path: Path, claim: Claim) -> None:
    assert claim_run(tmp_path) is None
    assert holder_of(tmp_path) == claim.holder
    claim.release()
    assert holder_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_an_ended_process_is_taken_over_at_once(tmp_path: Path, claim: Claim) -> None:
    edit(tmp_path, pid=2**22 + 1)  # above the largest pid
    assert holder_of(tmp_path) is None
    later = claim_run(tmp_path)
    assert later is not None
    assert later.replaced is not None
    assert later.replaced.checkpoint == "step_000000010"
    assert [path.name for path in tmp_path.iterdir()] == [CLAIM]
    later.release()


@pytest.mark.parametrize("since", [1e300, math.nan, -1.0])
def test_a_claim_since_no_time_is_damaged(since: float, tmp_path: Path, claim: Claim) -> None:
    edit(tmp_path, since=since)
    assert holder_of(tmp_path) is None


def test_a_claim_from_the_future_is_stale(tmp_path: Path, claim: Claim) -> None:
    edit(tmp_path, place="elsewhere", age=-STALE_SECONDS - 30)  # the clock was set back, or it was copied with its time
    assert holder_of(tmp_path) is None


def test_a_reused_pid_is_not_taken_for_the_worker(tmp_path: Path, claim: Claim) -> None:
    edit(tmp_path, process_start="1")
    assert holder_of(tmp_path) is None


def test_the_claim_of_another_machine_holds_until_it_is_stale(tmp_path: Path, claim: Claim) -> None:
    edit(tmp_path, place="elsewhere", pid=2**22 + 1, age=STALE_SECONDS - 30)
    assert claim_run(tmp_path) is None
    edit(tmp_path, age=STALE_SECONDS + 1)
    later = claim_run(tmp_path)
    assert later is not None
    later.release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"worker": 3}', "[" * 100_000])
def test_a_claim_that_cannot_be_read_holds_until_it_is_stale(text: str, tmp_path: Path) -> None:
    (tmp_path / CLAIM).write_text(text)
    assert claim_run(tmp_path) is None
    os.utime(tmp_path / CLAIM, (1.0, 1.0))
    later = claim_run(tmp_path)
    assert later is not None
    later.release()


def test_of_many_workers_one_takes_over(tmp_path: Path, claim: Claim) -> None:
    for _ in range(20):
        edit(tmp_path, process_start="1")
        barrier = threading.Barrier(8)
        taken: list[Claim] = []

        def take(barrier: threading.Barrier = barrier, taken: list[Claim] = taken) -> None:
            barrier.wait()
            if (mine := claim_run(tmp_path)) is not None:
                taken.append(mine)

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = taken
        assert holder_of(tmp_path) == winner.holder
        winner._ended.set()
    assert [path.name for path in tmp_path.iterdir()] == [CLAIM]


def test_only_one_worker_at_a_time_takes_over_and_one_that_was_killed_there_is_forgotten(
    tmp_path: Path, claim: Claim
) -> None:
    edit(tmp_path, process_start="1")
    guard = tmp_path / "claim.takeover"
    guard.touch()
    assert claim_run(tmp_path) is None
    os.utime(guard, (1.0, 1.0))
    assert claim_run(tmp_path) is None  # removes the guard
    later = claim_run(tmp_path)
    assert later is not None
    later.release()


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def test_a_worker_renews_its_claim_and_notices_that_it_lost_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEW_SECONDS", 0.001)
    claim = claim_run(tmp_path)
    assert claim is not None
    os.utime(tmp_path / CLAIM, (1.0, 1.0))
    wait_until(lambda: (tmp_path / CLAIM).stat().st_mtime > 1.0)
    assert not claim.lost
    (tmp_path / "new").write_text(json.dumps({**json.loads((tmp_path / CLAIM).read_text()), "worker": "another"}))
    (tmp_path / "new").replace(tmp_path / CLAIM)
    wait_until(lambda: claim.lost)
    claim.release()
    assert (tmp_path / CLAIM).exists()  # it is the other worker's


def test_no_process_but_the_workers_own_trains_in_a_claimed_folder(tmp_path: Path, claim: Claim) -> None:
    with locked(tmp_path):
        pass
    (tmp_path / "config.yaml").write_text("algo: dqn\n")
    edit(tmp_path, place="elsewhere", host="far")
    with (
        pytest.raises(RunInUseError, match=r"is in use: a worker on far, process \d+, trains in it now"),
        locked(tmp_path),
    ):
        pass
    assert RunRecord(tmp_path).status == "running"
