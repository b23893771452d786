"""The experiment manager under its planned name; the code is in runtime/seed_runs.py and results/statistics.py.

The names are imported on first use, because `experiment` is below these folders and must not import them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.results.statistics import Summary, interquartile_mean, summarize
    from rl_training.runtime.seed_runs import SeedsResult, parse_seeds, run_in, run_seeds
    from rl_training.runtime.signals import EXIT_INTERRUPTED

__all__ = [
    "EXIT_INTERRUPTED",
    "SeedsResult",
    "Summary",
    "interquartile_mean",
    "parse_seeds",
    "run_in",
    "run_seeds",
    "summarize",
]
_STATISTICS = ("Summary", "interquartile_mean", "summarize")


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "rl_training.results.statistics" if name in _STATISTICS else "rl_training.runtime.seed_runs"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
