"""Returns are shown with as many decimals as tell small ones apart."""

import pytest

from rl_training.results.return_text import mean_and_std, return_text, seed_ranges
from rl_training.results.statistics import summarize


@pytest.mark.parametrize(
    ("value", "beside", "text"),
    [
        (0.6374, (), "0.637"),
        (-0.95, (), "-0.950"),
        (499.96, (), "500.0"),
        (0.5, (120.0,), "0.5"),
        (9.9996, (), "10.000"),
    ],
)
def test_small_returns_have_three_decimals_and_large_ones_one(
    value: float, beside: tuple[float, ...], text: str
) -> None:
    assert return_text(value, *beside) == text


def test_a_mean_and_its_deviation_have_the_same_decimals() -> None:
    assert mean_and_std([0.5, 0.7]) == "0.600 ± 0.100"
    assert mean_and_std([500.0, 500.0]) == "500.0 ± 0.0"
    assert mean_and_std([-20.0, 20.0]) == "0.0 ± 20.0"


def test_a_summary_of_small_scores_can_be_read() -> None:
    assert (
        str(summarize([0.6, 0.6])) == "0.600 ± 0.000 (interquartile mean 0.600, 95 % interval 0.600 to 0.600, 2 seeds)"
    )


@pytest.mark.parametrize(
    ("seeds", "text"), [([0, 1, 2, 3, 4], "0-4"), ([7], "7"), ([0, 2, 5], "0, 2, 5"), ([100, 101], "100-101")]
)
def test_seeds_in_a_row_are_a_range(seeds: list[int], text: str) -> None:
    assert seed_ranges(seeds) == text
