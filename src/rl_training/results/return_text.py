"""Returns as text, with as many decimals as tell small ones apart, and seeds."""

from collections.abc import Sequence
from statistics import fmean, pstdev

SMALL = 10.0  # returns below this size differ in their decimals


def return_text(value: float, *beside: float) -> str:
    """Format a return: with three decimals where it and the numbers `beside` it are small, else with one."""
    return f"{value:.{3 if max(map(abs, (value, *beside))) < SMALL else 1}f}"


def mean_and_std(returns: Sequence[float]) -> str:
    """Format `mean ± standard deviation` of the returns of episodes."""
    mean, std = fmean(returns), pstdev(returns)
    return f"{return_text(mean, std)} ± {return_text(std, mean)}"


def seed_ranges(seeds: Sequence[int]) -> str:
    """Format seeds: `0-4` for whole numbers in a row, else each of them."""
    in_a_row = len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if in_a_row else ", ".join(map(str, seeds))
