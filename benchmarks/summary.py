"""Summaries over seeds, and spreads over repeats."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

BOOTSTRAP_RESAMPLES = 10_000


@dataclass(frozen=True)
class Summary:
    """`interval`: 95 % bootstrap interval of the interquartile mean, over seeds."""

    mean: float
    std: float
    iqm: float
    interval: tuple[float, float]


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest quarter (rounded down: of 5 values, the middle 3 count)."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def summarize(values: Sequence[float]) -> Summary:
    rng = random.Random(0)
    resampled = sorted(interquartile_mean(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAP_RESAMPLES))
    tail = int(0.025 * BOOTSTRAP_RESAMPLES)
    return Summary(
        mean=fmean(values),
        std=stdev(values) if len(values) > 1 else 0.0,
        iqm=interquartile_mean(values),
        interval=(resampled[tail], resampled[-1 - tail]),
    )


@dataclass(frozen=True)
class Spread:
    median: float
    min: float
    max: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.min:{spec}}..{self.max:{spec}})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))
