"""One run folder, finished or still trained. Nothing is written, no code is run."""

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeGuard

import numpy as np

from rl_training.core.durable_files import open_file, read_text
from rl_training.core.printable_text import printable
from rl_training.errors import ConfigError
from rl_training.experiment.claims import holder_of
from rl_training.experiment.config_files import parse_yaml, read_config_text
from rl_training.experiment.run_dir import is_in_use

Status = Literal["finished", "running", "failed", "interrupted", "not started"]
XAxis = Literal["step", "gradient_step", "wall_s"]
_RESULT = ("step", "wall_s")  # numbers that every result.json has
_LARGEST, _LARGEST_STEP = 1e300, 2**63 - 1  # larger numbers cannot be drawn, larger steps not be sent to trackers
_LONGEST = 1e9  # seconds
_MAX_LINE = 2**24  # bytes of a record


@dataclass(frozen=True)
class RunRecord:
    """One run folder."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the run as they were written."""
        values = parse_yaml(read_config_text(self.path / "config.yaml"), str(self.path / "config.yaml"))
        if not isinstance(values, dict) or not isinstance(values.get("algo"), str):
            raise ConfigError(f"{self.path / 'config.yaml'} does not hold the settings of a run")
        return values

    def read_again(self) -> "RunRecord":
        """Return the run as it is now. Its settings, which do not change, are kept."""
        fresh = RunRecord(self.path)
        fresh.__dict__["config"] = self.config
        return fresh

    @cached_property
    def values(self) -> dict[str, Any]:
        """The settings of the run under dotted names such as algo_kwargs.gamma."""
        return _flat(self.config)

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings of the run as printable text, under dotted names such as algo_kwargs.gamma."""
        return {printable(name): printable(setting_text(value)) for name, value in self.values.items()}

    @property
    def algo(self) -> str:
        return printable(str(self.config["algo"]))

    @property
    def env_id(self) -> str:
        return printable(str(self.config.get("env_id") or ""))

    @property
    def seed(self) -> int:
        seed = self.config.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The contents of result.json, which a finished run has."""
        result = _read_object(self.path / "result.json")
        return result if result is not None and all(is_number(result.get(name)) for name in _RESULT) else None

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        """What metadata.json has about each start of the run: step, versions, host, device; empty if unknown."""
        starts = (_read_object(self.path / "metadata.json") or {}).get("starts")
        return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []

    @cached_property
    def status(self) -> Status:
        if self.result is not None:
            return "finished"
        if is_in_use(self.path) or holder_of(self.path) is not None:
            return "running"
        if (self.path / "crash" / "traceback.txt").is_file():
            return "failed"
        return "interrupted" if self.starts or self.steps else "not started"

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl."""
        records = _read_lines(self.path / "metrics.jsonl")
        return [record for record in records if isinstance(record.get("metrics", {}), dict)]

    @cached_property
    def evaluations(self) -> dict[int, list[dict[str, Any]]]:
        """The evaluated episodes by step, in order; an evaluation that is being written is left out."""
        by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for record in _read_lines(self.path / "eval.jsonl"):
            if is_episode(record):
                by_step[record["step"]].append(record)
        wanted = self.config.get("eval_episodes")
        wanted = wanted if isinstance(wanted, int) else 5
        return {step: episodes for step, episodes in sorted(by_step.items()) if len(episodes) >= wanted}

    @property
    def steps(self) -> int:
        """The steps so far."""
        known = [int(record.get("step", 0)) for record in (self.metrics[-1:] or [{}])]
        return max([*known, *list(self.evaluations)[-1:], int((self.result or {}).get("step", 0))])

    @property
    def wall_s(self) -> float:
        wall_s = (self.result or (self.metrics[-1] if self.metrics else {})).get("wall_s")
        return float(wall_s) if is_number(wall_s) and 0 <= wall_s <= _LONGEST else 0.0

    @property
    def score(self) -> float | None:
        """The mean return of the newest evaluation: the final one of a finished run. None if there is none."""
        final = (self.result or {}).get("eval")
        whole = isinstance(final, list) and all(map(is_episode, final))
        episodes = (final if whole else None) or next(reversed(self.evaluations.values()), [])
        return fmean(float(episode["return"]) for episode in episodes) if episodes else None

    @cached_property
    def records(self) -> dict[str, dict[int, float]]:
        """All recorded numbers: by name, such as eval/return or train/loss, and by step."""
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for step, episodes in self.evaluations.items():
            for name in ("return", "length"):
                found[f"eval/{name}"][step] = fmean(float(episode[name]) for episode in episodes)
        for record in self.metrics:
            step = int(record["step"])
            for name, value in record.get("metrics", {}).items():
                if isinstance(value, int | float):
                    found[f"train/{name}"][step] = _drawable(value)
            if isinstance(record.get("steps_per_s"), int | float):
                found["speed/steps_per_s"][step] = _drawable(record["steps_per_s"])
        return dict(found)

    def positions(self, steps: Sequence[int], x: XAxis) -> np.ndarray:
        """Return the places of steps on an axis; gradient steps and seconds between two records by interpolation."""
        if x == "step":
            return np.asarray(steps, float)
        known = [(float(record["step"]), float(record[x])) for record in self.metrics if is_number(record.get(x))]
        if not known:
            raise ConfigError(f"{self.path} has no records of {x} yet")
        at, values = np.transpose([(0.0, 0.0), *known])
        places: np.ndarray = np.interp(np.asarray(steps, float), at, values)
        return places


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or a damaged one."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        values = json.loads(read_text(path))
        return values if isinstance(values, dict) else None
    return None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file that may still grow: an unfinished last line is left out."""
    try:
        return list(parsed(_finished_lines(path)))
    except OSError:
        return []


def _finished_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log of any length, but not those that are longer than any record."""
    with open_file(path) as file:
        follows_a_line = True
        while part := file.readline(_MAX_LINE):
            is_end = part.endswith(b"\n")
            if follows_a_line and is_end:
                yield part
            follows_a_line = is_end


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records among the lines; others, as in a file from elsewhere, are left out."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line.decode("utf-8", "replace"))
            if isinstance(record, dict) and type(record.get("step")) is int and 0 <= record["step"] <= _LARGEST_STEP:
                yield record


def is_episode(record: Any) -> bool:
    """Return whether a record is an evaluated episode."""
    return isinstance(record, dict) and all(is_number(record.get(name)) for name in ("return", "length"))


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < _LARGEST  # false for NaN, too


def _drawable(value: float) -> float:
    """Return a number as a float; one that no axis can show is infinite."""
    if is_number(value) or value != value:
        return float(value)
    return math.inf if value > 0 else -math.inf


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def setting_text(value: Any) -> str:
    """Return a setting as people read it."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
