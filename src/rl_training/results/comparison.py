"""Compare groups of runs: their scores as a table, and figures of curves, intervals, profiles and improvement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_training.errors import ConfigError
from rl_training.experiment.config_files import parse_yaml, read_config_text
from rl_training.results.figures import Figure, Line, Mark
from rl_training.results.return_text import SMALL
from rl_training.results.run_record import RunRecord, XAxis, is_number
from rl_training.results.runs import EVAL_RETURN, Curve, Runs
from rl_training.results.statistics import (
    Interval,
    Summary,
    median_of_tasks,
    normalized,
    performance_profile,
    probability_of_improvement,
    profile_band,
    summarize,
)

Kind = Literal["curve", "interval", "profile", "improvement"]
Anchors = Mapping[str, tuple[float, float]]  # by environment: the returns that count as 0 and as 1
ROUGH = 10  # with fewer seeds a bootstrap interval is too narrow
X_LABELS = {"step": "env steps", "gradient_step": "gradient steps", "wall_s": "seconds"}
_THRESHOLDS = 101
TABLE_REMEDY = "give --normalize FILE, or --by env_id for a table of each environment"
FIGURE_REMEDY = "give --normalize FILE, or the runs of one environment"


@dataclass(frozen=True)
class Row:
    """One group of runs in a comparison."""

    label: str
    runs: Runs
    summary: Summary | None  # of the scores, normalised if anchors were given
    median: float | None  # of the mean scores of several environments
    improvement: tuple[float, Interval] | None  # over the first group

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the score: unfinished runs, few seeds."""
        waiting = [str(run.seed) for run in self.runs if run.status == "not started"]
        notes = [
            f"seed {run.seed} {run.status} at {run.steps:,}"
            for run in self.runs
            if run.status not in ("finished", "not started")
        ]
        if waiting:
            notes.append(f"not started: seed{'s' * (len(waiting) > 1)} {', '.join(waiting)}")
        if self.summary is not None and 1 < self.summary.count < ROUGH:
            notes.append(f"{self.summary.count} seeds: rough")
        return notes

    @property
    def cells(self) -> dict[str, str]:
        """The row of a table, as text by column."""
        score = iqm = interval = median = better = "-"
        if self.summary is not None:
            mean, std, (low, high) = self.summary.mean, self.summary.std, self.summary.interval
            digits = 3 if max(abs(mean), std) < SMALL else 1
            score, iqm = f"{mean:,.{digits}f} ± {std:,.{digits}f}", f"{self.summary.iqm:,.{digits}f}"
            interval = f"{low:,.{digits}f} to {high:,.{digits}f}"
            median = "-" if self.median is None else f"{self.median:,.{digits}f}"
        if self.improvement is not None:
            probability, (low, high) = self.improvement
            better = f"{probability:.2f} ({low:.2f} to {high:.2f})"
        return {
            "group": self.label,
            "seeds": str(len(self.runs)),
            "steps": f"{max(run.steps for run in self.runs):,}",
            "score": score,
            "IQM": iqm,
            "95 % interval": interval,
            "median": median,
            "better": better,
            "wall time": str(timedelta(seconds=round(max(run.wall_s for run in self.runs)))),
            "": "; ".join(self.notes),
        }


def read_anchors(path: Path) -> dict[str, tuple[float, float]]:
    """Read the anchors of normalised scores: lines such as `CartPole-v1: [20, 500]`."""
    values = parse_yaml(read_config_text(path), str(path))
    valid = isinstance(values, dict) and all(_is_pair(pair) for pair in values.values())
    if not valid:
        raise ConfigError(f"{path} must hold lines such as `CartPole-v1: [20, 500]`: the returns that count as 0 and 1")
    return {str(env_id): (float(low), float(high)) for env_id, (low, high) in values.items()}


def _is_pair(pair: Any) -> bool:
    numbers = isinstance(pair, list) and len(pair) == 2 and all(is_number(value) for value in pair)
    return numbers and pair[0] != pair[1]


def compare(groups: Mapping[str, Runs], anchors: Anchors | None = None, *, remedy: str = TABLE_REMEDY) -> list[Row]:
    """Return one row per group; several environments need `anchors`, otherwise the error names the `remedy`."""
    tasks = {label: scores_by_task(runs, anchors) for label, runs in groups.items()}
    check_comparable(groups, anchors, remedy)
    first = next(iter(tasks.values()))
    rows = []
    for label, runs in groups.items():
        scores = tasks[label]
        summary = summarize(*scores.values()) if scores else None
        median = median_of_tasks(*scores.values()) if len(scores) > 1 else None
        better = None
        if scores is not first and scores and scores.keys() == first.keys():
            better = probability_of_improvement(list(scores.values()), [first[task] for task in scores])
        rows.append(Row(label, runs, summary, median, better))
    return rows


def check_comparable(groups: Mapping[str, Runs], anchors: Anchors | None, remedy: str) -> None:
    """Raise `ConfigError` for groups of different environments whose returns have no common scale."""
    env_ids = sorted({env_id for runs in groups.values() for env_id in runs.env_ids})
    if len(env_ids) > 1 and anchors is None:
        raise ConfigError(f"cannot compare returns of {' and '.join(env_ids[:2])}: {remedy}")


def scores_by_task(runs: Runs, anchors: Anchors | None = None) -> dict[str, list[float]]:
    """Return the scores of the evaluated runs by environment, normalised if anchors are given."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        if run.score is not None:
            scores.setdefault(run.env_id, []).append(_normalized(run, anchors))
    return dict(sorted(scores.items()))


def _normalized(run: RunRecord, anchors: Anchors | None) -> float:
    assert run.score is not None
    if anchors is None:
        return run.score
    if run.env_id not in anchors:
        raise ConfigError(f"--normalize has no line for {run.env_id}, such as `{run.env_id}: [0, 100]`")
    return normalized(run.score, *anchors[run.env_id])


# --- Figures ---------------------------------------------------------------------------------------------------------


def line_of(curve: Curve, label: str, *, colour: int = 0) -> Line:
    """Return the centre of a curve with its band; dotted where a seed has ended."""
    solid = min(curve.ends)
    return Line(label, curve.positions, curve.centre, curve.low, curve.high, solid=solid, colour=colour)


def line_caption(has_band: bool) -> str:
    band = "interquartile mean over seeds; band: its pointwise 95 % bootstrap interval"
    return f"Line: {band if has_band else 'mean over seeds'}."


def curve_figure(
    groups: Mapping[str, Runs],
    name: str = EVAL_RETURN,
    *,
    x: XAxis = "step",
    per_seed: bool = False,
    smooth: int = 1,
    title: str = "",
) -> Figure:
    """Draw a recorded number over training, one line per group."""
    if name == EVAL_RETURN:
        check_comparable(groups, None, "give the runs of one environment")
    lines: list[Line] = []
    bands = False
    for colour, (label, runs) in enumerate(groups.items()):
        if not runs:
            continue  # the colours of the others stay the same
        curve = runs.curve(name, x=x, smooth=smooth)
        if per_seed:
            lines += [
                Line(f"{label} seed {run.seed}", curve.positions, values, solid=end, thin=True, colour=colour)
                for run, values, end in zip(runs, curve.per_seed, curve.ends, strict=True)
            ]
        seeds = f"{label} ({curve.num_seeds} seed{'s' * (curve.num_seeds > 1)})"
        lines.append(line_of(curve, seeds, colour=colour))
        bands |= curve.low is not None
    parts = [line_caption(bands)]
    if any(line.solid is not None and line.solid < len(line.x) for line in lines):
        parts.append("Dotted: a seed has ended and keeps its last value.")
    if smooth > 1:
        parts.append(f"Smoothed over {smooth} points.")
    env_ids = sorted({env_id for runs in groups.values() for env_id in runs.env_ids})
    label = name.removeprefix("eval/").removeprefix("train/")
    return Figure(title or ", ".join(env_ids), X_LABELS[x], label, lines=lines, caption=" ".join(parts))


def interval_figure(rows: Sequence[Row]) -> Figure:
    """Draw the interquartile mean of each group with its interval."""
    marks = [
        Mark(
            f"{row.label} ({row.summary.count} seed{'s' * (row.summary.count > 1)})",
            row.summary.iqm,
            *row.summary.interval,
            colour=number,
        )
        for number, row in enumerate(rows)
        if row.summary is not None
    ]
    _check_any(marks)
    return Figure("Final score", "score", marks=marks, caption="Interquartile mean and its 95 % bootstrap interval.")


def improvement_figure(rows: Sequence[Row]) -> Figure:
    """Draw the probability that each group improves on the first one."""
    marks = [
        Mark(f"{row.label} > {rows[0].label}", row.improvement[0], *row.improvement[1], colour=number)
        for number, row in enumerate(rows)
        if row.improvement is not None
    ]
    _check_any(marks)
    caption = "Probability that a run scores higher, ties half, with its 95 % bootstrap interval. 0.5: no difference."
    return Figure("Probability of improvement", "probability", marks=marks, caption=caption, bounds=(0.0, 1.0))


def profile_figure(groups: Mapping[str, Runs], anchors: Anchors | None) -> Figure:
    """Draw the share of runs above each score."""
    check_comparable(groups, anchors, FIGURE_REMEDY)
    tasks = {label: list(scores_by_task(runs, anchors).values()) for label, runs in groups.items()}
    pooled = [score for scores in tasks.values() for task in scores for score in task]
    _check_any(pooled)
    thresholds = np.linspace(min(pooled), max(pooled), _THRESHOLDS)
    lines = [
        Line(
            label, thresholds, performance_profile(scores, thresholds), *profile_band(scores, thresholds), colour=colour
        )
        for colour, (label, scores) in enumerate(tasks.items())
        if scores
    ]
    caption = "Share of runs that score above a value, with its pointwise 95 % bootstrap interval."
    what = "score" if anchors is None else "normalized score"
    return Figure("Performance profile", what, "share of runs", lines=lines, caption=caption, bounds=(0.0, 1.02))


def _check_any(found: Sequence[object]) -> None:
    if not found:
        raise ConfigError("there is nothing to draw: no run was evaluated yet, or there is nothing to compare with")
