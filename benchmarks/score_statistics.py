"""Statistics over seeds and repeats: interquartile mean with a stratified bootstrap interval, median with its range."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from rl_training.experiment.manager import BOOTSTRAP_RESAMPLES, interquartile_mean


@dataclass(frozen=True)
class Scores:
    """Scores over seeds. `interval`: 95 % bootstrap interval of the interquartile mean."""

    mean: float
    std: float
    iqm: float
    interval: tuple[float, float]


def describe_scores(*tasks: Sequence[float], resamples: int = BOOTSTRAP_RESAMPLES) -> Scores:
    """Summarise the scores of one or several tasks, one score per seed.

    The bootstrap is stratified: each resample draws as many seeds of each task as that task has, then pools them
    (Agarwal et al., 2021, https://arxiv.org/abs/2108.13264). Its generator has a fixed seed, so equal scores always
    give equal intervals. Scores of several tasks must be normalised.
    """
    pooled = [score for task in tasks for score in task]
    if not pooled:
        raise ValueError("there are no scores to summarise")
    generator = random.Random(0)
    resampled = sorted(
        interquartile_mean([score for task in tasks for score in generator.choices(task, k=len(task))])
        for _ in range(resamples)
    )
    tail = int(0.025 * resamples)
    return Scores(
        mean=fmean(pooled),
        std=stdev(pooled) if len(pooled) > 1 else 0.0,
        iqm=interquartile_mean(pooled),
        interval=(resampled[tail], resampled[-1 - tail]),
    )


@dataclass(frozen=True)
class Spread:
    """Median and range over repeats."""

    median: float
    min: float
    max: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.min:{spec}}..{self.max:{spec}})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))
