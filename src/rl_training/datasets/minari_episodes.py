"""Episodes of a local Minari dataset, each with its columns, read from HDF5, Arrow or Parquet files."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.extras import require
from rl_training.core.npz_files import report_damage
from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import Spaces
from rl_training.datasets.formats import (
    arrow_numbers,
    check_file,
    check_size,
    hdf5_array,
    hdf5_member,
    open_parquet,
    read_parquet_table,
)
from rl_training.datasets.transitions import PER_STEP
from rl_training.errors import DatasetError

# A column of an episode: the bytes that it needs, and the function that reads it.
Column: TypeAlias = tuple[int, Callable[[], np.ndarray]]
Episode: TypeAlias = dict[str, Column]


class Layout(NamedTuple):
    """What reading an episode needs to know of its dataset."""

    path: Path
    spaces: Spaces
    jpeg: bool  # whether images are JPEG files, one per frame


# --- Episodes in HDF5 ------------------------------------------------------------------------------------------------


def hdf5_episode(file: Any, number: int, layout: Layout) -> Episode:
    """Return the columns of an episode, which is a group of the file."""
    group = hdf5_member(file, f"episode_{number}", layout.path)
    episode = {name: _hdf5_column(group, name, layout) for name in PER_STEP}
    episode["observations"] = _hdf5_elements(group, "observations", layout.spaces.observation, layout)
    episode["actions"] = _hdf5_elements(group, "actions", layout.spaces.action, layout)
    return episode


def _hdf5_column(group: Any, name: str, layout: Layout) -> Column:
    if name not in group:
        raise DatasetError(f"{layout.path}: {group.name} has no {name!r}")
    return hdf5_array(group, name, layout.path)


def _hdf5_elements(group: Any, name: str, space: gym.Space[Any], layout: Layout) -> Column:
    """Return a column of elements of a space: an array, images as JPEG files, or a group for each level of a Dict."""
    if isinstance(space, PackedSpace):
        leaves = []
        for leaf in space.leaves:
            inner = hdf5_member(group, name, layout.path)
            for key in leaf.path[:-1]:
                inner = hdf5_member(inner, key, layout.path)
            leaves.append(_hdf5_elements(inner, leaf.path[-1], leaf.space, layout))
        return _pack_column(space, leaves, layout.path)
    if layout.jpeg and _is_image(space):
        dataset = hdf5_member(group, name, layout.path)
        return math.prod((len(dataset), *(space.shape or ()))), lambda: _decode_jpegs(
            list(dataset[()]), space, layout.path
        )
    return _hdf5_column(group, name, layout)


# --- Episodes in Arrow and Parquet files -----------------------------------------------------------------------------


def arrow_episode(folder: Path, number: int, layout: Layout, data_format: str) -> Episode:
    """Return the columns of an episode, which has its own file.

    All columns of the file are as long as the observations; those of steps are padded by one row.
    """
    files = sorted((folder / str(number)).glob(f"*.{data_format}"))
    if len(files) != 1:
        raise DatasetError(f"{layout.path}: episode {number} must be one {data_format} file, found {len(files)}")
    (file,) = files
    check_file(file)
    table = _read_table(file, data_format)
    missing = [name for name in ("observations", "actions", *PER_STEP) if name not in table.column_names]
    if missing:
        raise DatasetError(f"{file} has no column {' and no '.join(map(repr, missing))}")
    steps = len(table) - 1
    columns = {name: arrow_numbers(table.column(name), name, file) for name in PER_STEP}
    columns["observations"] = _arrow_elements(table.column("observations"), layout.spaces.observation, layout)
    columns["actions"] = _arrow_elements(table.column("actions"), layout.spaces.action, layout)
    episode = {name: array if name == "observations" else array[:steps] for name, array in columns.items()}
    return {name: (array.nbytes, lambda array=array: array) for name, array in episode.items()}  # type: ignore[misc]


def _read_table(file: Path, data_format: str) -> Any:
    with report_damage(file, f"a file of the format {data_format}"):
        if data_format == "parquet":
            with open_parquet(file) as opened:
                known = [name for name in ("observations", "actions", *PER_STEP) if name in opened.schema_arrow.names]
                return read_parquet_table(opened, known, file)
        check_size(file.stat().st_size, file)
        with require("pyarrow.ipc", extra="offline", what=f"the dataset {file}").open_file(str(file)) as reader:
            return reader.read_all()


def _arrow_elements(column: Any, space: gym.Space[Any], layout: Layout) -> np.ndarray:
    arrow = require("pyarrow", extra="offline", what=f"the dataset {layout.path}")
    column = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    if isinstance(space, PackedSpace):
        leaves = []
        for leaf in space.leaves:
            inner = column
            for key in leaf.path:
                if not arrow.types.is_struct(inner.type) or inner.type.get_field_index(key) < 0:
                    raise DatasetError(f"{layout.path}: observations have no part {leaf.name!r}")
                inner = inner.field(key)
            leaves.append(_arrow_elements(inner, leaf.space, layout))
        _, read = _pack_column(space, [(leaf.nbytes, lambda leaf=leaf: leaf) for leaf in leaves], layout.path)  # type: ignore[misc]
        return read()
    if layout.jpeg and _is_image(space):
        return _decode_jpegs(column.to_pylist(), space, layout.path)
    array = arrow_numbers(column, "elements", layout.path)
    expected = (len(array), *(space.shape or ()))
    if array.size != math.prod(expected):
        raise DatasetError(f"{layout.path}: elements of {space} must have shape {expected}, found {array.shape}")
    return array.reshape(expected)


# --- Elements of a space ---------------------------------------------------------------------------------------------


def _pack_column(space: PackedSpace, leaves: Sequence[Column], path: Path) -> Column:
    """Return a column of Dict observations, packed into rows of bytes, from the columns of their parts."""

    def read() -> np.ndarray:
        arrays = [load() for _, load in leaves]
        rows = np.zeros((len(arrays[0]), *space.shape), np.uint8)
        for leaf, array, view in zip(space.leaves, arrays, space.views(rows), strict=True):
            if array.shape != view.shape:
                raise DatasetError(f"{path}: {leaf.name!r} must have shape {view.shape}, found {array.shape}")
            view[...] = array
        return rows

    return 2 * sum(size for size, _ in leaves), read


def _is_image(space: gym.Space[Any]) -> bool:
    """Return whether elements of a space are stored as JPEG files, by the rule of Minari."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= 32 and bool((space.low == 0).all() and (space.high == 255).all())


def _decode_jpegs(frames: Sequence[Any], space: gym.Space[Any], path: Path) -> np.ndarray:
    image = require("PIL.Image", extra="offline", what=f"an image of {path}")
    shape = tuple(space.shape or ())
    rows = np.empty((len(frames), *shape), np.uint8)
    for number, frame in enumerate(frames):
        with report_damage(path, "a sequence of JPEG images"):
            picture = image.open(io.BytesIO(bytes(frame)), formats=("JPEG",))
            if (picture.height, picture.width) != shape[:2]:  # known before it is decoded
                raise DatasetError(f"{path}: image {number} is {picture.size}, expected shape {shape}")
            rows[number] = np.asarray(picture, np.uint8).reshape(shape)
    return rows
