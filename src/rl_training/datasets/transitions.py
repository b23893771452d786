"""Transitions as files hold them: actions of the environment, one row per step, flags where episodes end."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.core.spaces import Spaces
from rl_training.errors import DatasetError

log = logging.getLogger("rl_training")

# The name of each column, and its names in files: those of Minari, of the library's batches, and of D4RL.
COLUMN_NAMES = {
    "observations": ("observations", "obs"),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "next_observations": ("next_observations", "next_obs"),
    "terminations": ("terminations", "terminated", "terminals"),
    "truncations": ("truncations", "truncated", "timeouts"),
}
_MERGED_ENDS = ("dones", "done")  # these do not distinguish termination from truncation
PER_STEP = ("rewards", "terminations", "truncations")  # one number per row
_ROUNDING = 1e-3  # share of the largest size of an entry by which rounding may change it: half precision, three digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """The columns of a dataset, N rows each, checked for lengths and dtypes only.

    A row with `terminations` or `truncations` is the last of its episode; so is the last row of all.
    """

    source: str  # for messages: the file
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    spaces: Spaces | None = None  # as the file declares them
    env_id: str = ""
    rows: np.ndarray | None = None  # the number of each row in the file, of which some were dropped

    def columns(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in COLUMN_NAMES}

    def __len__(self) -> int:
        return len(self.rewards)


def match_columns(found: Iterable[str], source: str) -> dict[str, str]:
    """Return the name in the file of each known column that it has; raise `DatasetError` if a required one is missing.

    `found`: the names in the file.
    """
    found = list(found)
    names: dict[str, str] = {}
    for column, known in COLUMN_NAMES.items():
        present = [name for name in known if name in found]
        if len(present) > 1:
            raise DatasetError(f"{source} has {' and '.join(map(repr, present))}: remove all but one of them")
        if present:
            names[column] = present[0]
    merged = next((name for name in _MERGED_ENDS if name in found), None)
    if merged is not None and not {"terminations", "truncations"} <= names.keys():
        raise DatasetError(
            f"{source} has {merged!r}, which merges terminations with time limits; "
            "it must have separate columns 'terminations' and 'truncations'"
        )
    missing = [name for name in ("observations", "actions", "rewards", "terminations") if name not in names]
    if missing:
        listed = ", ".join(map(repr, found[:20])) or "nothing"
        raise DatasetError(f"{source} has no column {' and no '.join(map(repr, missing))}; it has {listed}")
    if not {"truncations", "next_observations"} & names.keys():
        raise DatasetError(
            f"{source} has neither 'truncations' nor 'next_observations': "
            "one of them is needed to know where a time limit ended an episode"
        )
    return names


def build_transitions(
    columns: Mapping[str, Any], *, source: str, spaces: Spaces | None = None, env_id: str = ""
) -> Transitions:
    """Check the columns of a file against each other, and derive the missing ones. `columns`: by known names."""
    arrays = {name: _as_numbers(name, values, source) for name, values in columns.items()}
    for name in PER_STEP:
        if name in arrays:
            arrays[name] = _one_per_row(name, arrays[name], source)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise DatasetError(f"{source}: columns must be of one length, found {found}")
    if not lengths["rewards"]:
        raise DatasetError(f"{source} is empty: it has no rows")
    for name in ("terminations", "truncations"):
        if name in arrays:
            arrays[name] = _as_flags(name, arrays[name], source)
    obs, next_obs = arrays["observations"], arrays.get("next_observations")
    if next_obs is None:
        arrays = _with_successors(arrays, source)
    elif next_obs.shape != obs.shape:
        raise DatasetError(f"{source}: next_observations have shape {next_obs.shape}, but observations {obs.shape}")
    else:
        arrays["truncations"] = _all_truncations(arrays, source)
    return Transitions(source=source, spaces=spaces, env_id=env_id, **arrays)


def rows_with(flags: np.ndarray) -> np.ndarray:
    """Return which rows have any flag set: (rows, ...) to (rows,)."""
    rows: np.ndarray = np.any(flags, axis=tuple(range(1, flags.ndim)))
    return rows


class BadRowsError(DatasetError):
    """Rows of a dataset are refused."""

    first: int  # row


def refuse_rows(bad: np.ndarray, values: np.ndarray, problem: str, source: str) -> None:
    """Raise `DatasetError` if any row is bad; the message counts them and shows the first one."""
    if bad.any():
        error = BadRowsError(f"{source}: {describe_rows(bad, values, problem)}")
        error.first = int(bad.argmax())
        raise error


@contextlib.contextmanager
def rows_of_the_file(transitions: Transitions) -> Iterator[None]:
    """Name the first bad row of an error by its number in the file."""
    try:
        yield
    except BadRowsError as error:
        if transitions.rows is None:
            raise
        shown, in_file = (f"first in row {row:,}:" for row in (error.first, transitions.rows[error.first]))
        raise DatasetError(str(error).replace(shown, in_file)) from None


def describe_rows(bad: np.ndarray, values: np.ndarray, problem: str) -> str:
    first = int(bad.argmax())
    shown = np.array2string(values[first], threshold=12, precision=6)
    return f"{problem} in {int(bad.sum()):,} of {len(bad):,} rows, first in row {first:,}: {shown}"


def _as_numbers(name: str, values: Any, source: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise DatasetError(f"{source}: {name} must be numbers, found dtype {array.dtype}")
    if array.ndim == 0:
        raise DatasetError(f"{source}: {name} must have one entry per row, found a single number")
    return array


def _one_per_row(name: str, array: np.ndarray, source: str) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DatasetError(f"{source}: {name} must hold one number per row, found shape {array.shape}")
    return array


def _as_flags(name: str, array: np.ndarray, source: str) -> np.ndarray:
    if array.dtype != np.bool_:
        refuse_rows((array != 0) & (array != 1), array, f"{name} must be 0 or 1, but are not", source)
    return array.astype(np.bool_)


def _all_truncations(arrays: dict[str, np.ndarray], source: str) -> np.ndarray:
    """Return the truncations of the file and those that only a jump of the observations shows."""
    next_obs, terminations = arrays["next_observations"], arrays["terminations"]
    marked = arrays.get("truncations", np.zeros_like(terminations))
    jumps = _find_jumps(arrays["observations"], next_obs) & ~terminations & ~marked
    if "truncations" not in arrays:
        jumps[-1] = not terminations[-1]
    elif jumps.any():
        problem = describe_rows(jumps, next_obs, "the next observation is not the next row's observation")
        log.warning("%s: %s, although no episode ends there; these rows count as truncated", source, problem)
    truncations: np.ndarray = marked | jumps
    return truncations


def _find_jumps(obs: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """Return where the next row does not begin with this row's next observation, which may be stored rounded."""
    jumps = np.zeros(len(obs), np.bool_)
    jumps[:-1] = rows_with(next_obs[:-1] != obs[1:])
    found = np.flatnonzero(jumps)
    if len(found) and np.result_type(obs, next_obs).kind == "f":
        with np.errstate(all="ignore"):  # numbers that are not finite are refused later
            distances = np.abs(next_obs[found] - obs[found + 1])
            jumps[found] = rows_with(distances > _ROUNDING * np.abs(obs).max(0))
    return jumps


def _with_successors(arrays: dict[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    """Derive next observations from the following rows; drop rows whose next observation the file does not hold.

    These are the last rows of truncated episodes and of the file. The row before then becomes the last of its episode,
    marked as truncated. After a termination no target uses the next observation, so the observation itself is stored.
    """
    obs, terminations = arrays["observations"], arrays["terminations"]
    truncations = arrays["truncations"].copy()
    next_obs = np.concatenate([obs[1:], obs[-1:]])
    next_obs[terminations] = obs[terminations]
    unknown = truncations & ~terminations
    unknown[-1] = not terminations[-1]
    # The row before a dropped one; if it terminates an episode, the dropped row was an episode of its own.
    before = np.flatnonzero(unknown[1:])
    truncations[before] |= ~terminations[before]
    keep = ~unknown
    if not keep.any():
        raise DatasetError(f"{source}: no row has a successor; without 'next_observations' an episode needs two rows")
    if unknown.any():
        log.info("%s: dropped %s rows whose next observation is not stored", source, f"{int(unknown.sum()):,}")
    columns = {**arrays, "next_observations": next_obs, "truncations": truncations, "rows": np.arange(len(obs))}
    return {name: array[keep] for name, array in columns.items()}
