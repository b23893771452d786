"""Which dataset a run learns from, as its settings name it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

DatasetKind = Literal["random", "npz", "minari", "hdf5", "parquet"]
_FIELDS = ("dataset_kind", "dataset_path", "dataset_id", "dataset_size", "dataset_seed")
_PREFIXES = ("", "expert_")  # what may stand before the fields' names in an algorithm's settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """The settings that name a dataset; `prefix` stands before their names in the algorithm's settings."""

    dataset_kind: str
    dataset_path: Path | None
    dataset_id: str | None
    dataset_size: int | None
    dataset_seed: int
    held_out: float = 0.0  # share of the episodes that are not learned from
    prefix: str = ""


def dataset_choice(settings: BaseModel) -> DatasetChoice | None:
    """Return the dataset that the settings name, or None if they have no such fields."""
    for prefix in _PREFIXES:
        if prefix + _FIELDS[0] in type(settings).model_fields:
            values = {name: getattr(settings, prefix + name) for name in _FIELDS}
            return DatasetChoice(**values, held_out=getattr(settings, "held_out", 0.0), prefix=prefix)
    return None


def check_dataset(dataset_kind: str, dataset_path: Path | None, dataset_id: str | None) -> None:
    _check(dataset_kind, dataset_path, dataset_id, prefix="")


def check_expert_dataset(
    expert_dataset_kind: str, expert_dataset_path: Path | None, expert_dataset_id: str | None
) -> None:
    _check(expert_dataset_kind, expert_dataset_path, expert_dataset_id, prefix="expert_")


def _check(kind: str, path: Path | None, identifier: str | None, *, prefix: str) -> None:
    """Raise ValueError unless exactly what the kind needs is given."""
    names = {"dataset_path": path, "dataset_id": identifier}
    given = [name for name, value in names.items() if value not in (None, "")]
    wanted = {"random": [], "minari": list(names)}.get(kind, ["dataset_path"])
    if wanted and not given:
        missing = " or ".join(f"{prefix}{name}" for name in wanted)
        raise ValueError(f"{missing} is missing: {prefix}dataset_kind {kind} needs it")
    if len(given) > 1:
        raise ValueError(f"give {prefix}dataset_path or {prefix}dataset_id, not both")
    if given and given[0] not in wanted:
        found = str(names[given[0]])
        raise ValueError(f"{prefix}{given[0]} must be null for {prefix}dataset_kind {kind}, got {found!r}")
