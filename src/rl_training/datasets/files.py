"""Read and write datasets of all formats. Writing leaves a complete file or none."""

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from rl_training.core.durable_files import sync_folder
from rl_training.datasets.formats import read_hdf5, read_npz, read_parquet, write_hdf5, write_npz, write_parquet
from rl_training.datasets.minari_format import is_minari, read_minari, write_minari
from rl_training.datasets.transitions import Transitions
from rl_training.errors import ConfigError, DatasetError

FileKind = Literal["npz", "hdf5", "parquet", "minari"]


class Read(Protocol):
    def __call__(self, path: Path, *, allow_entry_points: bool = False) -> Transitions: ...


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of dataset is stored on disk."""

    suffixes: tuple[str, ...]  # empty for a folder
    read: Read
    write: Callable[[Transitions, Path], None]


FORMATS: Mapping[FileKind, Format] = {
    "npz": Format((".npz",), read_npz, write_npz),
    "hdf5": Format((".hdf5", ".h5"), read_hdf5, write_hdf5),
    "parquet": Format((".parquet",), read_parquet, write_parquet),
    "minari": Format((), read_minari, write_minari),
}


def file_kind(path: Path) -> FileKind:
    """Return the format of a file by its name; a folder is a Minari dataset."""
    for kind, known in FORMATS.items():
        if path.suffix.lower() in known.suffixes:
            return kind
    if path.suffix == "" or is_minari(path):
        return "minari"
    known_suffixes = ", ".join(suffix for known in FORMATS.values() for suffix in known.suffixes)
    raise ConfigError(f"{path}: a dataset is a file ending in {known_suffixes}, or the folder of a Minari dataset")


def read_transitions(path: Path, kind: FileKind | None = None, *, allow_entry_points: bool = False) -> Transitions:
    """Read a dataset; `kind` overrides the format that its name implies."""
    if not path.exists():
        raise DatasetError(f"there is no dataset {path}")
    return FORMATS[kind or file_kind(path)].read(path, allow_entry_points=allow_entry_points)


def check_new(path: Path) -> FileKind:
    """Return the format of a file to be written; raise `ConfigError` if the path exists."""
    if path.exists():
        raise ConfigError(f"{path} exists: remove it, or name another")
    return file_kind(path)


def write_transitions(transitions: Transitions, path: Path) -> None:
    """Write a dataset in the format that the name implies; the path appears when the dataset is complete."""
    kind = check_new(path)
    write = partial(write_minari, name=path.name) if kind == "minari" else FORMATS[kind].write
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}_{os.getpid()}{path.suffix}")
    try:
        write(transitions, temporary)
        for file in [temporary] if temporary.is_file() else [file for file in temporary.rglob("*") if file.is_file()]:
            with file.open("rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink() if temporary.is_file() else shutil.rmtree(temporary)
