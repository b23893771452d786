"""Which dataset a run learns from, as its settings name it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DatasetKind = Literal["random", "npz", "minari", "hdf5", "parquet"]
_NAMES = ("dataset_path", "dataset_id")  # what tells which dataset it is


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """The settings that name a dataset; `prefix` stands before their names in the algorithm's own settings."""

    dataset_kind: str
    dataset_path: Path | None
    dataset_id: str | None
    dataset_size: int | None
    dataset_seed: int
    prefix: str = ""

    def check(self) -> None:
        """Raise ValueError unless exactly what the kind needs is given."""
        prefix, kind = self.prefix, self.dataset_kind
        given = [name for name in _NAMES if getattr(self, name) not in (None, "")]
        wanted = {"random": (), "minari": _NAMES}.get(kind, _NAMES[:1])
        if wanted and not given:
            names = " or ".join(f"{prefix}{name}" for name in wanted)
            raise ValueError(f"{names} is missing: {prefix}dataset_kind {kind} needs it")
        if len(given) > 1:
            raise ValueError(f"give {prefix}dataset_path or {prefix}dataset_id, not both")
        if given and given[0] not in wanted:
            found = str(getattr(self, given[0]))
            raise ValueError(f"{prefix}{given[0]} must be null for {prefix}dataset_kind {kind}, got {found!r}")
