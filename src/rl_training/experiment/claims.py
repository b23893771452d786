"""`claim.json` in a run folder: the worker that trains the run.

A lock (`run_dir.locked`) frees itself when its process dies, but some shared file systems ignore locks. A claim is a
file that only one worker can create. It renews the file's time while it trains the run; others take the run over when
the worker's process is gone or, if it is on another machine, when the file was not renewed for a while.
"""

import contextlib
import json
import math
import os
import platform
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_training.core.durable_files import read_text
from rl_training.errors import ConfigError

CLAIM = "claim.json"
_TAKEOVER = (
    "claim.takeover"  # exists while a worker removes the claim of a dead one: two at once could remove a new one
)
RENEW_SECONDS = 30.0
STALE_SECONDS = 300.0
_LATEST = 1e11  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker that claims a run: its process, and the newest checkpoint of the run when it began."""

    worker: str
    host: str
    place: str  # where `pid` has a meaning: the machine since it was started, and its process namespace
    pid: int
    process_start: str
    since: float  # seconds since 1970
    checkpoint: str

    @property
    def is_this_process_or_its_parent(self) -> bool:
        return self.place == _place() and self.pid in (os.getpid(), os.getppid())


class Claim:
    """A run that this process trains, until it is released; `lost` if another worker has taken it over.

    `replaced`: the worker that held the run before and died.
    """

    def __init__(self, folder: Path, holder: Holder, replaced: Holder | None) -> None:
        self.folder, self.holder, self.replaced = folder, holder, replaced
        self.lost = False
        self._ended = threading.Event()
        threading.Thread(target=self._renew, name="claim", daemon=True).start()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):  # a file system that does not answer now: try again later
                if self._is_ours():
                    os.utime(self.folder / CLAIM)
                else:
                    self.lost = True
                    return

    def _is_ours(self) -> bool:
        found = _read(self.folder)
        return found is not None and found.worker == self.holder.worker

    def release(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            if self._is_ours():
                (self.folder / CLAIM).unlink()


def claim_run(folder: Path, checkpoint: str = "") -> Claim | None:
    """Claim the run of a folder; return None if another worker holds it."""
    before = _read(folder)
    if _is_alive(folder, before):
        return None
    holder = Holder(
        worker=uuid.uuid4().hex,
        host=platform.node(),
        place=_place(),
        pid=os.getpid(),
        process_start=_process_start(os.getpid()),
        since=time.time(),
        checkpoint=checkpoint,
    )
    if (folder / CLAIM).exists() and not _remove_dead(folder):
        return None
    try:
        descriptor = os.open(folder / CLAIM, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    except OSError as error:
        raise ConfigError(f"the run folder {folder} cannot be written: {error}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(holder), file)
    return Claim(folder, holder, before)


def holder_of(folder: Path) -> Holder | None:
    """Return the worker that trains the run now, by its claim; None if there is none."""
    found = _read(folder)
    return found if found is not None and _is_alive(folder, found) else None


def _remove_dead(folder: Path) -> bool:
    """Remove the claim of a dead worker; return False if another worker is faster."""
    guard = folder / _TAKEOVER
    try:
        os.close(os.open(guard, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        if abs(_age(guard)) >= STALE_SECONDS:  # of a worker that was killed here
            guard.unlink(missing_ok=True)
        return False
    try:
        if _is_alive(folder, _read(folder)):
            return False
        (folder / CLAIM).unlink(missing_ok=True)
        return True
    finally:
        guard.unlink(missing_ok=True)


def _read(folder: Path) -> Holder | None:
    """Return what a claim says; None if there is none, or one that is still being written or is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        holder = Holder(**json.loads(read_text(folder / CLAIM)))
        texts = (holder.worker, holder.host, holder.place, holder.process_start, holder.checkpoint)
        if all(isinstance(text, str) for text in texts) and isinstance(holder.pid, int):
            return holder if isinstance(holder.since, float) and 0 <= holder.since < _LATEST else None
    return None


def _is_alive(folder: Path, holder: Holder | None) -> bool:
    """Return whether a worker, or an unknown one, still holds the claim of this folder.

    A claim from the future is not one that is renewed now: the clock was set back, or the folder was copied.
    """
    if holder is not None and holder.place == _place():
        return _process_start(holder.pid) == holder.process_start
    return abs(_age(folder / CLAIM)) < STALE_SECONDS


def _age(file: Path) -> float:
    """Return the seconds since a file was written, by the clock of its file system; infinite if there is none."""
    try:
        written = file.stat().st_mtime
    except OSError:
        return math.inf
    probe = file.with_name(f".time_{uuid.uuid4().hex}")
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime - written
    except OSError:  # a folder that can only be read
        return time.time() - written
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _place() -> str:
    """Return a name for this machine since its start, and for the process namespace (a container has its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 (not a path)
    except OSError:  # not Linux
        return platform.node()


def _process_start(pid: int) -> str:
    """Return the start time of a process, so that a reused pid is not taken for it; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]  # Z: it has ended and waits for its parent
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:  # not Linux
        os.kill(pid, 0)
    except PermissionError:
        return "unknown"
    except (OSError, OverflowError):
        return ""
    return "unknown"
