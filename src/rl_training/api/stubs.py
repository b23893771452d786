"""Write `rl_training/__init__.pyi`, which shows type checkers and editors what the package offers.

    python -m rl_training.api.stubs            write
    python -m rl_training.api.stubs --check    change nothing; exit code 1 if the file is stale

A test runs the check.
"""

import sys
import textwrap
from pathlib import Path

from rl_training.api.exports import MODULES
from rl_training.experiment.registry import ROWS, AlgorithmSpec

STUB = Path(__file__).parent.parent / "__init__.pyi"
_WIDTH = 120

_HEAD = '''\
"""Reinforcement-learning training: one config, one CLI, one API, exact resume."""

# Written by `python -m rl_training.api.stubs` from the registry and api/exports.py.

from typing import ClassVar

'''


def stub_text() -> str:
    """Return the stub of the package: names imported from their modules, a class and an entry point per algorithm."""
    modules = sorted({**MODULES, "rl_training.core.version": ("__version__",)}.items())
    imports = [f"from {module} import {name} as {name}\n" for module, names in modules for name in sorted(names)]
    return "".join([_HEAD, *imports, *map(_class_text, ROWS), *map(_entry_point_text, ROWS)])


def _class_text(spec: AlgorithmSpec) -> str:
    return f"""
class {spec.class_name}(ManagedAlgorithm):
{_docstring(spec.class_doc)}

    algo_name: ClassVar[str] = "{spec.name}"
"""


def _entry_point_text(spec: AlgorithmSpec) -> str:
    return f"""
def {spec.entry_point}(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
{_docstring(spec.entry_point_doc)}
"""


def _docstring(text: str) -> str:
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, _WIDTH - 8) or [""]]
    body = "\n".join(lines)
    return textwrap.indent(f'"""{body}\n"""' if len(lines) > 1 else f'"""{body}"""', "    ")


def main() -> int:
    stale = not STUB.is_file() or STUB.read_text("utf-8") != stub_text()
    if "--check" in sys.argv[1:]:
        print(f"{STUB} is {'stale' if stale else 'fresh'}")
        return int(stale)
    STUB.write_text(stub_text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
