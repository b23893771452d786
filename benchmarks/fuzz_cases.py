"""The cases of `python -m benchmarks fuzz`: damaged and hostile files, bad settings, faulty environments.

A case changes a fresh copy of an intact folder, runs one command there, and names the outcomes that are right. A
kind of case is a function in `KINDS`; random choices come from a generator that the case number seeds.
"""

import io
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

from benchmarks import fuzz_envs
from benchmarks.exactness import ALGO_KWARGS
from rl_training.core.durable_files import sha256
from rl_training.experiment.manifest import MANIFEST, with_proofs

CANARY = "canary"  # a file that only code from a hostile file would create
EVIL = "evil_module"  # a Python module in the folder of the case, whose import creates the canary
RUN, INTACT_DATA = "run", "data"  # in the intact folder
PARTS = ("policy", "training", "memory")

# What happened to a command.
REFUSED, SAME, FINISHED = "refused", "the same result", "another result"
BUG, HANG, RAN_CODE = "bug", "hang", "ran code"

DAMAGE = frozenset({REFUSED, SAME})  # damage may go unnoticed only where it changes nothing
CHANGED = frozenset({REFUSED, SAME, FINISHED})  # a valid change, or a refusal


@dataclass(frozen=True)
class Case:
    """One command in a changed folder."""

    what: str  # the change, in words
    words: Sequence[str]  # of the command line
    right: frozenset[str] = DAMAGE


Kind = Callable[[Path, random.Random], Case]
RESUME = ("resume", RUN, "--quiet")
EVALUATE = ("evaluate", RUN, "--episodes", "2")
PREDICT = ("predict", RUN, "--obs", "[1, 0, 0, 0, 0]")


def _checkpoint(folder: Path) -> Path:
    checkpoints = folder / RUN / "checkpoints"
    return checkpoints / (checkpoints / "latest").read_text().strip()


def _command(rng: random.Random) -> tuple[str, ...]:
    return rng.choice([RESUME, RESUME, EVALUATE, PREDICT])


# --- Damaged files ---------------------------------------------------------------------------------------------------


def _flip_bit(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place} of {path.name} flipped"


def _cut(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    length = rng.randrange(len(data))
    path.write_bytes(data[:length])
    return f"{path.name} cut to {length} of {len(data)} bytes"


def _overwrite(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([1, 8, 64, 512]))
    data[start:end] = rng.randbytes(end - start)
    path.write_bytes(data)
    return f"bytes {start} to {end} of {path.name} overwritten"


def _replace_by_special_file(path: Path, rng: random.Random) -> str:
    kind = rng.choice(["fifo", "folder", "link to /dev/zero", "link to nothing", "link to itself", "empty file"])
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty file":
        path.touch()
    else:
        target = {"link to /dev/zero": "/dev/zero", "link to nothing": "nothing", "link to itself": path.name}[kind]
        path.symlink_to(target)
    return f"{path.name} is a {kind}"


def manifest_bits(folder: Path, rng: random.Random) -> Case:
    return Case(_flip_bit(_checkpoint(folder) / MANIFEST, rng), RESUME)


def tensor_bits(folder: Path, rng: random.Random) -> Case:
    return Case(_flip_bit(_checkpoint(folder) / f"{rng.choice(PARTS)}.safetensors", rng), _command(rng))


def run_files(folder: Path, rng: random.Random) -> Case:
    """Damage a file of the run folder that is not part of the checkpoint."""
    names = ["config.yaml", "metadata.json", "metrics.jsonl", "episodes.jsonl", "eval.jsonl", "checkpoints/latest"]
    path = folder / RUN / rng.choice(names)
    change = rng.choice([_flip_bit, _cut, _overwrite])
    return Case(change(path, rng) if path.stat().st_size else "nothing", _command(rng), CHANGED)


def checkpoint_files(folder: Path, rng: random.Random) -> Case:
    name = rng.choice([MANIFEST, *(f"{part}.safetensors" for part in PARTS)])
    return Case(rng.choice([_cut, _overwrite])(_checkpoint(folder) / name, rng), _command(rng))


def special_files(folder: Path, rng: random.Random) -> Case:
    inside = [_checkpoint(folder) / name for name in (MANIFEST, *(f"{part}.safetensors" for part in PARTS))]
    names = ["config.yaml", "metadata.json", "metrics.jsonl", "episodes.jsonl", "eval.jsonl", "checkpoints/latest"]
    path = rng.choice([*inside, *(folder / RUN / name for name in names)])
    return Case(_replace_by_special_file(path, rng), _command(rng), CHANGED)


# --- Hostile checkpoints: changed, and sealed again as their author would ---------------------------------------------

VALUES: Sequence[Any] = (
    None, True, False, -1, 0, 1, 3.7, 10**18, -(10**18), 10**40, 1e308, float("nan"), float("inf"),
    "", "text", "\ud800", [], [[]], {}, {"a": 1}, [1, 2, 3], "../../etc/passwd", "x" * 100_000,
)  # fmt: skip


def _reseal(checkpoint: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest with a valid checksum, as anyone can compute it, but without a seal of the user."""
    whole = "schema_version" in manifest
    (checkpoint / MANIFEST).write_text(with_proofs(manifest, own=False) if whole else json.dumps(manifest))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the keys of every value in a nested JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, child in items for place in [(*path, key), *_places(child, (*path, key))]]


def _parent(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document


def resealed_values(folder: Path, rng: random.Random) -> Case:
    """Replace or remove one value of the manifest."""
    checkpoint = _checkpoint(folder)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    place = rng.choice(_places(manifest))
    parent, key = _parent(manifest, place), place[-1]
    name = ".".join(map(str, place))
    if rng.random() < 0.15:
        del parent[key]
        what = f"{name} removed"
    else:
        value = rng.choice(VALUES)
        parent[key] = value
        what = f"{name} set to {str(value)[:40]!r}"
    _reseal(checkpoint, manifest)
    return Case(what.encode(errors="replace").decode(), _command(rng), CHANGED)


def resealed_tensors(folder: Path, rng: random.Random) -> Case:
    """Change a tensor: its numbers, shape or dtype; remove it, or add another."""
    checkpoint, part = _checkpoint(folder), rng.choice(PARTS)
    file = checkpoint / f"{part}.safetensors"
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    changes: dict[str, Callable[[], np.ndarray]] = {
        "cut": lambda: tensor[: len(tensor) // 2] if tensor.ndim else np.zeros(3, tensor.dtype),
        "flat": lambda: np.append(tensor.reshape(-1), tensor.reshape(-1)),
        "other dtype": lambda: tensor.astype(np.float64 if tensor.dtype != np.float64 else np.int64),
        "empty": lambda: np.zeros(0, tensor.dtype),
        "extra axis": lambda: tensor[None],
    }
    if tensor.dtype.kind == "f":
        changes["NaN"] = lambda: np.full_like(tensor, np.nan)
        changes["infinite"] = lambda: np.full_like(tensor, np.inf)
    change = rng.choice([*changes, "removed", "added"])
    if change == "removed":
        del tensors[name]
    elif change == "added":
        tensors["another"] = np.zeros(3, np.float32)
    else:
        tensors[name] = np.ascontiguousarray(changes[change]())
    save_file(tensors, file)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["sha256"][file.name] = sha256(file)
    _reseal(checkpoint, manifest)
    # Only some parts of the memory are floats that a run computes with; nothing else may be used as it is.
    words = RESUME if part != "policy" else _command(rng)
    right = CHANGED if part == "memory" or change == "added" or tensor.size == 0 else DAMAGE
    return Case(f"{part}: {name} {change}", words, right)


def code_in_files(folder: Path, rng: random.Random) -> Case:
    """Name a module to import wherever a file may name something."""
    checkpoint = _checkpoint(folder)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    config = manifest["config"]
    place = rng.choice(["env_id", "env_id, class", "algo", "env_kwargs", "wrappers", "output_dir", "env_factory"])
    if place.startswith("env_id"):
        config["env_id"] = f"{EVIL}:Env-v0" if place == "env_id" else f"{EVIL}:Env"
    elif place == "env_kwargs":
        config["env_kwargs"] = {"entry_point": f"{EVIL}:Env", "id": f"{EVIL}:Env-v0"}
    elif place == "wrappers":
        config["wrappers"] = [{"class": f"{EVIL}.Env"}, f"{EVIL}:Env"]
    elif place == "output_dir":
        config["output_dir"] = "/nonexistent/elsewhere"
    else:
        config[place] = f"{EVIL}:Env"
    if rng.random() < 0.5:
        manifest["env_factory"] = f"{EVIL}:Env"
    _reseal(checkpoint, manifest)
    (folder / RUN / "config.yaml").write_text(yaml.safe_dump(config))
    return Case(f"{place} names {EVIL}", _command(rng), CHANGED)


# --- Configs ---------------------------------------------------------------------------------------------------------

# A large number here makes a run long, which is no mistake that could be seen.
LENGTHS = (
    "total_timesteps", "eval_episodes", "update", "steps", "epochs", "ratio", "horizon", "frequency", "length",
    "refreshes", "patience", "fraction", "dataset_size", "learning_starts", "horizon_steps",
)  # fmt: skip
YAML_VALUES = (
    "null", "true", "-1", "0", "1", "2", "16", "0.5", "0.9", "1e-3", "1e18", ".nan", ".inf", "-.inf", "''", "text",
    "[]", "{}", "[1e9]", "[[[]]]", "2024-01-01", "2024-01-01 10:00:00", "~/runs", "!!binary aGVsbG8=", "!!set {a, b}",
    '"\\ud800"', "9" * 5_000, "0x1F", "1:30", "&a [*a]", "!!python/object/apply:os.system ['touch canary']",
    "[" * 500 + "]" * 500, "1_000", "yes", "<<", '"\\0"', "{a: {b: {c: 1}}}", "[1, text, null]", "1e-400", "-0.0",
)  # fmt: skip
BOX_ACTIONS = ("sac", "td3", "redq", "mbpo", "iql", "bc", "mopo")


def base_config(algo: str) -> dict[str, Any]:
    """Return a small valid config."""
    config: dict[str, Any] = {
        "algo": algo,
        "env_id": "Pendulum-v1" if algo in BOX_ACTIONS else "rl_training/Chain-v0",
        "total_timesteps": 60,
        "acceleration": "eager",
        "device": "cpu",
        "tensorboard": False,
        "eval_episodes": 1,
        "output_dir": "runs",
        "algo_kwargs": dict(ALGO_KWARGS[algo]),
    }
    if algo in BOX_ACTIONS:
        config["env_kwargs"] = {"max_episode_steps": 20}
    return config


def config_values(folder: Path, rng: random.Random) -> Case:
    """Set one setting to a value from the list of traps."""
    config = base_config(rng.choice(sorted(ALGO_KWARGS)))
    place = rng.choice([place for place in _places(config) if place != ("algo_kwargs",)])
    long = any(word in str(place[-1]) for word in LENGTHS)
    text = rng.choice([value for value in YAML_VALUES if not (long and value in ("1e18", "0x1F", "1:30", "1_000"))])
    _parent(config, place)[place[-1]] = "PLACEHOLDER"
    (folder / "config.yaml").write_text(yaml.safe_dump(config).replace("PLACEHOLDER", text, 1))
    name = ".".join(map(str, place))
    return Case(f"{config['algo']}: {name}: {text[:40]}", ("train", "config.yaml", "--quiet"), CHANGED)


def config_bytes(folder: Path, rng: random.Random) -> Case:
    """Damage the text of a config."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(base_config(rng.choice(["dqn", "ppo", "sac"]))))
    what = rng.choice([_flip_bit, _flip_bit, _cut, _overwrite, _replace_by_special_file])(path, rng)
    return Case(what, ("config", "show", "config.yaml"), CHANGED)


# --- Datasets --------------------------------------------------------------------------------------------------------


def dataset_bytes(folder: Path, rng: random.Random) -> Case:
    """Damage a dataset. HDF5 and Parquet files have no checksums of their own: they may give other numbers."""
    path = folder / INTACT_DATA / rng.choice(["data.npz", "data.hdf5", "data.parquet"])
    what = rng.choice([_flip_bit, _flip_bit, _cut, _overwrite, _replace_by_special_file])(path, rng)
    right = DAMAGE if path.suffix == ".npz" else CHANGED
    return Case(what, ("dataset", "inspect", str(path.relative_to(folder))), right)


class _RunsCode:
    """Unpickling this creates the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path(CANARY).touch, ())


def _npy(array: np.ndarray, header: bytes | None = None) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    data = file.getvalue()
    if header is None:
        return data
    start = 10 + struct.unpack("<H", data[8:10])[0]
    padded = header + b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return data[:8] + struct.pack("<H", len(padded)) + padded + data[start:]


def dataset_arrays(folder: Path, rng: random.Random) -> Case:
    """Replace one array of an npz dataset by a hostile one."""
    path = folder / INTACT_DATA / "data.npz"
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: _npy(archive[name]) for name in archive.files}
        name = rng.choice(sorted(arrays))
        rows = archive[name]
    shape = f"({10**15},)".encode()
    hostile: dict[str, Callable[[], bytes]] = {
        "objects": lambda: _npy(np.array([_RunsCode()] * max(1, rows.size), dtype=object)),
        "a huge shape": lambda: _npy(rows, b"{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + b", }"),
        "an expression": lambda: _npy(rows, b"{'descr': __import__('os').system('touch canary'), 'shape': (1,)}"),
        "NaN": lambda: _npy(np.full(rows.shape, np.nan)),
        "fewer rows": lambda: _npy(rows[: len(rows) // 2] if rows.ndim else rows),
        "text": lambda: _npy(np.array(["text"] * max(1, rows.size))),
        "complex": lambda: _npy(np.zeros(rows.shape, np.complex64)),
        "no rows": lambda: _npy(rows[:0] if rows.ndim else rows),
        "big-endian": lambda: _npy(rows.astype(rows.dtype.newbyteorder(">"))),
        "another axis": lambda: _npy(np.stack([rows, rows])),
        "zeros": lambda: _npy(np.zeros_like(rows)),
    }
    kind = rng.choice(sorted(hostile))
    arrays[name] = hostile[kind]()
    with zipfile.ZipFile(path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for member, data in arrays.items():
            archive.writestr(f"{member}.npy", data)
    return Case(f"{name}: {kind}", ("dataset", "inspect", str(path.relative_to(folder))), CHANGED)


# --- Environments ----------------------------------------------------------------------------------------------------

# Faults that a run may survive: harmless, or after the last step.
SURVIVABLE = {
    "flag_two", "reward_list", "info_none", "info_list", "info_text", "space_scalar", "space_nested",
    "space_big_endian", "space_float128", "close_raises", "close_exits", "thread_left", "obs_deep", "obs_ragged",
}  # fmt: skip


def environments(folder: Path, rng: random.Random) -> Case:
    """Train in an environment with one fault."""
    fault = rng.choice(fuzz_envs.FAULTS)
    step = rng.choice([0, 1, 3, fuzz_envs.LENGTH])
    backend = rng.choice(["local_sync", "local_async"])
    config = base_config("dqn") | {
        "env_id": "benchmarks.fuzz_envs:Faulty-v0",
        "env_kwargs": {"fault": fault, "step": step},
        "execution_backend": backend,
        "worker_timeout": 3.0,
        "num_envs": rng.choice([1, 2]),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    no_effect = step == 0 and fault in {**fuzz_envs.REWARDS, **fuzz_envs.FLAGS}
    right = CHANGED if fault in SURVIVABLE or no_effect else frozenset({REFUSED})
    what = f"{fault} at step {step}, {backend}, {config['num_envs']} envs"
    return Case(what, ("train", "config.yaml", "--quiet"), right)


# How many of each 100 cases.
KINDS: Mapping[Kind, int] = {
    manifest_bits: 12,
    tensor_bits: 6,
    checkpoint_files: 8,
    run_files: 6,
    special_files: 8,
    resealed_values: 14,
    resealed_tensors: 10,
    code_in_files: 4,
    config_values: 12,
    config_bytes: 4,
    dataset_bytes: 5,
    dataset_arrays: 4,
    environments: 7,
}
