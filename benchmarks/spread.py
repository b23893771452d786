"""The median of repeats with their range. Statistics over seeds are those of the library: results/statistics.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


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
