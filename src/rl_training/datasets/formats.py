"""Datasets in one file: npz, HDF5 in the layout of D4RL, and Parquet. Sizes are read before data; no code is run."""

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rl_training.core.extras import require
from rl_training.core.memory_limits import check_memory
from rl_training.core.npz_files import npy_bytes, read_npy, report_damage
from rl_training.datasets.metadata import MAX_TEXT, METADATA_KEY, metadata_from_text, metadata_to_text
from rl_training.datasets.transitions import Transitions, build_transitions, match_columns
from rl_training.errors import DatasetError

_ROWS_AT_ONCE = 65_536  # of a Parquet file
_D4RL_NAMES = {"terminations": "terminals", "truncations": "timeouts"}  # the other names are the same


def check_file(path: Path) -> None:
    """Raise `DatasetError` unless the path is a regular file: opening a pipe, for example, would never return."""
    if not path.exists():
        raise DatasetError(f"there is no dataset {path}")
    if not path.is_file():
        raise DatasetError(f"{path} is not a file")
    if path.stat().st_size == 0:
        raise DatasetError(f"{path} is empty: 0 bytes")


def check_size(num_bytes: int, path: Path) -> None:
    """Raise `ConfigError` if a dataset cannot fit in memory, by the size that its file declares."""
    check_memory(num_bytes, f"the dataset {path}", "its size, or use a machine with more")


# --- npz -------------------------------------------------------------------------------------------------------------


def read_npz(path: Path, *, allow_entry_points: bool = False) -> Transitions:
    """Read arrays from a zip of npy files; see docs/datasets.md for their names."""
    check_file(path)
    with report_damage(path, "a npz file"), zipfile.ZipFile(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if len(set(members)) < len(members):
            raise DatasetError(f"{path} has a member twice: {', '.join(sorted(set(members)))}")
        names = match_columns(members, str(path))
        expected = [*names.values(), *([METADATA_KEY] if METADATA_KEY in members else [])]
        check_size(sum(npy_bytes(archive, name, path, max_text=MAX_TEXT) for name in expected), path)
        columns = {column: read_npy(archive, name) for column, name in names.items()}
        spaces, env_id = None, ""
        if METADATA_KEY in members:
            text = read_npy(archive, METADATA_KEY)
            if text.dtype.kind != "U" or text.ndim:
                raise DatasetError(f"{path}: {METADATA_KEY!r} must be a text, found dtype {text.dtype}")
            spaces, env_id = metadata_from_text(text.item(), str(path), allow_entry_points=allow_entry_points)
    return build_transitions(columns, source=str(path), spaces=spaces, env_id=env_id)


def write_npz(transitions: Transitions, path: Path) -> None:
    """Write all columns under the names of the library, compressed, with the spaces and the environment id."""
    with path.open("wb") as file:
        write_npz_to(file, transitions)


def write_npz_to(file: BinaryIO, transitions: Transitions) -> None:
    metadata = {METADATA_KEY: np.array(transitions_metadata(transitions))}
    np.savez_compressed(file, allow_pickle=False, **transitions.columns(), **metadata)


def transitions_metadata(transitions: Transitions) -> str:
    if transitions.spaces is None:
        return "{}"
    return metadata_to_text(transitions.spaces, transitions.env_id)


# --- HDF5 ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    h5py = require("h5py", extra="offline", what=f"the HDF5 file {path}")
    check_file(path)
    with report_damage(path, "a HDF5 file"):
        if not h5py.is_hdf5(path):
            raise DatasetError(f"{path} is not a HDF5 file")
        with h5py.File(path, "r") as file:
            yield file


def hdf5_member(group: Any, name: str, path: Path) -> Any:
    """Return a member of a group; raise `DatasetError` for a link, which is not followed."""
    h5py = require("h5py", extra="offline", what=f"the HDF5 file {path}")
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise DatasetError(f"{path}: {name!r} is a link ({type(link).__name__}), which is not followed")
    return group[name]


def hdf5_array(group: Any, name: str, path: Path) -> tuple[int, Callable[[], np.ndarray]]:
    """Return the bytes that an array needs, and the function that reads it."""
    h5py = require("h5py", extra="offline", what=f"the HDF5 file {path}")
    dataset = hdf5_member(group, name, path)
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise DatasetError(f"{path}: {name!r} must be an array, found {type(dataset).__name__}")
    if dataset.is_virtual or dataset.external:
        raise DatasetError(f"{path}: {name!r} is stored in another file, which is not read")
    if dataset.dtype.kind not in "biuf":
        raise DatasetError(f"{path}: {name} must be numbers, found dtype {dataset.dtype}")
    return math.prod(dataset.shape) * dataset.dtype.itemsize, lambda: np.asarray(dataset[()])


def read_hdf5(path: Path, *, allow_entry_points: bool = False) -> Transitions:
    """Read the layout of D4RL: arrays at the top level of the file, `terminals` and `timeouts` among them."""
    with open_hdf5(path) as file:
        names = match_columns(file.keys(), str(path))
        arrays = {column: hdf5_array(file, name, path) for column, name in names.items()}
        check_size(sum(num_bytes for num_bytes, _ in arrays.values()), path)
        columns = {column: read() for column, (_, read) in arrays.items()}
        spaces, env_id = None, ""
        # Files of D4RL have a group of that name.
        if METADATA_KEY in file and not hasattr(hdf5_member(file, METADATA_KEY, path), "keys"):
            num_bytes, read_text = hdf5_array(file, METADATA_KEY, path)
            if num_bytes > MAX_TEXT:
                raise DatasetError(f"{path}: {METADATA_KEY!r} is a text of {num_bytes:,} bytes")
            spaces, env_id = metadata_from_text(read_text().tobytes(), str(path), allow_entry_points=allow_entry_points)
    return build_transitions(columns, source=str(path), spaces=spaces, env_id=env_id)


def write_hdf5(transitions: Transitions, path: Path) -> None:
    """Write the layout of D4RL, with next observations."""
    h5py = require("h5py", extra="offline", what="a HDF5 dataset")
    with h5py.File(path, "w") as file:
        for name, array in transitions.columns().items():
            file.create_dataset(_D4RL_NAMES.get(name, name), data=array, compression="gzip", fletcher32=True)
        # As bytes, because an attribute in HDF5's older format holds only 64 KiB, and bounds of an image need more.
        file.create_dataset(METADATA_KEY, data=np.frombuffer(transitions_metadata(transitions).encode(), np.uint8))


# --- Parquet ---------------------------------------------------------------------------------------------------------


def read_parquet(path: Path, *, allow_entry_points: bool = False) -> Transitions:
    """Read one row per transition; observations and actions of several numbers are lists."""
    check_file(path)
    with report_damage(path, "a Parquet file"), open_parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        names = match_columns(schema.names, str(path))
        if rows == 0:
            raise DatasetError(f"{path} is empty: it has no rows")
        spaces, env_id = None, ""
        text = (schema.metadata or {}).get(METADATA_KEY.encode())
        if text is not None:
            spaces, env_id = metadata_from_text(text, str(path), allow_entry_points=allow_entry_points)
        table = read_parquet_table(file, list(names.values()), path)
        columns = {column: arrow_numbers(table.column(name), column, path) for column, name in names.items()}
    if spaces is not None:
        for name, space in (("observations", spaces.observation), ("actions", spaces.action)):
            columns |= {
                key: _shaped(key, columns[key], space.shape, path) for key in (name, f"next_{name}") if key in columns
            }
    return build_transitions(columns, source=str(path), spaces=spaces, env_id=env_id)


def open_parquet(path: Path) -> Any:
    require("pyarrow", extra="offline", what=f"the dataset {path}")
    parquet = require("pyarrow.parquet", extra="offline", what=f"the dataset {path}")
    return parquet.ParquetFile(path, page_checksum_verification=True)


def read_parquet_table(file: Any, columns: Sequence[str], path: Path) -> Any:
    """Read columns in pieces, so that unexpectedly long lists raise an error before the system kills the process.

    The footer holds the number of values, but reading a damaged footer crashes the process (pyarrow 26).
    """
    arrow = require("pyarrow", extra="offline", what=f"the dataset {path}")
    schema, rows = file.schema_arrow, file.metadata.num_rows
    types = [schema.field(name).type for name in columns]
    widths = [kind.list_size if arrow.types.is_fixed_size_list(kind) else 1 for kind in types]
    check_size(8 * rows * sum(widths), path)
    pieces = []
    for piece in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
        check_size(2 * piece.nbytes, path)  # it is in memory already; there must be room for a copy
        pieces.append(piece)
    return arrow.Table.from_batches(pieces, pieces[0].schema if pieces else None)


def arrow_numbers(column: Any, name: str, path: Path) -> np.ndarray:
    """Return a column of numbers, or of lists of equal length, as an array: (rows,) or (rows, numbers)."""
    arrow = require("pyarrow", extra="offline", what=f"the dataset {path}")
    column = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    if isinstance(column, arrow.ChunkedArray):  # it has more values than one array can hold
        raise DatasetError(f"{path}: {name} has too many values for one column")
    rows, types = len(column), arrow.types
    if column.null_count:
        raise DatasetError(f"{path}: {column.null_count:,} of {rows:,} rows have no {name}")
    is_list = types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
    values = column.flatten() if is_list else column
    if is_list and not types.is_fixed_size_list(column.type):
        _check_equal_lengths(np.asarray(column.value_lengths()), name, path)
    is_number = types.is_integer(values.type) or types.is_floating(values.type) or types.is_boolean(values.type)
    if not is_number:
        raise DatasetError(f"{path}: {name} must be numbers or lists of numbers, found {column.type}")
    if values.null_count:
        raise DatasetError(f"{path}: {values.null_count:,} numbers of {name} are missing")
    array: np.ndarray = values.to_numpy(zero_copy_only=False)
    return array.reshape(rows, len(array) // rows) if is_list and rows else array


def _check_equal_lengths(lengths: np.ndarray, name: str, path: Path) -> None:
    if len(lengths) and (lengths != lengths[0]).any():
        first = int((lengths != lengths[0]).argmax())
        raise DatasetError(
            f"{path}: {name} must be lists of one length, found {lengths[0]} in row 0, "
            f"{lengths[first]} in row {first:,}"
        )


def _shaped(name: str, array: np.ndarray, shape: tuple[int, ...] | None, path: Path) -> np.ndarray:
    expected = (len(array), *(shape or ()))
    if array.size != math.prod(expected):
        raise DatasetError(f"{path}: {name} must have shape {expected}, found {array.shape}")
    return array.reshape(expected)


def write_parquet(transitions: Transitions, path: Path) -> None:
    """Write one row per transition, arrays as lists of fixed length."""
    arrow, parquet = (
        require("pyarrow", extra="offline", what="a Parquet dataset"),
        require("pyarrow.parquet", extra="offline", what="a Parquet dataset"),
    )
    columns = {}
    for name, array in transitions.columns().items():
        values = arrow.array(array.reshape(-1))
        width = math.prod(array.shape[1:])
        columns[name] = arrow.FixedSizeListArray.from_arrays(values, width) if array.ndim > 1 else values
    table = arrow.table(columns).replace_schema_metadata({METADATA_KEY: transitions_metadata(transitions)})
    parquet.write_table(table, path, compression="zstd", write_page_checksum=True)
