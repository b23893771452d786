"""All algorithms by name; CLI, API classes, entry points, validation, schema, docs and tests are derived from them."""

import difflib
import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from rl_training.errors import ConfigError, text_of
from rl_training.experiment.algorithm_spec import AlgorithmSpec as AlgorithmSpec
from rl_training.experiment.rows import actor_critic, model_based, offline, on_policy, q_learning

ENTRY_POINT_GROUP = "rl_training.algorithms"
ROWS = (*q_learning.ROWS, *on_policy.ROWS, *actor_critic.ROWS, *model_based.ROWS, *offline.ROWS)  # the library's own

log = logging.getLogger("rl_training")


@cache
def registry() -> dict[str, AlgorithmSpec]:
    """Return every row by name: the library's, then those of packages with the entry point `rl_training.algorithms`."""
    rows = {spec.name: spec for spec in ROWS}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            spec = _load_row(entry_point, rows)
        except ConfigError as error:  # the other algorithms are not affected
            _broken[entry_point.name] = str(error)
            log.warning("%s; this algorithm is left out", error)
        else:
            rows[spec.name] = spec
    return rows


_broken: dict[str, str] = {}  # entry points that could not be loaded, and why


def _load_row(entry_point: EntryPoint, rows: Mapping[str, AlgorithmSpec]) -> AlgorithmSpec:
    """Load the row of another package; raise `ConfigError` if it cannot be added to `rows`."""
    try:
        spec = entry_point.load()
    except Exception as error:  # code of another package: it may raise anything
        raise ConfigError(f"entry point {entry_point.value!r} cannot be loaded: {text_of(error)}") from error
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(
            f"entry point {entry_point.name!r} of group {ENTRY_POINT_GROUP!r} must be an AlgorithmSpec, "
            f"got {type(spec).__name__}"
        )
    if spec.name in rows:
        raise ConfigError(f"entry point {entry_point.value!r}: an algorithm named {spec.name!r} exists already")
    if spec.class_name in {row.class_name for row in rows.values()}:
        raise ConfigError(
            f"entry point {entry_point.value!r}: an algorithm with the class {spec.class_name} exists already"
        )
    return spec


def find_spec(name: str) -> AlgorithmSpec:
    rows = registry()
    if name not in rows and name in _broken:
        raise ConfigError(f"algo: {name!r} cannot be used: {_broken[name]}")
    if name not in rows:
        close = difflib.get_close_matches(name.lower(), rows, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(rows))}"
        raise ConfigError(f"algo: unknown algorithm {name!r}; {hint}")
    return rows[name]
