"""The experiment manager under its planned name; the code is in runtime/seed_runs.py.

The names are imported on first use, because `experiment` is below `runtime` and must not import it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.runtime.seed_runs import (
        SeedsResult,
        Summary,
        interquartile_mean,
        parse_seeds,
        run_in,
        run_seeds,
        summarize,
    )
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("rl_training.runtime.seed_runs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
