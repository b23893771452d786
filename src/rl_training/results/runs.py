"""Read run folders: finished ones and those that are still trained. Nothing is written, no code is run.

runs = find_runs("runs")
for label, group in runs.groups().items():
    print(label, group.summary())
runs.curve("eval/return")
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError
from rl_training.results.run_record import RunRecord, XAxis, setting_text
from rl_training.results.statistics import Summary, iqm_band, summarize

EVAL_RETURN = "eval/return"
_MIN_SEEDS_FOR_A_BAND = 3
NOT_COMPARED = ("seed", "output_dir")  # runs that differ only in these are seeds of one group
_MAIN = ("algo", "env_id")  # groups that differ in these may differ in many other settings


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
            grouped[tuple(each.get(name, setting_text(None)) for name in names)].append(run)
        return {_label(names, key, list(grouped)) or _plain_label(runs[0]): Runs(runs) for key, runs in grouped.items()}

    def differences(self) -> dict[str, list[str]]:
        """Return the settings that differ between the runs, with their values in the order of first appearance."""
        settings = [run.settings for run in self]
        names = sorted({name for each in settings for name in each} - set(NOT_COMPARED))
        values = {name: list(dict.fromkeys(each.get(name, setting_text(None)) for each in settings)) for name in names}
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
