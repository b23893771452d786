"""Trackers: where the records of a run can be sent, chosen by texts such as `mlflow` or `wandb:project=rl`.

Installed packages add others by the entry point `rl_training.trackers`. One is loaded only if the user names it: on the
command line, in Python, or in an earlier start of the run, which trackers.json proves by a seal.
"""

import contextlib
import difflib
import importlib
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from rl_training.core.extras import EXTRAS, require
from rl_training.core.printable_text import printable
from rl_training.errors import ConfigError, text_of
from rl_training.results.report import write_report
from rl_training.results.run_record import RunRecord, Status
from rl_training.results.runs import Runs
from rl_training.tracking.feed import Point

ENTRY_POINT_GROUP = "rl_training.trackers"
PROJECT = "rl-training"  # the project or experiment in which runs are shown by default
_OWN = {
    "tensorboard": "rl_training.tracking.tensorboard:TensorBoard",
    "mlflow": "rl_training.tracking.mlflow:Mlflow",
    "wandb": "rl_training.tracking.wandb:Wandb",
    "trackio": "rl_training.tracking.trackio:Trackio",
}
_LONGEST_NAME = 120
_LOGIN = re.compile(r"//[^/@\s]*@")  # the user and password in an address


@dataclass(frozen=True, slots=True)
class Parent:
    """The run that a forked run continues, and what its tracker remembered of it."""

    name: str
    step: int
    memory: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name} at step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as a tracker sees it when it is opened."""

    record: RunRecord
    sent_step: int  # the last step that was sent; -1: none
    memory: dict[str, str]  # what the tracker must know at the next start, such as its id of the run; kept on disk
    parent: Parent | None  # of a fork

    @property
    def name(self) -> str:
        return name_of(self.record.path)

    @property
    def config(self) -> dict[str, Any]:
        """The settings, and of a fork where it comes from."""
        return self.record.config | ({"forked_from": str(self.parent)} if self.parent else {})


class Tracker(Protocol):
    """Shows the records of runs. An object is made from the options that the user gave, and serves one run.

    Its methods may raise anything: the run goes on, and `open` is called again at the next attempt.
    """

    @property
    def place(self) -> str:
        """Where the records go, such as the address of a server; empty if the name says it. Never with a password.

        What was sent to another place does not count as sent.
        """
        ...

    def open(self, run: TrackedRun) -> int:
        """Begin or continue a run; return the last step that the tracker holds, -1 for none. Steps after it follow."""
        ...

    def send(self, points: Sequence[Point]) -> None:
        """Take points, in the order of their steps. When it returns, a kill of this process must not lose them.

        A tracker that cannot promise that returns from `open` what it really holds.
        """
        ...

    def close(self, status: Status) -> None:
        """End the session; "running": another process trains the run, more may follow."""
        ...


def name_in(text: str) -> str:
    """Return the name of a tracker that is written as NAME or NAME:key=value,key=value."""
    return text.partition(":")[0]


def _options_in(text: str, what: str) -> dict[str, str]:
    name, _, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    if not re.fullmatch(r"[\w.-]+", name) or any(not key or not equals for key, equals, _ in pairs):
        raise ConfigError(f"{what} must be like mlflow or wandb:project=rl,mode=offline, got {without_login(text)!r}")
    return {key: value for key, _, value in pairs}


def check_choices(texts: Sequence[str]) -> None:
    """Raise `ConfigError` for trackers that cannot be used, before anything runs."""
    for text in texts:
        make_tracker(text)
    names = [name_in(text) for text in texts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--track {twice[0]} is given more than once")


def make_tracker(text: str, what: str = "--track") -> Tracker:
    """Make a tracker; raise `ConfigError` if it is unknown, its package is missing or its options are wrong.

    `what`: the option that the user wrote, for messages.
    """
    name, options = name_in(text), _options_in(text, what)
    what = f"{what} {name}"
    if name in EXTRAS and name in _OWN:
        require(name, extra=name, what=what)
    factory = _find(name, what)
    known = [each for each in inspect.signature(factory).parameters if each not in ("args", "kwargs")]
    for option in options:
        if option not in known:
            raise ConfigError(f"{what}: unknown option {option!r}{_hint(option, known)}")
    try:
        tracker: Tracker = factory(**options)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:  # code of another package: it may raise anything
        raise ConfigError(f"{what} cannot be used: {without_login(text_of(error))}") from error
    return tracker


def _find(name: str, what: str) -> Callable[..., Any]:
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return found
    others = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in others:
        raise ConfigError(f"{what}: there is no such tracker{_hint(name, [*_OWN, *others])}")
    try:
        loaded: Callable[..., Any] = others[name].load()
    except Exception as error:  # code of another package
        raise ConfigError(f"{what}: entry point {others[name].value!r} cannot be loaded: {text_of(error)}") from error
    return loaded


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known) or 'none'}"


# --- What several trackers need --------------------------------------------------------------------------------------


def name_of(path: Path) -> str:
    """Return a name for a run that is safe to send and to show: its folder, for a seed with the folder above."""
    path = path.absolute()
    name = f"{path.parent.name}/{path.name}" if path.name.startswith("seed") else path.name
    return printable(name)[:_LONGEST_NAME]


def without_login(text: str) -> str:
    return _LOGIN.sub("//", text)


def check_address(address: str) -> None:
    """Raise `ConfigError` for an address of MLflow with a login: the command line is kept in the run folder."""
    parts = urlsplit(address)
    if parts.password is not None or (parts.username is not None and parts.scheme in ("http", "https")):
        raise ConfigError(
            "the uri holds a login, which would be written to the run folder: set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )


def switch(name: str, value: str) -> bool:
    """Return the value of an option that is true or false."""
    if value not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value == "true"


@contextlib.contextmanager
def artifacts_of(path: Path) -> Iterator[list[Path]]:
    """Provide the files about a finished run that a tracker may keep: its settings, its result and a report."""
    with tempfile.TemporaryDirectory(prefix="rl_training_") as folder:
        report = write_report(Runs([RunRecord(path)]), Path(folder, "report.html"))
        yield [path / "config.yaml", path / "result.json", report]
