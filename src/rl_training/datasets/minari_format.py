"""Local Minari datasets: a folder of metadata and episodes, read and written without the minari package.

If the metadata lack a space, that package creates the environment and so runs the code that they name. This module
never does.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.core.extras import require
from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import Spaces
from rl_training.datasets.formats import check_file, check_size, open_hdf5
from rl_training.datasets.metadata import (
    MAX_TEXT,
    parse_json,
    plain_env_id,
    refuse_entry_points,
    space_from_json,
    space_to_json,
)
from rl_training.datasets.minari_episodes import Episode, Layout, arrow_episode, hdf5_episode
from rl_training.datasets.transitions import PER_STEP, Transitions, build_transitions
from rl_training.errors import DatasetError

METADATA, HDF5_FILE = "metadata.json", "main_data.hdf5"
_VERSION = "0.5.4"  # of the minari package whose layout is written


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
    layout = Layout(path, _declared_spaces(metadata, path), bool(metadata.get("jpeg_encoding", True)))
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


def _read_columns(folder: Path, metadata: dict[str, Any], layout: Layout) -> dict[str, np.ndarray]:
    path, count = layout.path, metadata.get("total_episodes")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DatasetError(f"{path}: total_episodes in the metadata must be at least 1, found {count!r}")
    data_format = metadata.get("data_format", "hdf5")
    if data_format == "hdf5":
        with open_hdf5(folder / HDF5_FILE) as file:
            numbers = _episode_numbers(file, count, path)
            return _join_episodes(path, [hdf5_episode(file, number, layout) for number in numbers])
    if data_format in ("arrow", "parquet"):
        return _join_episodes(path, [arrow_episode(folder, number, layout, data_format) for number in range(count)])
    raise DatasetError(f"{path}: data_format must be hdf5, arrow or parquet, found {data_format!r}")


def _env_id(metadata: dict[str, Any]) -> object:
    spec = metadata.get("env_spec")
    return parse_json(spec, "env_spec").get("id") if isinstance(spec, str) else None


def _episode_numbers(file: Any, count: int, path: Path) -> Iterator[int]:
    found = sum(name.startswith("episode_") for name in file)
    if found != count:
        raise DatasetError(f"{path}: the metadata declare {count:,} episodes, but there are {found:,}")
    yield from range(count)


def _join_episodes(path: Path, episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
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
