"""Local Minari datasets: a folder of metadata and episodes, read and written without the minari package.

If the metadata lack a space, that package creates the environment and so runs the code that they name. This module
never does.
"""

import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
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
    open_hdf5,
    open_parquet,
    read_parquet_table,
)
from rl_training.datasets.metadata import (
    MAX_TEXT,
    parse_json,
    plain_env_id,
    refuse_entry_points,
    space_from_json,
    space_to_json,
)
from rl_training.datasets.transitions import PER_STEP, Transitions, build_transitions
from rl_training.errors import DatasetError

METADATA, HDF5_FILE = "metadata.json", "main_data.hdf5"
_VERSION = "0.5.4"  # of the minari package whose layout is written

# A column of an episode: the bytes that it needs, and the function that reads it.
_Column: TypeAlias = tuple[int, Callable[[], np.ndarray]]
_Episode: TypeAlias = dict[str, _Column]


class _Layout(NamedTuple):
    path: Path
    spaces: Spaces
    jpeg: bool  # whether images are JPEG files, one per frame


def find_local_dataset(dataset_id: str, name: str = "dataset_id") -> Path:
    """Return the folder of a dataset that the minari package has downloaded, by its id; nothing is downloaded here.

    `name`: the setting that holds the id, for messages.
    """
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", dataset_id) or ".." in dataset_id:
        raise DatasetError(f"{name} must be an id such as mujoco/hopper/medium-v0, got {dataset_id!r}")
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    if not (root / dataset_id).is_dir():
        raise DatasetError(
            f"{name} {dataset_id!r}: there is no such dataset in {root}; get it with: minari download {dataset_id}"
        )
    return root / dataset_id


def is_minari(path: Path) -> bool:
    return _data_folder(path) is not None


def _data_folder(path: Path) -> Path | None:
    return next((folder for folder in (path / "data", path) if (folder / METADATA).is_file()), None)


def read_minari(path: Path, *, allow_entry_points: bool = False) -> Transitions:
    """Read the folder of a dataset. Episodes hold one observation more than steps, so every next one is known."""
    folder = _data_folder(path)
    if folder is None:
        raise DatasetError(f"{path} is not a Minari dataset: it has no file data/{METADATA}")
    metadata = _read_metadata(folder / METADATA)
    refuse_entry_points(metadata, str(path), allowed=allow_entry_points)
    env_id = plain_env_id(_env_id(metadata), str(path), allow_entry_points=allow_entry_points)
    layout = _Layout(path, _declared_spaces(metadata, path), bool(metadata.get("jpeg_encoding", True)))
    columns = _read_columns(folder, metadata, layout)
    steps = metadata.get("total_steps")
    if steps is not None and steps != len(columns["rewards"]):
        raise DatasetError(f"{path}: the metadata declare {steps!r} steps, but there are {len(columns['rewards']):,}")
    return build_transitions(columns, source=str(path), spaces=layout.spaces, env_id=env_id)


def _read_metadata(file: Path) -> dict[str, Any]:
    check_file(file)
    if file.stat().st_size > MAX_TEXT:
        raise DatasetError(f"{file} has more than {MAX_TEXT:,} bytes")
    return parse_json(file.read_bytes(), str(file))


def _declared_spaces(metadata: dict[str, Any], path: Path) -> Spaces:
    observation, action = (
        space_from_json(metadata.get(f"{role}_space"), f"{path}: {role}_space") for role in ("observation", "action")
    )
    if observation is None or action is None:
        raise DatasetError(f"{path}: the metadata must declare observation_space and action_space")
    return Spaces(observation, action)


def _read_columns(folder: Path, metadata: dict[str, Any], layout: _Layout) -> dict[str, np.ndarray]:
    path, count = layout.path, metadata.get("total_episodes")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DatasetError(f"{path}: total_episodes in the metadata must be at least 1, found {count!r}")
    data_format = metadata.get("data_format", "hdf5")
    if data_format == "hdf5":
        with open_hdf5(folder / HDF5_FILE) as file:
            numbers = _episode_numbers(file, count, path)
            return _join_episodes(path, [_hdf5_episode(file, number, layout) for number in numbers])
    if data_format in ("arrow", "parquet"):
        return _join_episodes(path, [_arrow_episode(folder, number, layout, data_format) for number in range(count)])
    raise DatasetError(f"{path}: data_format must be hdf5, arrow or parquet, found {data_format!r}")


def _env_id(metadata: dict[str, Any]) -> object:
    spec = metadata.get("env_spec")
    return parse_json(spec, "env_spec").get("id") if isinstance(spec, str) else None


def _join_episodes(path: Path, episodes: Sequence[_Episode]) -> dict[str, np.ndarray]:
    """Read and join all episodes after checking that they fit in memory twice, for the next observations."""
    check_size(2 * sum(size for episode in episodes for size, _ in episode.values()), path)
    parts: dict[str, list[np.ndarray]] = {
        name: [] for name in ("observations", "next_observations", "actions", *PER_STEP)
    }
    for number, episode in enumerate(episodes):
        read = {name: load() for name, (_, load) in episode.items()}
        _check_lengths(read, number, path)
        if len(read["rewards"]) == 0:
            continue
        truncations = read["truncations"].copy()
        truncations[-1] |= not read["terminations"][-1]  # where the recording stops, the episode was truncated
        obs = read.pop("observations")
        for name, array in (read | {"truncations": truncations}).items():
            parts[name].append(array)
        parts["observations"].append(obs[:-1])
        parts["next_observations"].append(obs[1:])
    if not parts["rewards"]:
        raise DatasetError(f"{path} is empty: its episodes have no steps")
    shapes = {name: {array.shape[1:] for array in arrays} for name, arrays in parts.items()}
    for name, found in shapes.items():
        if len(found) > 1:
            raise DatasetError(f"{path}: {name} must be of one shape, found {' and '.join(map(str, sorted(found)))}")
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _check_lengths(columns: dict[str, np.ndarray], number: int, path: Path) -> None:
    steps = len(columns["rewards"])
    for name, array in columns.items():
        expected = steps + (name == "observations")
        if len(array) != expected:
            raise DatasetError(
                f"{path}: episode {number} has {steps:,} rewards and {len(array):,} {name}, expected {expected:,}"
            )


# --- Episodes in HDF5 ------------------------------------------------------------------------------------------------


def _episode_numbers(file: Any, count: int, path: Path) -> Iterator[int]:
    found = sum(name.startswith("episode_") for name in file)
    if found != count:
        raise DatasetError(f"{path}: the metadata declare {count:,} episodes, but there are {found:,}")
    yield from range(count)


def _hdf5_episode(file: Any, number: int, layout: _Layout) -> _Episode:
    group = hdf5_member(file, f"episode_{number}", layout.path)
    episode = {name: _hdf5_column(group, name, layout) for name in PER_STEP}
    episode["observations"] = _hdf5_elements(group, "observations", layout.spaces.observation, layout)
    episode["actions"] = _hdf5_elements(group, "actions", layout.spaces.action, layout)
    return episode


def _hdf5_column(group: Any, name: str, layout: _Layout) -> _Column:
    if name not in group:
        raise DatasetError(f"{layout.path}: {group.name} has no {name!r}")
    return hdf5_array(group, name, layout.path)


def _hdf5_elements(group: Any, name: str, space: gym.Space[Any], layout: _Layout) -> _Column:
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


def _pack_column(space: PackedSpace, leaves: Sequence[_Column], path: Path) -> _Column:
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


# --- Episodes in Arrow and Parquet files -----------------------------------------------------------------------------


def _arrow_episode(folder: Path, number: int, layout: _Layout, data_format: str) -> _Episode:
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


def _arrow_elements(column: Any, space: gym.Space[Any], layout: _Layout) -> np.ndarray:
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


# --- Writing ---------------------------------------------------------------------------------------------------------


def write_minari(transitions: Transitions, path: Path, *, name: str = "") -> None:
    """Write a folder that `minari.load_dataset` can read from its datasets folder; images are not compressed."""
    h5py = require("h5py", extra="offline", what="a Minari dataset")
    known = transitions.spaces
    if known is None:
        raise DatasetError(f"{transitions.source} does not declare its spaces, but a Minari dataset must")
    folder, name = path / "data", name or path.name
    folder.mkdir(parents=True)
    with h5py.File(folder / HDF5_FILE, "w", track_order=True) as file:
        num_episodes = _write_episodes(file, transitions, known.observation)
    metadata = {
        "dataset_id": name if re.search(r"-v\d+$", name) else f"{name}-v0",
        "total_episodes": num_episodes,
        "total_steps": len(transitions),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(space_to_json(known.observation)),
        "action_space": json.dumps(space_to_json(known.action)),
        "minari_version": _VERSION,
        "author": [],
        "author_email": [],
        "algorithm_name": "rl-training",
        "code_permalink": "",
        "requirements": [],
    }
    spec = gym.registry.get(transitions.env_id)
    if spec is not None and isinstance(spec.entry_point, str):
        metadata["env_spec"] = spec.to_json()
    (folder / METADATA).write_text(json.dumps(metadata), "utf-8")


def _write_episodes(file: Any, transitions: Transitions, observation: gym.Space[Any]) -> int:
    """Write one group per episode and return their number."""
    ends = transitions.terminations | transitions.truncations
    ends[-1] = True
    bounds = [0, *(np.flatnonzero(ends) + 1).tolist()]
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        group, rows = file.create_group(f"episode_{number}"), slice(start, end)
        group.attrs.update({"id": number, "total_steps": end - start})
        obs = np.concatenate([transitions.observations[rows], transitions.next_observations[end - 1 : end]])
        _write_elements(group, "observations", obs, observation)
        for column in ("actions", *PER_STEP):
            group.create_dataset(column, data=getattr(transitions, column)[rows], fletcher32=True)
    return len(bounds) - 1


def _write_elements(group: Any, name: str, rows: np.ndarray, space: gym.Space[Any]) -> None:
    if not isinstance(space, PackedSpace):
        group.create_dataset(name, data=rows, fletcher32=True)
        return
    for leaf, view in zip(space.leaves, space.views(np.ascontiguousarray(rows)), strict=True):
        group.create_dataset("/".join((name, *leaf.path)), data=view, fletcher32=True)
