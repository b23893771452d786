"""Statistics over seeds and tasks; the figures of rliable 1.2.0 on the same scores are the reference."""

import numpy as np
import pytest

from rl_training.results.statistics import (
    interquartile_mean,
    iqm_band,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    profile_band,
    summarize,
)

# Ten seeds of four tasks for two algorithms, drawn once from a normal distribution and rounded.
X = [
    [0.6, 0.46, 0.45, 0.63, 0.2, 0.05, 0.65, 0.59, 0.31, 0.59],
    [0.69, 0.3, 0.41, 0.32, 0.46, 0.53, 0.54, 0.63, 0.36, 0.87],
    [0.52, 0.62, 0.75, 0.59, 0.03, 0.22, -0.16, 0.14, 0.92, 0.42],
    [0.33, 1.0, 0.71, 0.81, 0.21, 0.68, 0.44, 0.46, 0.36, 0.57],
]
Y = [
    [0.53, 0.91, 0.31, 0.52, 0.48, 0.56, 0.33, 0.1, 0.36, 0.4],
    [0.52, 0.04, 1.1, 0.67, 0.7, 0.36, 0.44, 0.26, 0.47, 0.39],
    [0.13, 0.76, 0.73, 0.44, 0.93, 0.54, 0.77, 0.69, 0.88, 0.42],
    [0.52, 0.54, 0.14, 0.7, 0.3, 0.14, 0.84, -0.1, 0.71, 0.96],
]


def test_aggregates_equal_those_of_rliable() -> None:
    assert summarize(*X, resamples=50).iqm == pytest.approx(0.4965)
    assert optimality_gap(X) == pytest.approx(0.5185)
    assert probability_of_improvement(X, Y, resamples=20)[0] == pytest.approx(0.4925)
    thresholds = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert performance_profile(X, thresholds) == pytest.approx([0.975, 0.825, 0.5, 0.1, 0.0])


def test_ties_count_half_and_a_clear_winner_is_certain() -> None:
    assert probability_of_improvement([[1.0, 1.0]], [[1.0, 1.0]]) == (0.5, (0.5, 0.5))
    assert probability_of_improvement([[2.0, 3.0]], [[0.0, 1.0]]) == (1.0, (1.0, 1.0))
    assert probability_of_improvement([[0.0]], [[1.0]])[0] == 0.0


def test_the_interval_of_the_improvement_holds_it_and_repeats() -> None:
    probability, (low, high) = probability_of_improvement(X, Y)
    assert low < probability < high
    assert probability_of_improvement(X, Y) == (probability, (low, high))


def test_a_band_holds_the_interquartile_mean_of_every_point() -> None:
    scores = np.random.default_rng(0).normal(size=(8, 5)) + np.arange(5)
    middle, low, high = iqm_band(scores)
    assert middle == pytest.approx([interquartile_mean(list(column)) for column in scores.T])
    assert (low < middle).all()
    assert (middle < high).all()
    same = iqm_band(np.ones((4, 3)))
    assert all((edge == 1.0).all() for edge in same)


def test_the_band_of_a_profile_holds_it() -> None:
    thresholds = np.linspace(0.0, 1.0, 7)
    low, high = profile_band(X, thresholds, resamples=200)
    profile = performance_profile(X, thresholds)
    assert (low <= profile).all()
    assert (profile <= high).all()
    assert (low < high).any()
