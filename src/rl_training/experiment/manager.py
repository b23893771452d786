"""The experiment manager under its planned name; the code is in the modules that it names.

The names are imported on first use, because `experiment` is below these folders and must not import them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.core.seeding import parse_seeds
    from rl_training.launching.seed_runs import SeedsResult, run_in, run_seeds
    from rl_training.results.statistics import Summary, interquartile_mean, summarize
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
_MODULES = {
    "EXIT_INTERRUPTED": "rl_training.runtime.signals",
    "parse_seeds": "rl_training.core.seeding",
    **dict.fromkeys(("Summary", "interquartile_mean", "summarize"), "rl_training.results.statistics"),
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_MODULES.get(name, "rl_training.launching.seed_runs")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
