"""Which dataset a run learns from, as its settings name it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from rl_training.errors import ConfigError

DatasetKind = Literal["random", "npz", "minari", "hdf5", "parquet", "arrays"]
_FIELDS = ("dataset_kind", "dataset_path", "dataset_id", "dataset_size", "dataset_seed")
HELD_OUT_WITHOUT_ENV = 0.1  # share of the episodes, if held_out is not set
_PREFIXES = ("", "expert_")  # what may stand before the fields' names in an algorithm's settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    """The settings that name a dataset; `prefix` stands before their names in the algorithm's settings."""

    dataset_kind: str | None  # None: by the name of the file
    dataset_path: Path | None
    dataset_id: str | None
    dataset_size: int | None
    dataset_seed: int
    held_out: float = 0.0  # share of the episodes that are not learned from
    prefix: str = ""

    def check_given(self, algo: str) -> None:
        """Raise `ConfigError` if no dataset is named."""
        if self.dataset_kind is None and self.dataset_path is None and self.dataset_id is None:
            raise ConfigError(
                f"{algo} learns from a dataset, and none is given: in Python, dataset= takes the path of a file, a "
                f"dict of arrays or a TransitionDataset; on the command line, --set algo_kwargs.{self.prefix}"
                f"dataset_path=FILE; {self.prefix}dataset_kind: random generates uniform random actions"
            )


def dataset_choice(settings: BaseModel, *, has_env: bool = True) -> DatasetChoice | None:
    """Return the dataset that the settings name, or None if they have no such fields.

    `has_env`: whether the run has an environment to be evaluated in; without one, held-out data are needed.
    """
    held_out = getattr(settings, "held_out", 0.0)
    if held_out is None:
        held_out = 0.0 if has_env else HELD_OUT_WITHOUT_ENV
    for prefix in _PREFIXES:
        if prefix + _FIELDS[0] in type(settings).model_fields:
            values = {name: getattr(settings, prefix + name) for name in _FIELDS}
            return DatasetChoice(**values, held_out=held_out, prefix=prefix)
    return None


def check_dataset(dataset_kind: str | None, dataset_path: Path | None, dataset_id: str | None) -> None:
    _check(dataset_kind, dataset_path, dataset_id, prefix="")


def check_expert_dataset(
    expert_dataset_kind: str | None, expert_dataset_path: Path | None, expert_dataset_id: str | None
) -> None:
    _check(expert_dataset_kind, expert_dataset_path, expert_dataset_id, prefix="expert_")


def _check(kind: str | None, path: Path | None, identifier: str | None, *, prefix: str) -> None:
    """Raise ValueError unless exactly what the kind needs is given."""
    names = {"dataset_path": path, "dataset_id": identifier}
    given = [name for name, value in names.items() if value not in (None, "")]
    wanted = {None: list(names), "random": [], "arrays": [], "minari": list(names)}.get(kind, ["dataset_path"])
    if wanted and not given and kind is not None:
        missing = " or ".join(f"{prefix}{name}" for name in wanted)
        raise ValueError(f"{missing} is missing: {prefix}dataset_kind {kind} needs it")
    if len(given) > 1:
        raise ValueError(f"give {prefix}dataset_path or {prefix}dataset_id, not both")
    if given and given[0] not in wanted:
        found = str(names[given[0]])
        raise ValueError(f"{prefix}{given[0]} must be null for {prefix}dataset_kind {kind}, got {found!r}")
