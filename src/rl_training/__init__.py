"""Reinforcement-learning training: one config, one CLI, one API, exact resume.

Names are imported on first use (PEP 562), so that `rl-training --help` does not import torch. api/exports.py lists
them; `__init__.pyi` shows them to type checkers and editors.
"""

from typing import Any

from rl_training.api import exports as _exports
from rl_training.core.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_exports.homes())
    return _exports.load_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_exports.homes()})
