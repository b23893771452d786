"""A worker: take an unfinished run that nobody trains, train it, repeat. Any number of them may share a folder."""

import logging
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from rl_training.experiment.claims import claim_run
from rl_training.experiment.run_dir import is_in_use, read_result
from rl_training.launching.marks import may_start, newest_checkpoint, read_failure, record_failure
from rl_training.launching.process import RunProcess
from rl_training.results.runs import find_runs
from rl_training.runtime.signals import signals_handled

_POLL_SECONDS = 0.2

log = logging.getLogger("rl_training")


def work(root: Path, *, retries: int = 2, flags: Sequence[str] = ()) -> bool:
    """Train the runs below `root`, one after the other, until none is free; return False if a stop signal came.

    A run is free if it is not finished, no process trains it, it was not stopped, and it did not fail more than
    `retries` times without a new checkpoint. At a stop signal the current run is saved.
    """
    received: list[int] = []
    with signals_handled(lambda number, frame: received.append(number)):
        while not received and (process := _start_next(root, retries, flags)) is not None:
            log.info("%s is trained", process.folder)
            while (end := process.poll()) is None:
                if received:
                    process.stop()
                    process.wait()
                else:
                    time.sleep(_POLL_SECONDS)
            log.log(
                logging.WARNING if end.status == "failed" else logging.INFO,
                "%s %s",
                end.folder,
                end.message or f"is {end.status}",
            )
    return not received


def _start_next(root: Path, retries: int, flags: Sequence[str]) -> RunProcess | None:
    """Start the first run that is free; None if there is none."""
    for folder in sorted((run.path for run in find_runs(root)), key=_turn):
        if not (_is_open(folder) and may_start(folder, retries)):
            continue
        claim = claim_run(folder, newest_checkpoint(folder))
        if claim is None:
            continue
        before = claim.replaced
        if before is not None and before.checkpoint == claim.holder.checkpoint:
            # Its worker may have been killed by what the run does, such as using too much memory.
            record_failure(folder, f"its worker on {before.host} ended without a new checkpoint")
        if _is_open(folder) and may_start(folder, retries):  # it may have ended before the claim
            return RunProcess(claim, flags)
        claim.release()
    return None


def _is_open(folder: Path) -> bool:
    return read_result(folder) is None and not is_in_use(folder)


def _turn(folder: Path) -> tuple[bool, int, str]:
    """Return what decides which run comes first.

    One that failed on this machine comes last: another machine may be luckier with it. The others go seed by seed over
    all folders (seed2 before seed10), so that an early look compares all of them.
    """
    failure = read_failure(folder)
    return failure is not None and failure.host == platform.node(), len(folder.name), folder.name
