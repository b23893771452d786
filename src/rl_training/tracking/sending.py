"""Send the records of a run to trackers: each step once, also after a kill and a resume.

trackers.json in the run folder has for each tracker the last step that was sent and what the tracker must know again.
A resumed run repeats steps exactly, so those up to the last sent one are skipped.
"""

import contextlib
import itertools
import logging
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, StrictInt, ValidationError

from rl_training.core.durable_files import read_text, write_atomic
from rl_training.core.seals import is_own, make_seal
from rl_training.errors import ConfigError, text_of
from rl_training.experiment.run_dir import locked_file
from rl_training.results.run_record import RunRecord, Status
from rl_training.tracking.feed import Feed, Point
from rl_training.tracking.trackers import (
    Parent,
    TrackedRun,
    Tracker,
    make_tracker,
    name_in,
    name_of,
    without_login,
)

FILE = "trackers.json"
POLL_SECONDS = 2.0  # between two looks at the files of a run
LAST_SECONDS = 30.0  # in which the last records are sent after training; the others wait in the run folder
_AT_ONCE = 50  # points
_SHORTEST = 0.001  # seconds between two points; MLflow sorts by milliseconds
_NONE = -1  # the last sent step before anything was sent

log = logging.getLogger("rl_training")
_writing = threading.Lock()  # locks of files are per process


# --- trackers.json ---------------------------------------------------------------------------------------------------


class _State(BaseModel):
    """What was sent to one place."""

    sent_step: StrictInt = _NONE
    sent_time: float = 0.0  # of the same point
    status: Literal["", "running", "finished", "interrupted", "failed"] = ""  # that the tracker was told last
    memory: dict[str, str] = Field(default_factory=dict)


class _Choice(BaseModel):
    """The text by which the user chose a tracker for all starts of the run, such as mlflow:experiment=a."""

    text: str
    seal: str


class _Origin(BaseModel):
    """Where a fork comes from."""

    name: str
    step: StrictInt
    memories: dict[str, dict[str, str]]


class _File(BaseModel):
    choices: dict[str, _Choice] = Field(default_factory=dict)  # by the name of the tracker
    trackers: dict[str, _State] = Field(default_factory=dict)  # by name and place
    parent: _Origin | None = None


def _read(path: Path) -> _File:
    """Read trackers.json of a run folder; a missing or damaged file counts as empty."""
    try:
        return _File.model_validate_json(read_text(path / FILE))
    except FileNotFoundError:
        pass
    except (OSError, ValidationError, ValueError) as error:
        log.warning("%s is damaged: trackers begin a new run (%s)", path / FILE, str(error).splitlines()[0])
    return _File()


def _update(path: Path, change: Callable[[_File], None]) -> None:
    """Change trackers.json in one step; other processes may send the run to other trackers."""
    with _writing, locked_file(path / ".trackers.lock", wait=True):
        state = _read(path)
        change(state)
        write_atomic(path / FILE, state.model_dump_json(indent=1, exclude_defaults=True))


def forget_sent_steps(path: Path) -> None:
    """Make trackers begin a new run: another one begins in the folder."""

    def change(state: _File) -> None:
        state.trackers, state.parent = {}, None

    if (path / FILE).exists():
        _update(path, change)


def note_parent(fork: Path, parent: Path, step: int) -> None:
    """Note in the folder of a fork which run it continues: its trackers begin a new run and name that one."""
    memories = {name: state.memory for name, state in _read(parent).trackers.items()}

    def change(state: _File) -> None:
        state.parent = _Origin(name=name_of(parent), step=step, memories=memories)

    _update(fork, change)


def choose_trackers(path: Path, texts: Sequence[str]) -> dict[str, str]:
    """Remember trackers for this and all later starts of a run; return the chosen ones, by name.

    Only choices with this user's seal count: a run folder of a stranger must not send data anywhere.
    """
    given = {name_in(text): text for text in texts}

    def change(state: _File) -> None:
        state.choices |= {name: _Choice(text=text, seal=make_seal(FILE, text) or "") for name, text in given.items()}

    if given:
        _update(path, change)
    earlier = _read(path).choices.items()
    return {name: choice.text for name, choice in earlier if is_own(FILE, choice.text, choice.seal)} | given


# --- One run, one tracker --------------------------------------------------------------------------------------------


class Sender:
    """Sends one run to one tracker."""

    def __init__(self, path: Path, choice: str, tracker: Tracker) -> None:
        self.path, self.choice, self.tracker = path, choice, tracker
        name, place = name_in(choice), tracker.place
        self.name = f"{name} at {place}" if place else name
        self.sent = 0  # number of steps
        self._feed = Feed(path)
        self._state = _State()
        self._is_open = False
        self._held = contextlib.ExitStack()  # the lock: no other process sends this run to this tracker

    @property
    def sent_step(self) -> int:
        return self._state.sent_step

    def pump(self, status: Status) -> None:
        """Send what is new and complete; raises what the tracker raises. `status`: of the run."""
        if not self._is_open:
            self._hold()
        points = self._feed.points(status, after=self.sent_step)
        has_ended = self.sent_step != _NONE and status not in ("running", self._state.status)
        if not self._is_open and (points or has_ended):
            points = self._open(status)
        points = list(_with_rising_times(points, self._state.sent_time))
        for start in range(0, len(points), _AT_ONCE):
            chunk = points[start : start + _AT_ONCE]
            try:
                self.tracker.send(chunk)
            except BaseException:
                self._is_open = False
                raise
            self.sent += len(chunk)
            self._note(sent_step=chunk[-1].step, sent_time=chunk[-1].time)

    def close(self, status: Status) -> None:
        """End the session of the tracker, if there is one, and report how the run ended."""
        try:
            if self._is_open:
                self._is_open = False
                self.tracker.close(status)
                self._note(status=status)
        finally:
            self._held.close()

    def try_to_send(self, status: Status, *, last: bool = False) -> str:
        """Send what is new, `last` also the end of the run; return why a tracker failed, or an empty text.

        The next call tries again.
        """
        try:
            self.pump(status)
            if last:
                self.close(status)
        except (Exception, SystemExit) as error:  # code of other packages: it may raise anything
            return self._describe_failure(error)
        return ""

    def _describe_failure(self, error: BaseException) -> str:
        reason = without_login(text_of(error)).strip().partition("\n")[0][:200]
        problem = "does not answer" if isinstance(error, ConnectionError) else f"failed ({reason})"
        again = shlex.join(["rl-training", "track", str(self.path), "--to", self.choice])
        return f"{self.name} {problem}; records wait in the run folder: {again}"

    def _hold(self) -> None:
        self._held.close()
        try:
            self._held.enter_context(locked_file(self.path / f".trackers.{sha256(self.name.encode()).hexdigest()[:8]}"))
        except BlockingIOError:
            raise ConfigError("another process sends this run there now") from None
        self._state = _read(self.path).trackers.get(self.name, _State())

    def _open(self, status: Status) -> list[Point]:
        """Open the tracker and return the points that it does not hold."""
        parent = _read(self.path).parent
        tracked = TrackedRun(
            record=RunRecord(self.path),
            sent_step=self.sent_step,
            memory=self._state.memory,
            parent=Parent(parent.name, parent.step, parent.memories.get(self.name, {})) if parent else None,
        )
        held = self.tracker.open(tracked)
        self._is_open = True
        self._feed = Feed(self.path)  # the tracker may hold less than what was sent
        sent_time = self._state.sent_time if held >= self.sent_step else 0.0
        self._note(sent_step=held, sent_time=sent_time, status="running")
        return self._feed.points(status, after=held)

    def _note(self, **changes: object) -> None:
        """Write the new state of this tracker to trackers.json."""
        self._state = self._state.model_copy(update=changes)

        def change(state: _File) -> None:
            state.trackers[self.name] = self._state

        _update(self.path, change)


def _with_rising_times(points: Sequence[Point], last: float) -> Iterator[Point]:
    """Yield the points with times after those of earlier steps: a resumed run may be faster than the killed one."""
    for point in points:
        last = max(point.time, last + _SHORTEST)
        yield replace(point, time=last)


# --- Beside training -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tracked(path: Path, texts: Sequence[str], *, tensorboard: bool) -> Iterator[None]:
    """Send the records of the run that is trained in the block, from a thread that only reads its files.

    `texts`: the trackers that the user chose now; those chosen at an earlier start are used, too.
    """
    chosen = ({"tensorboard": "tensorboard"} if tensorboard else {}) | choose_trackers(path, texts)
    senders = list(_senders(path, chosen))
    if elsewhere := [sender.name for sender in senders if sender.tracker.place]:
        log.info("records are sent to %s", " and ".join(elsewhere))
    if not senders:
        yield
        return
    ending = _Ending()
    thread = threading.Thread(target=_follow, args=(senders, ending), name="trackers", daemon=True)
    thread.start()
    try:
        yield
        ending.status = "interrupted" if RunRecord(path).result is None else "finished"
    except KeyboardInterrupt:
        ending.status = "interrupted"
        raise
    finally:
        ending.event.set()
        thread.join(LAST_SECONDS)
        if thread.is_alive():
            names = ", ".join(sender.name for sender in senders)
            log.warning("the last records were not sent in %.0f s (%s); they wait in %s", LAST_SECONDS, names, path)


@dataclass
class _Ending:
    """How training ended, once the event is set."""

    event: threading.Event = field(default_factory=threading.Event)
    status: Status = "failed"


def _senders(path: Path, chosen: Mapping[str, str]) -> Iterator[Sender]:
    for text in chosen.values():
        try:
            yield Sender(path, text, make_tracker(text))
        except ConfigError as error:  # such as a package that was there when the run began
            log.warning("%s; the run goes on without it", error)


def _follow(senders: Sequence[Sender], ending: _Ending) -> None:
    failures: Counter[str] = Counter()
    for look in itertools.count(1):
        has_ended = ending.event.wait(POLL_SECONDS)
        for sender in senders:
            # One that fails again and again is tried less often, in the end at every 32nd look.
            if not has_ended and look % 2 ** min(failures[sender.name], 5):
                continue
            failure = sender.try_to_send(ending.status if has_ended else "running", last=has_ended)
            if failure and not failures[sender.name]:
                log.warning("%s", failure)
            failures[sender.name] += bool(failure)
        if has_ended:
            return
