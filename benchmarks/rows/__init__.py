"""The rows of the score table, by family."""

from collections.abc import Sequence

from benchmarks.command_line import unknown
from benchmarks.engine import Row
from benchmarks.rows import (
    continuous,
    defaults,
    dqn,
    five_tasks,
    imitation,
    minatar,
    model_based,
    offline,
    ppo,
    recurrent,
    world_models,
)

FAMILIES = (
    dqn,
    minatar,
    ppo,
    recurrent,
    defaults,
    continuous,
    five_tasks,
    model_based,
    offline,
    imitation,
    world_models,
)
ROWS: dict[str, Row] = {name: row for family in FAMILIES for name, row in family.ROWS.items()}
SUITES = {**offline.SUITES, **five_tasks.SUITES}


def rows_named(names: Sequence[str]) -> list[str]:
    """Return the rows that names stand for: a row, or all whose names begin with it and a hyphen. No names: all."""
    found: list[str] = []
    for name in names or ROWS:
        rows = [name] if name in ROWS else [row for row in ROWS if row.startswith(f"{name}-")]
        if not rows:
            raise unknown(name, list(ROWS), "row")
        found += rows
    return list(dict.fromkeys(found))
