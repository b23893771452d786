"""Statistics over seeds and tasks: interquartile means, bootstrap intervals, profiles, probabilities of improvement.

Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice. Every bootstrap is stratified
(seeds are resampled within their task) and its generator has a fixed seed, so equal scores have equal intervals.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np

from rl_training.core.counted import counted
from rl_training.results.return_text import return_text

BOOTSTRAP_RESAMPLES = 10_000
_TAIL = 0.025  # on each side of a 95 % interval
_BLOCK = 50  # points of a curve that are resampled at once, which limits the memory

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """Scores over seeds; `interval` is the 95 % bootstrap interval of the interquartile mean."""

    count: int
    mean: float
    std: float
    iqm: float
    interval: Interval

    def __str__(self) -> str:
        numbers = (self.mean, self.std, self.iqm, *self.interval)
        mean, std, iqm, low, high = (return_text(each, self.mean, self.std) for each in numbers)
        return (
            f"{mean} ± {std} (interquartile mean {iqm}, 95 % interval {low} to {high}, {counted(self.count, 'seed')})"
        )


def normalized(score: float, low: float, high: float) -> float:
    """Return a score on the scale on which `low` is 0 and `high` is 1."""
    return (score - low) / (high - low)


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter (rounded down: of 5 values, the middle 3 count)."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def summarize(*tasks: Sequence[float], resamples: int | None = None) -> Summary:
    """Summarise the scores of one or several tasks, one score per seed; those of several must be normalised."""
    pooled = [score for task in tasks for score in task]
    if not pooled:
        raise ValueError("there are no scores to summarise")
    rng, count = random.Random(0), resamples or BOOTSTRAP_RESAMPLES
    resampled = sorted(
        interquartile_mean([score for task in tasks for score in rng.choices(task, k=len(task))]) for _ in range(count)
    )
    tail = int(_TAIL * count)
    return Summary(
        count=len(pooled),
        mean=fmean(pooled),
        std=stdev(pooled) if len(pooled) > 1 else 0.0,
        iqm=interquartile_mean(pooled),
        interval=(resampled[tail], resampled[-1 - tail]),
    )


def median_of_tasks(*tasks: Sequence[float]) -> float:
    """Return the median over tasks of the mean over seeds: of normalised scores, what a typical task is solved to."""
    return median(fmean(task) for task in tasks)


def iqm_band(scores: np.ndarray, resamples: int = 2_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the interquartile mean at each point of a curve, and its pointwise 95 % interval: (seeds, points) -> 3x.

    All points share the resampled seeds, so that the band is as smooth as the curves are.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(scores), size=(resamples, len(scores)))
    starts = range(0, scores.shape[1], _BLOCK)
    resampled = np.concatenate([_iqm_of_seeds(scores[:, at : at + _BLOCK][chosen]) for at in starts], axis=1)
    low, high = np.quantile(resampled, [_TAIL, 1.0 - _TAIL], axis=0)
    return _iqm_of_seeds(scores), low, high


def _iqm_of_seeds(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean over the seeds: (..., seeds, points) -> (..., points)."""
    seeds = scores.shape[-2]
    cut = seeds // 4
    middle: np.ndarray = np.sort(scores, axis=-2)[..., cut : seeds - cut, :].mean(-2)
    return middle


def probability_of_improvement(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    resamples: int = 2_000,
    *,
    comparisons: int = 1,
) -> tuple[float, Interval]:
    """Return the probability that a run of the first group scores higher than one of the second, and its 95 % interval.

    Both: for each task the scores of its seeds, in the same order of tasks. Ties count half. `comparisons`: the number
    of groups among which the first was chosen; the interval is wider for more (Bonferroni), so that all hold at once.
    """
    tail = _TAIL / comparisons
    rng = np.random.default_rng(0)
    pairs = [(np.asarray(x, float), np.asarray(y, float)) for x, y in zip(first, second, strict=True)]

    def probability(pick: Callable[[np.ndarray], np.ndarray]) -> float:
        return fmean(_share_above(pick(x), pick(y)) for x, y in pairs)

    resampled = [probability(lambda scores: rng.choice(scores, len(scores))) for _ in range(resamples)]
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return probability(lambda scores: scores), (float(low), float(high))


def _share_above(first: np.ndarray, second: np.ndarray) -> float:
    difference = first[:, None] - second[None, :]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def performance_profile(tasks: Sequence[Sequence[float]], thresholds: np.ndarray) -> np.ndarray:
    """Return the share of runs that score above each threshold, as a mean over the tasks."""
    shares = [(np.asarray(scores, float)[:, None] > thresholds).mean(0) for scores in tasks]
    profile: np.ndarray = np.mean(shares, axis=0)
    return profile


def profile_band(
    tasks: Sequence[Sequence[float]], thresholds: np.ndarray, resamples: int = 2_000
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pointwise 95 % interval of a performance profile."""
    rng = np.random.default_rng(0)
    resampled = [
        performance_profile([rng.choice(np.asarray(each, float), len(each)).tolist() for each in tasks], thresholds)
        for _ in range(resamples)
    ]
    low, high = np.quantile(resampled, [_TAIL, 1.0 - _TAIL], axis=0)
    return low, high


def optimality_gap(tasks: Sequence[Sequence[float]], goal: float = 1.0) -> float:
    """Return how far normalised scores fall short of `goal`, as a mean; scores above it count as `goal`."""
    return goal - fmean(min(score, goal) for scores in tasks for score in scores)
