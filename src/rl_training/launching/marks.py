"""Files that decide whether a run is started: `failed.json` (how often it failed, and why) and `stop` (not now)."""

import contextlib
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_training.core.durable_files import read_text, write_atomic
from rl_training.experiment.checkpointing import checkpoint_names

FAILED = "failed.json"
STOP = "stop"  # an empty file: who trains the run saves and ends it, and no worker takes it


@dataclass(frozen=True, slots=True)
class Failure:
    """The latest failure of a run; `count`: failures in a row that started from the same checkpoint."""

    count: int
    checkpoint: str  # the newest one; empty if there is none
    message: str
    host: str


def newest_checkpoint(folder: Path) -> str:
    """Return the name of the newest checkpoint of a run; empty if there is none."""
    return next(reversed(checkpoint_names(folder / "checkpoints")), "")


def read_failure(folder: Path) -> Failure | None:
    """Return the latest failure of a run; None if there is none, or its file is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        failure = Failure(**json.loads(read_text(folder / FAILED)))
        if isinstance(failure.count, int) and all(
            isinstance(text, str) for text in (failure.checkpoint, failure.message, failure.host)
        ):
            return failure
    return None


def record_failure(folder: Path, message: str) -> Failure:
    """Write a failure to the run folder. A run that got further than at its last failure starts to count again."""
    checkpoint, before = newest_checkpoint(folder), read_failure(folder)
    count = before.count + 1 if before is not None and before.checkpoint == checkpoint else 1
    failure = Failure(count, checkpoint, message, platform.node())
    write_atomic(folder / FAILED, json.dumps(asdict(failure), indent=1))
    return failure


def may_start(folder: Path, retries: int) -> bool:
    """Return whether a run may be started: it was not stopped, and did not fail more than `retries` times."""
    failure = read_failure(folder)
    return not is_stopped(folder) and (failure is None or failure.count <= retries)


def is_stopped(folder: Path) -> bool:
    return (folder / STOP).exists()


def ask_to_stop(folder: Path) -> None:
    (folder / STOP).touch()


def forget(folder: Path) -> None:
    """Remove earlier failures, and the wish to stop."""
    for name in (FAILED, STOP):
        (folder / name).unlink(missing_ok=True)
