"""The course of a run in one line: a small curve of its returns."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rl_training.experiment.json_lines import read_json_lines
from rl_training.results.return_text import return_text

_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
_WIDTH = 40
_FEWEST_EVALUATIONS = 3  # that make a curve


def describe_course(run_dir: Path, *, encoding: str) -> str | None:
    """Return a curve of the evaluations, or of the training episodes if there are few; None if there are none either.

    `encoding`: of the output; the curve has ASCII characters if it has no others.
    """
    by_step: dict[int, list[float]] = defaultdict(list)
    for record in read_json_lines(run_dir / "eval.jsonl"):
        if "return" in record:
            by_step[record["step"]].append(record["return"])
    kind, points = "evaluations", [(step, fmean(returns)) for step, returns in by_step.items()]
    if len(points) < _FEWEST_EVALUATIONS:
        records = read_json_lines(run_dir / "episodes.jsonl")
        kind, points = "training episodes", [(record["step"], record["return"]) for record in records]
    if len(points) < 2:
        return None
    values = _resample(points)
    first, last = return_text(values[0], values[-1]), return_text(values[-1], values[0])
    return f"{_curve(values, encoding)} from {first} to {last} ({len(points):,} {kind})"


def _resample(points: Sequence[tuple[int, float]]) -> list[float]:
    """Return the mean values of at most `_WIDTH` parts of equally many steps; parts without a point are left out."""
    width, last_step = min(_WIDTH, len(points)), points[-1][0]
    parts: dict[int, list[float]] = defaultdict(list)
    for step, value in points:
        parts[(step - 1) * width // last_step].append(value)
    return [fmean(values) for values in parts.values()]


def _curve(values: Sequence[float], encoding: str) -> str:
    try:
        _BLOCKS.encode(encoding)
        blocks = _BLOCKS
    except (UnicodeEncodeError, LookupError):
        blocks = _ASCII_BLOCKS
    low, high = min(values), max(values)
    per_block = (high - low) / len(blocks) or 1.0
    return "".join(blocks[min(int((value - low) / per_block), len(blocks) - 1)] for value in values)
