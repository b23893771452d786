"""The experiment manager under the name that the plan gives it; the code is in runtime/seed_runs.py.

The names are looked up on first use, because `experiment` lies below `runtime` and must not import it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.runtime.seed_runs import (
        EXIT_INTERRUPTED,
        SeedsResult,
        Summary,
        interquartile_mean,
        parse_seeds,
        run_in,
        run_seeds,
        summarize,
    )

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
