"""Read run folders: finished ones and those that are still trained. Nothing is written, no code is run.

runs = find_runs("runs")
for label, group in runs.groups().items():
    print(label, group.summary())
runs.curve("eval/return")
"""

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeGuard

import numpy as np

from rl_training.core.durable_files import open_file
from rl_training.core.printable_text import printable
from rl_training.errors import ConfigError
from rl_training.experiment.claims import holder_of
from rl_training.experiment.config_files import parse_yaml
from rl_training.experiment.run_dir import is_in_use
from rl_training.results.statistics import Summary, iqm_band, summarize

Status = Literal["finished", "running", "failed", "interrupted", "not started"]
XAxis = Literal["step", "gradient_step", "wall_s"]
EVAL_RETURN = "eval/return"
_MIN_SEEDS_FOR_A_BAND = 3
NOT_COMPARED = ("seed", "output_dir")  # runs that differ only in these are seeds of one group
_MAIN = ("algo", "env_id")  # groups that differ in these may differ in many other settings
_RESULT = ("step", "wall_s")  # numbers that every result.json has
_LARGEST = 1e300


@dataclass(frozen=True)
class RunRecord:
    """One run folder."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the run as they were written."""
        values = parse_yaml(_read_text(self.path / "config.yaml"), str(self.path / "config.yaml"))
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
        return {printable(name): printable(_text(value)) for name, value in self.values.items()}

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
        return float(wall_s) if is_number(wall_s) else 0.0

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
                    found[f"train/{name}"][step] = float(value)
            if isinstance(record.get("steps_per_s"), int | float):
                found["speed/steps_per_s"][step] = float(record["steps_per_s"])
        return dict(found)

    def positions(self, steps: Sequence[int], x: XAxis) -> np.ndarray:
        """Return the places of steps on an axis; gradient steps and seconds between two records by interpolation."""
        if x == "step":
            return np.asarray(steps, float)
        known = [(float(record["step"]), float(record[x])) for record in self.metrics if x in record]
        if not known:
            raise ConfigError(f"{self.path} has no records of {x} yet")
        at, values = np.transpose([(0.0, 0.0), *known])
        places: np.ndarray = np.interp(np.asarray(steps, float), at, values)
        return places


@dataclass(frozen=True)
class Curve:
    """One recorded number over training: per seed, and the interquartile mean with its 95 % interval.

    `per_seed`: (seeds, points), with the last value repeated where a seed ended early; `ends`: how many points each
    seed really has. Without at least three seeds there is no band, and `centre` is the mean.
    """

    name: str
    x: XAxis
    positions: np.ndarray
    per_seed: np.ndarray
    ends: Sequence[int]
    centre: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None

    @property
    def num_seeds(self) -> int:
        return len(self.per_seed)

    def _repr_html_(self) -> str:
        from rl_training.results.notebook import curve_html

        return curve_html(self)


class Runs(Sequence[RunRecord]):
    """Several runs, in the order of their folders."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self._runs = list(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        chosen = self._runs[index]
        return Runs(chosen) if isinstance(index, slice) else chosen

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._runs)

    def _repr_html_(self) -> str:
        from rl_training.results.notebook import runs_html

        return runs_html(self)

    @property
    def env_ids(self) -> list[str]:
        return sorted({run.env_id for run in self})

    def groups(self, by: Sequence[str] = ()) -> dict[str, "Runs"]:
        """Group the runs by settings, such as ("algo", "env_id"); by default all but the seed.

        The label of a group names its algorithm and environment, if others have another one, and the settings in which
        it differs from the groups with the same ones.
        """
        settings = [run.settings for run in self]
        names = list(by) or sorted({name for each in settings for name in each} - set(NOT_COMPARED))
        unknown = [name for name in by if not any(name in each for each in settings)]
        if unknown:
            known = sorted({name for each in settings for name in each})
            raise ConfigError(f"no run has a setting {unknown[0]!r}{_suggest(unknown[0], known)}")
        grouped: dict[tuple[Any, ...], list[RunRecord]] = defaultdict(list)
        for run, each in zip(self, settings, strict=True):
            grouped[tuple(each.get(name, _text(None)) for name in names)].append(run)
        return {_label(names, key, list(grouped)) or _plain_label(runs[0]): Runs(runs) for key, runs in grouped.items()}

    def differences(self) -> dict[str, list[str]]:
        """Return the settings that differ between the runs, with their values in the order of first appearance."""
        settings = [run.settings for run in self]
        names = sorted({name for each in settings for name in each} - set(NOT_COMPARED))
        values = {name: list(dict.fromkeys(each.get(name, _text(None)) for each in settings)) for name in names}
        return {name: found for name, found in values.items() if len(found) > 1}

    @property
    def scores(self) -> list[float]:
        """The score of each run that has one."""
        return [run.score for run in self if run.score is not None]

    def summary(self) -> Summary | None:
        """Return the scores over seeds; None if no run was evaluated yet."""
        return summarize(self.scores) if self.scores else None

    def curve(self, name: str = EVAL_RETURN, *, x: XAxis = "step", smooth: int = 1) -> Curve:
        """Return a recorded number over training, joined at the steps that the seeds share.

        `smooth`: mean over that many neighbouring points.
        """
        series = [run.records.get(name) for run in self]
        missing = [run for run, found in zip(self, series, strict=True) if not found]
        if missing:
            raise _no_record(missing[0], name)
        per_run = [found for found in series if found]
        longest = max(per_run, key=len)
        steps = [step for step in sorted(longest) if all(step in found or step > max(found) for found in per_run)]
        if not any(all(step in found for found in per_run) for step in steps):
            raise ConfigError(f"the seeds share no step at which {name} was recorded")
        ends = [sum(step <= max(found) for step in steps) for found in per_run]
        values = np.array([[found.get(step, found[max(found)]) for step in steps] for found in per_run])
        if smooth > 1:
            values = np.stack([_smoothed(row, smooth) for row in values])
        positions = np.mean([run.positions(steps, x) for run in self], axis=0)
        if len(values) < _MIN_SEEDS_FOR_A_BAND:
            return Curve(name, x, positions, values, ends, values.mean(0), None, None)
        return Curve(name, x, positions, values, ends, *iqm_band(values))


def find_runs(*paths: str | Path) -> Runs:
    """Return the runs in these folders, at any depth; raise `ConfigError` if there are none."""
    found: dict[Path, RunRecord] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ConfigError(f"there is no folder {str(path)!r}")
        for folder in _run_folders(path):
            found[folder] = RunRecord(folder)
    if not found:
        raise ConfigError(f"no run found in {', '.join(map(str, paths))}: a run folder holds a config.yaml")
    return Runs(list(found.values()))


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield the run folders below a path. Links are not followed, and nothing inside a run is searched."""
    for folder, children, files in os.walk(path):
        if "config.yaml" in files:
            children.clear()
            yield Path(folder)
        children.sort()


def _read_text(path: Path) -> str:
    """Return the text of a log, of any length and with damage; raise `OSError` for what is not a regular file."""
    with open_file(path) as file:
        return file.read().decode("utf-8", errors="replace")


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or a damaged one."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        values = json.loads(_read_text(path))
        return values if isinstance(values, dict) else None
    return None


def is_episode(record: Any) -> bool:
    """Return whether a record is an evaluated episode."""
    return isinstance(record, dict) and all(is_number(record.get(name)) for name in ("return", "length"))


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < _LARGEST  # false for NaN, too


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file that may still grow: an unfinished last line is left out."""
    try:
        text = _read_text(path)
    except OSError:
        return []
    records = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
    return records


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _label(names: Sequence[str], key: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str:
    """Return a short label: the algorithm and environment by their values alone, others as name=value."""
    main = [place for place, name in enumerate(names) if name in _MAIN]
    peers = [other for other in others if all(other[place] == key[place] for place in main)]
    words = []
    for place, name in enumerate(names):
        if len({other[place] for other in (others if place in main else peers)}) > 1:
            words.append(key[place] if place in main else f"{name.removeprefix('algo_kwargs.')}={key[place]}")
    return " ".join(words)


def _plain_label(run: RunRecord) -> str:
    return f"{run.algo} {run.env_id}".strip()


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """Return the mean over up to `width` points that end at each point."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    means: np.ndarray = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _suggest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    others = ", ".join(other for other in known if other not in close)
    return f"; did you mean {close[0]!r}? others: {others}" if close else f"; known: {others}"


def _no_record(run: RunRecord, name: str) -> ConfigError:
    known = sorted(run.records)
    if not known:
        return ConfigError(f"{run.path} has no records yet")
    return ConfigError(f"{run.path} has no record named {name!r}{_suggest(name, known)}")
