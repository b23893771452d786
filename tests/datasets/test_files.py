"""Every format returns a dataset unchanged; damaged and hostile files are refused, and no code in them runs."""

import json
import os
import sys
import zipfile
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari.data_collector import EpisodeBuffer

from rl_training.core import memory_limits
from rl_training.core.spaces import Spaces
from rl_training.datasets.files import FORMATS, read_transitions, write_transitions
from rl_training.datasets.metadata import metadata_to_text
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.datasets.transitions import Transitions
from rl_training.envs.factory import make_env_factory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, DatasetError
from rl_training.hparams.bc import BCHParams
from rl_training.runtime.dataset_loading import load_transition_dataset
from rl_training.runtime.recording import random_transitions
from state_comparison import assert_identical

FILES = {"npz": "data.npz", "hdf5": "data.hdf5", "parquet": "data.parquet", "minari": "data"}
SPACES = Spaces(Box(-8.0, 8.0, (3,), np.float32), Box(-2.0, 2.0, (1,), np.float32))
ENVS = ["CartPole-v1", "Pendulum-v1", "rl_training/TinyImage-v0", "rl_training/TinyDict-v0"]


def recorded(env_id: str, steps: int = 250) -> Transitions:
    with SyncEnvs(make_env_factory(env_id)) as envs:
        return random_transitions(envs, steps, seed=0)


def load(path: Path) -> TransitionDataset:
    return TransitionDataset.from_transitions(read_transitions(path))


# --- Whole files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("kind", FILES)
def test_reading_returns_the_arrays_that_were_written(kind: str, env_id: str, tmp_path: Path) -> None:
    transitions, path = recorded(env_id), tmp_path / FILES[kind]
    write_transitions(transitions, path)
    again = read_transitions(path)
    assert_identical(again.columns(), transitions.columns())
    assert again.spaces == transitions.spaces
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", FILES)
def test_settings_load_each_kind_for_the_environment(kind: str, tmp_path: Path) -> None:
    transitions, path = recorded("Pendulum-v1"), tmp_path / FILES[kind]
    write_transitions(transitions, path)
    settings = BCHParams(dataset_kind=kind, dataset_path=path, dataset_size=230)
    dataset = load_transition_dataset(settings, env_factory=make_env_factory("Pendulum-v1"))
    assert (len(dataset), dataset.episode_ends.tolist()) == (230, [199, 229])
    assert np.allclose(dataset.actions, transitions.actions[:230] / 2.0)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_environment_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[kind]
    write_transitions(recorded("CartPole-v1"), path)
    settings = BCHParams(dataset_kind=kind, dataset_path=path)
    with pytest.raises(DatasetError, match=r"data.* has the observation space Box.* but the environment has Box"):
        load_transition_dataset(settings, env_factory=make_env_factory("Pendulum-v1"))


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        write_transitions(recorded("CartPole-v1", 10), path)
    assert path.read_text() == "mine"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        write_transitions(recorded("CartPole-v1", 10), tmp_path / "data.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["h5py", "pyarrow"])
def test_a_missing_package_is_named_with_its_remedy(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / ("data.hdf5" if module == "h5py" else "data.parquet")
    path.write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs the package {module}.*pip install \"rl-training\[offline\]\""):
        read_transitions(path)


def test_d4rl_files_hold_terminals_and_timeouts(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file["observations"] = np.arange(6, dtype=np.float32)[:, None]
        file["actions"] = np.zeros((6, 2), np.float32)
        file["rewards"] = np.arange(6, dtype=np.float32)
        file["terminals"] = np.array([0, 0, 1, 0, 0, 0], np.bool_)
        file["timeouts"] = np.array([0, 0, 0, 0, 0, 1], np.bool_)
        file["infos/qpos"] = np.zeros((6, 3))
        file["metadata/algorithm"] = np.bytes_("SAC")  # a group, as ours is not
    dataset = load(tmp_path / "d4rl.hdf5")
    assert dataset.rewards.tolist() == [0, 1, 2, 3, 4]
    assert dataset.next_obs[:, 0].tolist() == [1, 2, 2, 4, 5]
    assert dataset.episode_ends.tolist() == [2, 4]


@pytest.mark.parametrize("has_timeouts", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_d4rl_files_with_successors_need_no_timeouts(has_timeouts: bool, dtype: type, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file["observations"] = np.array([0, 1, 5, 6, 9], dtype)[:, None]
        file["next_observations"] = np.array([1, 2, 6, 7, 10], dtype)[:, None]
        file["actions"] = np.full((5, 2), 1.0005, dtype)  # a little outside: clipped
        file["rewards"] = np.ones((5, 1), dtype)
        file["terminals"] = np.array([0, 1, 0, 0, 0], np.uint8)
        if has_timeouts:
            file["timeouts"] = np.array([0, 0, 0, 1, 0], np.uint8)
    dataset = load(tmp_path / "d4rl.hdf5")
    assert dataset.episode_ends.tolist() == [1, 3, 4]
    assert dataset.terminated.tolist() == [False, True, False, False, False]
    assert dataset.truncated.tolist() == [False, False, False, True, not has_timeouts]
    assert dataset.actions.max() == 1.0
    assert (dataset.obs.dtype, dataset.rewards.dtype) == (np.dtype(np.float32), np.dtype(np.float32))


# --- Minari's own files ----------------------------------------------------------------------------------------------


@pytest.fixture
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_a_dataset_that_minari_wrote_loads_by_its_id(data_format: str, minari_root: Path) -> None:
    buffers, ends = [], np.flatnonzero(recorded("CartPole-v1").terminations)
    for number, rows in enumerate(np.split(np.arange(250), ends + 1)[:-1]):
        part = {name: array[rows] for name, array in recorded("CartPole-v1").columns().items()}
        part["observations"] = np.concatenate([part["observations"], part.pop("next_observations")[-1:]])
        buffers.append(EpisodeBuffer(id=number, infos={}, **part))
    name = "tests/cartpole-v0"
    theirs = minari.create_dataset_from_buffers(name, buffers, env="CartPole-v1", data_format=data_format)
    dataset = load_transition_dataset(BCHParams(dataset_kind="minari", dataset_id=name))
    episodes = list(theirs.iterate_episodes())
    assert dataset.env_id == "CartPole-v1"
    assert dataset.spaces.action == Discrete(2)
    assert np.array_equal(dataset.obs, np.concatenate([episode.observations[:-1] for episode in episodes]))
    assert np.array_equal(dataset.next_obs, np.concatenate([episode.observations[1:] for episode in episodes]))
    assert np.array_equal(dataset.actions, np.concatenate([episode.actions for episode in episodes]))
    assert dataset.episode_returns().tolist() == [episode.rewards.sum() for episode in episodes]
    assert dataset.terminated[dataset.episode_ends].all()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_dict_observations_and_images_of_minari_load(data_format: str, minari_root: Path) -> None:
    frames = np.zeros((5, 40, 32, 3), np.uint8)
    frames[2:] = 200  # even areas survive JPEG
    parts: dict[str, np.ndarray] = {"camera": frames, "where": np.arange(10, dtype=np.float64).reshape(5, 2)}
    space = Dict({"camera": Box(0, 255, (40, 32, 3), np.uint8), "where": Box(-20, 20, (2,), np.float64)})
    steps = {"rewards": np.ones(4), "terminations": np.zeros(4, bool), "truncations": np.zeros(4, bool)}
    buffer = EpisodeBuffer(id=0, observations=parts, actions=np.array([4, 5, 6, 4]), infos={}, **steps)
    minari.create_dataset_from_buffers(
        "tests/dict-v0", [buffer], observation_space=space, action_space=Discrete(3, start=4), data_format=data_format
    )
    dataset = load(minari_root / "tests/dict-v0")
    camera, where = dataset.spaces.observation.views(dataset.obs)  # type: ignore[attr-defined]
    assert np.abs(camera.astype(int) - frames[:-1]).max() <= 2
    assert np.array_equal(where, parts["where"][:-1].astype(np.float32))
    assert dataset.actions.tolist() == [0, 1, 2, 0]
    assert dataset.truncated.tolist() == [False, False, False, True]


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "rl_training/TinyDict-v0"])
def test_minari_reads_what_we_write(env_id: str, minari_root: Path) -> None:
    transitions = recorded(env_id)
    write_transitions(transitions, minari_root / "ours-v0")
    theirs = minari.load_dataset("ours-v0")
    episodes = list(theirs.iterate_episodes())
    assert (theirs.id, theirs.total_steps) == ("ours-v0", 250)
    assert np.array_equal(np.concatenate([episode.actions for episode in episodes]), transitions.actions)
    assert np.array_equal(np.concatenate([episode.rewards for episode in episodes]), transitions.rewards)


# --- Damaged and hostile files ---------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears if anything in a dataset is run: `evil_module` can be imported here, and leaves it too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "evil_module.py").write_text(f"from pathlib import Path; Path({str(tmp_path / 'trace')!r}).touch()")
    monkeypatch.syspath_prepend(folder)
    return tmp_path / "trace"


def good() -> dict[str, Any]:
    """Three rows, of which the last terminates."""
    obs = np.arange(12, dtype=np.float32).reshape(4, 3) / 2
    return {
        "observations": obs[:-1],
        "actions": np.array([[-2.0], [0.0], [2.0]], np.float32),
        "rewards": np.array([1.0, 2.0, 3.0]),
        "next_observations": obs[1:],
        "terminations": np.array([False, False, True]),
        "truncations": np.array([False, False, False]),
        "metadata": np.array(metadata_to_text(SPACES, "Pendulum-v1")),
    }


def metadata(**changes: Any) -> dict[str, Any]:
    return {"metadata": np.array(json.dumps({**json.loads(metadata_to_text(SPACES, "Pendulum-v1")), **changes}))}


def without(*names: str, **changes: Any) -> dict[str, Any]:
    return {**dict.fromkeys(names), **changes}


def spoilt(array: Any, row: int, value: float) -> np.ndarray:
    changed = np.array(array, np.float64)
    changed[row] = value
    return changed


BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-8.0] * 3, "high": [8.0] * 3}
DEEP: Any = {"type": "Discrete", "n": 2, "start": 0}
for _ in range(12):
    DEEP = {"type": "Dict", "subspaces": {"in": DEEP}}
EVIL_SPEC = json.dumps({"id": "Evil-v0", "entry_point": "evil_module:Env", "kwargs": {}})

# The replaced columns (None: missing), and a part of the message.
WRONG_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "short rewards": ({"rewards": np.zeros(2)}, "one length, found observations 3, actions 3, rewards 2"),
    "long observations": ({"observations": np.zeros((5, 3))}, "one length"),
    "short flags": ({"terminations": np.zeros(1, bool)}, "one length"),
    "short successors": ({"next_observations": np.zeros((2, 3))}, "one length"),
    "no rows": ({name: array[:0] for name, array in good().items() if array.ndim}, "empty"),
    "NaN observation": (
        {"observations": spoilt(good()["observations"], 1, np.nan)},
        "obs are not finite in 1 of 3",
    ),
    "infinite reward": ({"rewards": spoilt(good()["rewards"], 2, np.inf)}, "rewards are not finite.*first in row 2"),
    "NaN action": ({"actions": spoilt(good()["actions"], 0, np.nan)}, "actions are outside.*first in row 0"),
    "NaN successor": ({"next_observations": spoilt(good()["observations"], 0, np.nan)}, "next_obs are not finite"),
    "too large for float32": ({"rewards": np.array([0.0, 1e300, 0.0])}, "not finite in 1 of 3 rows, first in row 1"),
    "texts": ({"rewards": np.array(["a", "b", "c"])}, "rewards must be numbers"),
    "complex numbers": ({"rewards": np.zeros(3, np.complex64)}, "numbers, found dtype complex64"),
    "dates": ({"rewards": np.zeros(3, "datetime64[s]")}, "numbers, found dtype datetime64"),
    "records": ({"observations": np.zeros(3, [("x", "f4"), ("y", "f4")])}, "must be numbers"),
    "wide observations": ({"observations": np.zeros((3, 4)), "next_observations": np.zeros((3, 4))}, r"shape \(3, 3\)"),
    "other successors": ({"next_observations": np.zeros((3, 2))}, "next_observations (must )?have shape"),
    "rewards of two numbers": ({"rewards": np.zeros((3, 2))}, r"one number per row, found shape \(3, 2\)"),
    "a single reward": ({"rewards": np.array(1.0)}, "one entry per row"),
    "action beyond its bound": (
        {"actions": spoilt(good()["actions"], 1, 2.5)},
        r"outside Box.*in row 1: \[2.5\]",
    ),
    "actions of two numbers": ({"actions": np.zeros((3, 2))}, r"actions must have shape \(3, 1\), found \(3, 2\)"),
    "a choice too many": (
        {"actions": np.array([0, 1, 2]), **metadata(action_space={"type": "Discrete", "n": 2, "start": 0})},
        r"outside Discrete\(2\) in 1 of 3 rows, first in row 2: 2",
    ),
    "a negative choice": (
        {"actions": np.array([0, -1, 1]), **metadata(action_space={"type": "Discrete", "n": 2, "start": 0})},
        "first in row 1: -1",
    ),
    "floats for choices": (
        {"actions": np.zeros(3), **metadata(action_space={"type": "Discrete", "n": 2, "start": 0})},
        "whole numbers, found dtype float64",
    ),
    "flags of 2": ({"terminations": np.array([0, 2, 1])}, "must be 0 or 1.*first in row 1: 2"),
    "flags that are NaN": ({"truncations": np.array([0, np.nan, 1])}, "truncations must be 0 or 1"),
    "no actions": (without("actions"), "no column 'actions'"),
    "no rewards": (without("rewards"), "no column 'rewards'"),
    "merged flags": (without("terminations", "truncations", dones=np.zeros(3, bool)), "'dones', which merges"),
    "no end of episodes": (without("truncations", "next_observations"), "neither 'truncations' nor"),
    "two of a kind": ({"obs": good()["observations"]}, "'observations' and 'obs'"),
    "another unit": ({"observations": spoilt(good()["observations"], 0, 99.0)}, "far outside.*first in row 0"),
    "metadata of an entry point": (
        metadata(env_spec={"entry_point": "evil_module:Env"}),
        "entry point 'evil_module:Env'",
    ),
    "metadata of a nested entry point": (metadata(env_spec=EVIL_SPEC), "entry point .* environment 'Evil-v0'"),
    "a known id with another entry point": (
        metadata(env_spec={"id": "CartPole-v1", "entry_point": "evil_module:Env"}),
        "entry point 'evil_module:Env' for the environment 'CartPole-v1'",
    ),
    "a wrapper's entry point": (
        metadata(env_spec={"additional_wrappers": [{"name": "W", "entry_point": "evil_module:W"}]}),
        "entry point 'evil_module:W'",
    ),
    "an id that imports": (metadata(env_id="evil_module:Env-v0"), "env_id is 'evil_module:Env-v0'"),
    "metadata that are no JSON": ({"metadata": np.array("{broken")}, "is not JSON"),
    "metadata that are a list": ({"metadata": np.array("[1]")}, "must be a JSON object"),
    "metadata nested too deep": ({"metadata": np.array("[" * 100_000 + "]" * 100_000)}, "is not JSON"),
    "an unknown space": (metadata(action_space={"type": "os.system"}), "its type must be"),
    "a space too large": (
        metadata(action_space={**BOX, "shape": [10**6, 10**6], "low": 0, "high": 1}),
        "1 to 10,000,000",
    ),
    "a space of objects": (metadata(action_space={**BOX, "dtype": "O"}), "dtype must name numbers"),
    "bounds the wrong way": (metadata(action_space={**BOX, "low": [9.0] * 3}), "above the upper"),
    "bounds of another shape": (metadata(action_space={**BOX, "low": [0.0] * 2}), r"of shape \(3,\)"),
    "a space nested too deep": (metadata(observation_space=DEEP), "more than 8 deep"),
    "no choices": (metadata(action_space={"type": "Discrete", "n": 0, "start": 0}), "is not a space"),
    "actions without bounds": (
        metadata(action_space={**BOX, "shape": [1], "low": [-np.inf], "high": [np.inf]}),
        "finite bounds",
    ),
}
_ONLY_NPZ = {"dates", "records", "a single reward", "complex numbers"}  # what the other formats cannot hold


def can_hold(kind: str, case: str) -> bool:
    """Return whether a format can hold these columns at all; a table has columns of one length."""
    changes, _ = WRONG_COLUMNS[case]
    if case in _ONLY_NPZ:
        return kind == "npz"
    columns = [array for name, array in {**good(), **changes}.items() if array is not None and name != "metadata"]
    return kind != "parquet" or len({len(array) for array in columns}) == 1


def write_columns(kind: str, folder: Path, changes: dict[str, Any]) -> Path:
    """Write columns as they are: the writers of the library would refuse some."""
    path = folder / FILES[kind]
    columns = {name: array for name, array in {**good(), **changes}.items() if array is not None}
    if kind == "npz":
        np.savez(path, **columns)
    elif kind == "hdf5":
        text = str(columns.pop("metadata"))
        with h5py.File(path, "w") as file:
            file["metadata"] = np.frombuffer(text.encode(), np.uint8)
            for name, array in columns.items():
                file[name] = array.astype("S") if array.dtype.kind == "U" else array
    else:
        text = str(columns.pop("metadata"))
        table = pa.table({name: pa.array(array.tolist()) for name, array in columns.items()})
        pq.write_table(table.replace_schema_metadata({"metadata": text}), path)
    return path


@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind in ("npz", "hdf5", "parquet") for case in WRONG_COLUMNS if can_hold(kind, case)],
)
def test_wrong_columns_are_refused_in_every_format_that_can_hold_them(
    kind: str, case: str, tmp_path: Path, trace: Path
) -> None:
    changes, message = WRONG_COLUMNS[case]
    path = write_columns(kind, tmp_path, changes)
    with pytest.raises(DatasetError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert not trace.exists()


def test_the_good_columns_are_good(tmp_path: Path) -> None:
    for kind in ("npz", "hdf5", "parquet"):
        assert load(write_columns(kind, tmp_path, {})).actions.tolist() == [[-1.0], [0.0], [1.0]]


def test_allowed_entry_points_are_read_over_and_still_not_run(tmp_path: Path, trace: Path) -> None:
    path = write_columns("npz", tmp_path, metadata(env_spec=EVIL_SPEC))
    assert len(read_transitions(path, allow_entry_points=True)) == 3
    path = write_columns("hdf5", tmp_path, metadata(env_id="evil_module:Env-v0"))
    assert read_transitions(path, allow_entry_points=True).env_id == ""  # so that a converted file has it no more
    assert not trace.exists()


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def npy(header: str, data: bytes = b"") -> bytes:
    """A npy file whose header is any text."""
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def replace_member(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**members, name: content}.items():
            archive.writestr(member, data)


def write_pickle(path: Path, trace: Path, name: str) -> None:
    np.savez(path, **{**good(), name: np.array([Bomb(trace)] * 3)})


def add_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("rewards.npy", b"")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"
CODE = "__import__('evil_module')"

# How a good npz file is damaged, and a part of the message.
WRONG_NPZ: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "cut": (lambda path, trace: rewrite(path, lambda data: data[: len(data) // 2]), "damaged or not a npz"),
    "without its last byte": (lambda path, trace: rewrite(path, lambda data: data[:-1]), "damaged or not a npz"),
    "of no bytes": (lambda path, trace: rewrite(path, lambda data: b""), "is empty: 0 bytes"),
    "noise": (lambda path, trace: rewrite(path, lambda data: b"\x00\xff" * 500), "damaged or not a npz"),
    "a changed byte": (
        lambda path, trace: rewrite(path, lambda data: data.replace(b"\x00\x00\x80?", b"\x01\x02\x80?")),
        "CRC",
    ),
    "a pickle": (lambda path, trace: path.write_bytes(b"\x80\x04cposix\nsystem\n."), "damaged or not a npz"),
    "pickled observations": (lambda path, trace: write_pickle(path, trace, "observations"), "objects are never loaded"),
    "pickled rewards": (lambda path, trace: write_pickle(path, trace, "rewards"), "objects are never loaded"),
    "pickled metadata": (lambda path, trace: write_pickle(path, trace, "metadata"), "objects are never loaded"),
    "a header of objects": (lambda path, trace: replace_member(path, "rewards.npy", npy(OBJECTS)), "objects are never"),
    "a header of code": (lambda path, trace: replace_member(path, "rewards.npy", npy(CODE)), "damaged or not a npz"),
    "a header of too many rows": (
        lambda path, trace: replace_member(path, "rewards.npy", npy(HUGE)),
        "truncated or damaged",
    ),
    "a member that is no array": (lambda path, trace: replace_member(path, "rewards.npy", b"hello"), "damaged or not"),
    "an empty member": (lambda path, trace: replace_member(path, "rewards.npy", b""), "damaged or not a npz"),
    "metadata of numbers": (
        lambda path, trace: np.savez(path, **{**good(), "metadata": np.zeros(3)}),
        "must be a text",
    ),
    "a member twice": (lambda path, trace: add_twice(path), "a member twice"),
    "a pipe": (lambda path, trace: make_pipe(path), "is not a file"),
    "a folder": (lambda path, trace: make_folder(path), "is not a file"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", WRONG_NPZ)
def test_a_damaged_npz_file_is_refused(case: str, tmp_path: Path, trace: Path) -> None:
    damage, message = WRONG_NPZ[case]
    path = write_columns("npz", tmp_path, {})
    damage(path, trace)
    with pytest.raises(DatasetError, match=message):
        load(path)
    assert not trace.exists()


@pytest.mark.parametrize("kind", ["npz", "hdf5", "parquet", "minari"])
def test_a_file_that_declares_more_than_memory_holds_is_refused_unread(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILES[kind]
    write_transitions(recorded("Pendulum-v1"), path)  # compressed, zeros would need almost no space
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 1_000)
    with pytest.raises(ConfigError, match=r"the dataset .*data.* needs .* only .* of memory"):
        read_transitions(path)


def other_file(path: Path) -> Path:
    """A file outside the dataset, which must not be read."""
    other = path.with_name("secret.hdf5")
    with h5py.File(other, "w") as file:
        file["rewards"] = np.ones(3)
    return other


def edit_hdf5(path: Path, trace: Path, change: Callable[[Any], object]) -> None:
    with h5py.File(path, "a") as file:
        del file["rewards"]
        change(file)


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((3,), np.float64)
    layout[:] = h5py.VirtualSource(other_file(Path(file.filename)), "rewards", (3,))
    file.create_virtual_dataset("rewards", layout)


def external(file: Any) -> None:
    raw = Path(file.filename).with_name("raw")
    raw.write_bytes(bytes(24))
    file.create_dataset("rewards", (3,), np.float64, external=[(str(raw), 0, 24)])


def link_out(file: Any) -> None:
    file["rewards"] = h5py.ExternalLink(other_file(Path(file.filename)), "rewards")


def link_within(file: Any) -> None:
    file["rewards"] = h5py.SoftLink("/elsewhere")


def of_texts(file: Any) -> None:
    file.create_dataset("rewards", data=["a", "b", "c"], dtype=h5py.string_dtype())


def of_lists(file: Any) -> None:
    file.create_dataset("rewards", (3,), h5py.vlen_dtype(np.float64))


def of_references(file: Any) -> None:
    file.create_dataset("rewards", (3,), h5py.ref_dtype)


def nothing(file: Any) -> None:
    file["rewards"] = h5py.Empty("f8")


def declared_huge(file: Any) -> None:
    file.create_dataset("rewards", (10**13,), np.float64, chunks=(1000,))


WRONG_HDF5: dict[str, tuple[Callable[[Any], object], str]] = {
    "a link to another file": (link_out, r"is a link \(ExternalLink\)"),
    "a link to elsewhere": (link_within, r"is a link \(SoftLink\)"),
    "virtual": (virtual, "is stored in another file"),
    "stored elsewhere": (external, "is stored in another file"),
    "texts": (of_texts, "must be numbers, found dtype object"),
    "lists": (of_lists, "must be numbers, found dtype object"),
    "references": (of_references, "must be numbers, found dtype object"),
    "a group": (lambda file: file.create_group("rewards"), "must be an array, found Group"),
    "a null": (nothing, "must be an array"),
    "a huge array of nothing": (declared_huge, "needs .* of memory are available"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", WRONG_HDF5)
def test_rewards_that_a_hdf5_file_does_not_hold_itself_are_refused(case: str, tmp_path: Path, trace: Path) -> None:
    change, message = WRONG_HDF5[case]
    path = write_columns("hdf5", tmp_path, {})
    edit_hdf5(path, trace, change)
    with pytest.raises((DatasetError, ConfigError), match=message):
        load(path)


def spoil_chunk(path: Path) -> None:
    """Change a byte of the compressed rewards."""
    with h5py.File(path, "r") as file:
        place = file["rewards"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[place.byte_offset + place.size // 2] ^= 0xFF
    path.write_bytes(data)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "without its last bytes": lambda data: data[:-9],
    "of no bytes": lambda data: b"",
    "noise": lambda data: b"\x01\x02" * 1_000,
    "its first bytes, then noise": lambda data: data[:200] + b"\xff" * (len(data) - 200),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["hdf5", "parquet"])
@pytest.mark.parametrize("case", BYTES)
def test_damaged_bytes_are_refused(kind: str, case: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[kind]
    write_transitions(recorded("Pendulum-v1"), path)
    rewrite(path, BYTES[case])
    with pytest.raises(DatasetError, match=r"damaged or not|is not a HDF5 file|is empty: 0 bytes"):
        load(path)


def test_a_damaged_chunk_of_hdf5_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.hdf5"
    write_transitions(recorded("Pendulum-v1"), path)
    spoil_chunk(path)
    with pytest.raises(DatasetError, match="damaged"):
        load(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_bytes_changed_at_random_never_lead_to_other_rows(kind: str, tmp_path: Path) -> None:
    path, rng = tmp_path / FILES[kind], np.random.default_rng(0)
    write_transitions(recorded("Pendulum-v1"), path)
    whole, expected = path.read_bytes(), load(path)
    refused = 0
    for _ in range(100):
        start = rng.integers(len(whole) - 8)
        path.write_bytes(whole[:start] + rng.bytes(8) + whole[start + 8 :])
        try:
            assert np.array_equal(load(path).obs, expected.obs)
        except (DatasetError, ConfigError):
            refused += 1
    assert refused > 90


WRONG_PARQUET: dict[str, tuple[dict[str, Any], str]] = {
    "lists of two lengths": (
        {"observations": [[0.0] * 3, [0.0] * 2, [0.0] * 4]},
        "lists of one length, found 3 in row 0, 2 in row 1",
    ),
    "a missing list": ({"observations": [[0.0] * 3, None, [0.0] * 3]}, "1 of 3 rows have no observations"),
    "a missing number in a list": (
        {"observations": [[0.0] * 3, [0.0, None, 0.0], [0.0] * 3]},
        "1 numbers of observations",
    ),
    "a missing number": ({"rewards": [1.0, None, 2.0]}, "1 of 3 rows have no rewards"),
    "texts": ({"rewards": ["a", "b", "c"]}, "must be numbers or lists of numbers"),
    "bytes": ({"observations": [b"pickle"] * 3}, "must be numbers or lists of numbers"),
    "structures": ({"observations": [{"x": 1.0}] * 3}, "must be numbers or lists of numbers"),
    "lists of lists": ({"observations": [[[0.0]] * 3] * 3}, "must be numbers or lists of numbers"),
    "lists of nothing": ({"observations": [[], [], []]}, "observations"),
}


@pytest.mark.parametrize("case", WRONG_PARQUET)
def test_wrong_columns_of_parquet_are_refused(case: str, tmp_path: Path) -> None:
    changes, message = WRONG_PARQUET[case]
    columns = {name: pa.array(array.tolist()) for name, array in good().items() if name != "metadata"}
    columns |= {name: pa.array(values) for name, values in changes.items()}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    with pytest.raises(DatasetError, match=message):
        load(tmp_path / "data.parquet")


def edit_metadata(folder: Path, **changes: Any) -> None:
    file = folder / "data" / "metadata.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def edit_episode(folder: Path, name: str, values: Any) -> None:
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_1/{name}"]
        if values is not None:
            file[f"episode_1/{name}"] = values


WRONG_MINARI: dict[str, tuple[Callable[[Path], object], str]] = {
    "no metadata": (lambda folder: (folder / "data/metadata.json").unlink(), "no file data/metadata.json"),
    "cut metadata": (lambda folder: rewrite(folder / "data/metadata.json", lambda text: text[:50]), "is not JSON"),
    "no episodes": (lambda folder: edit_metadata(folder, total_episodes=0), "total_episodes .* at least 1, found 0"),
    "episodes by name": (lambda folder: edit_metadata(folder, total_episodes="2"), "at least 1, found '2'"),
    "more episodes than there are": (
        lambda folder: edit_metadata(folder, total_episodes=9),
        "9 episodes, but there are 2",
    ),
    "other steps than there are": (lambda folder: edit_metadata(folder, total_steps=7), "7 steps, but there are 250"),
    "no spaces": (lambda folder: edit_metadata(folder, action_space=None), "must declare observation_space"),
    "a space of text": (
        lambda folder: edit_metadata(folder, observation_space='{"type": "Text", "max_length": 5}'),
        "its type must be",
    ),
    "an entry point": (lambda folder: edit_metadata(folder, env_spec=EVIL_SPEC), "entry point 'evil_module:Env'"),
    "an entry point to evaluate with": (lambda folder: edit_metadata(folder, eval_env_spec=EVIL_SPEC), "'Evil-v0'"),
    "an entry point in broken JSON": (lambda folder: edit_metadata(folder, env_spec=EVIL_SPEC[:-1]), "entry point"),
    "an id that imports": (
        lambda folder: edit_metadata(folder, env_spec=json.dumps({"id": "evil_module:Env-v0"})),
        "env_id is 'evil_module:Env-v0'",
    ),
    "an unknown format": (lambda folder: edit_metadata(folder, data_format="pickle"), "found 'pickle'"),
    "files of another format": (lambda folder: edit_metadata(folder, data_format="arrow"), "one arrow file, found 0"),
    "no data": (lambda folder: (folder / "data/main_data.hdf5").unlink(), "there is no dataset"),
    "cut data": (lambda folder: rewrite(folder / "data/main_data.hdf5", lambda data: data[:3_000]), "damaged"),
    "no last observation": (
        lambda folder: edit_episode(folder, "observations", np.zeros((50, 3), np.float32)),
        "episode 1 has 50 rewards and 50 observations, expected 51",
    ),
    "observations of another shape": (
        lambda folder: edit_episode(folder, "observations", np.zeros((51, 4), np.float32)),
        "must be of one shape",
    ),
    "no rewards": (lambda folder: edit_episode(folder, "rewards", None), "episode_1 has no 'rewards'"),
    "NaN rewards": (
        lambda folder: edit_episode(folder, "rewards", np.full(50, np.nan)),
        "not finite in 50 of 250 rows",
    ),
    "a linked episode": (
        lambda folder: edit_episode(folder, "rewards", h5py.ExternalLink("/etc/passwd", "/x")),
        "is a link",
    ),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", WRONG_MINARI)
def test_a_damaged_minari_dataset_is_refused(case: str, tmp_path: Path, trace: Path) -> None:
    damage, message = WRONG_MINARI[case]
    write_transitions(recorded("Pendulum-v1"), tmp_path / "data")
    damage(tmp_path / "data")
    with pytest.raises(DatasetError, match=message):
        load(tmp_path / "data")
    assert not trace.exists()


def test_sixty_kinds_of_damage_are_tried() -> None:
    tried: list[Sized] = [WRONG_COLUMNS, WRONG_NPZ, WRONG_HDF5, BYTES, WRONG_PARQUET, WRONG_MINARI]
    assert sum(map(len, tried)) > 60
    assert set(FORMATS) == set(FILES)
