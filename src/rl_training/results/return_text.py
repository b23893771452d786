"""Returns as text: with as many decimals as tell small ones apart."""

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
