"""Checkpoints: folders of safetensors files and a manifest, written so that no moment of death leaves half of one.

    checkpoints/step_000100000/{manifest.json, policy.safetensors, training.safetensors, memory.safetensors}
    checkpoints/latest, checkpoints/best          the name of such a folder, each in a small file

A checkpoint is written into a temporary folder, synced, and renamed into place; only then do the pointers move.
Nothing in a checkpoint is ever executed: tensors are safetensors, everything else is JSON.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rl_training.errors import CheckpointError, TrainingError
from rl_training.experiment.config import TrainConfig

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
POLICY, TRAINING, MEMORY = "policy", "training", "memory"

_SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk, its manifest read and its files verified."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(**self.manifest["config"])

    @property
    def step(self) -> int:
        return int(self.manifest["counters"]["step"])

    @property
    def is_resumable(self) -> bool:
        return {TRAINING, MEMORY} <= set(self.manifest["values"])

    def load(self, part: str) -> dict[str, Any]:
        """Read one part ("policy", "training", "memory") back into the nested dict that was saved."""
        tensors = {}
        try:
            with safe_open(self.path / f"{part}.safetensors", framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    tensors[name] = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.path}: {part}.safetensors cannot be read: {error}") from None
        return _unflatten(tensors | self.manifest["values"][part])


def save_checkpoint(
    folder: Path, *, config: TrainConfig, counters: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> Path:
    """Write `parts` as the checkpoint of `counters["step"]` below `folder` and point `latest` at it.

    Without the parts "training" and "memory" the checkpoint serves acting only and `latest` stays.
    """
    name = f"step_{counters['step']:09d}"
    target = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".writing_{name}_{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        checksums, values = {}, {}
        for part, state in parts.items():
            tensors, values[part] = _flatten(state)
            if part == POLICY:
                _refuse_non_finite(tensors)
            checksums[f"{part}.safetensors"] = _write_safetensors(temporary / f"{part}.safetensors", tensors)
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "config": config.model_dump(mode="json"),
            "counters": dict(counters),
            "sha256": checksums,
            "values": values,
        }
        _write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync_folder(temporary)
        _publish(temporary, target)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {target} could not be written: {error}; earlier ones are whole"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if TRAINING in parts:
        write_pointer(folder, "latest", name)
    return target


def write_pointer(folder: Path, pointer: str, name: str) -> None:
    """Let `latest` or `best` name a checkpoint, in one atomic step."""
    temporary = folder / f".{pointer}_{os.getpid()}"
    _write_synced(temporary, f"{name}\n".encode())
    temporary.replace(folder / pointer)
    _sync_folder(folder)


def read_pointer(folder: Path, pointer: str) -> str | None:
    with contextlib.suppress(OSError):
        return (folder / pointer).read_text(encoding="utf-8").strip() or None
    return None


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and those that `latest` and `best` name, and leftovers of deaths."""
    names = checkpoint_names(folder)
    kept = {*names[-keep:], read_pointer(folder, "latest"), read_pointer(folder, "best")}
    for name in names:
        if name not in kept:
            shutil.rmtree(folder / name, ignore_errors=True)
    for leftover in folder.glob(".*_*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def checkpoint_names(folder: Path) -> list[str]:
    """Names of the checkpoint folders, oldest first."""
    return sorted(path.name for path in folder.glob("step_*") if path.is_dir())


def find_checkpoint(path: str | Path, pointer: str = "latest") -> Path:
    """Find the checkpoint meant by a run folder, its `checkpoints` folder, or a checkpoint folder itself."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"there is no run or checkpoint at {str(path)!r}")
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    name = read_pointer(folder, pointer)
    names = checkpoint_names(folder)
    if name is None:
        if pointer != "latest" or not names:
            raise CheckpointError(f"{path} holds no {pointer + ' ' if pointer != 'latest' else ''}checkpoint")
        name = names[-1]
    return folder / name


def open_checkpoint(path: Path, *, verify: bool = True) -> Checkpoint:
    """Read a checkpoint's manifest and check every file against it; damage is named, with the next whole one."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest.keys() < {"schema_version", "config", "counters", "sha256"}:
            raise CheckpointError(f"{path / MANIFEST} is not a checkpoint's manifest")
        if manifest["schema_version"] != SCHEMA_VERSION:
            raise CheckpointError(
                f"{path} has schema version {manifest['schema_version']!r}, this release reads {SCHEMA_VERSION}"
            )
        for name, expected in manifest["sha256"].items() if verify else ():
            if Path(name).name != name:
                raise CheckpointError(f"{path / MANIFEST} names a file outside its folder: {name!r}")
            if _sha256(path / name) != expected:
                raise CheckpointError(f"{path / name} is damaged: its checksum is not the manifest's")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}{_offer_another(path)}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_offer_another(path)}") from None
    return Checkpoint(path, manifest)


def _offer_another(damaged: Path) -> str:
    """Name the newest other checkpoint that is whole, if there is one."""
    for name in reversed(checkpoint_names(damaged.parent)):
        candidate = damaged.parent / name
        if candidate != damaged and _is_whole(candidate):
            return f"; the newest whole one is {candidate}"
    return ""


def _is_whole(path: Path) -> bool:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return all(_sha256(path / name) == expected for name, expected in manifest["sha256"].items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False


# --- Files -----------------------------------------------------------------------------------------------------------


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write the safetensors format from the tensors' own memory (a buffer is not copied); give the file's sha256."""
    header: dict[str, Any] = {}
    arrays, end = [], 0
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous()
        size = array.numel() * array.element_size()
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + size],
        }
        arrays.append(array)
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in _chunks([len(text).to_bytes(8, "little"), text], arrays):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _chunks(head: list[bytes], arrays: list[Tensor]) -> Iterator[bytes | memoryview]:
    yield from head
    for array in arrays:
        if array.numel():
            yield array.reshape(-1).view(torch.uint8).numpy().data


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, target: Path) -> None:
    """Rename `temporary` to `target`. A whole checkpoint of that step with the same files is left as it is.

    The state of a step is unique, so such a one says the same; and moving it aside would open a moment without it.
    """
    if target.exists():
        if _is_whole(target) and {path.name for path in temporary.iterdir()} <= {
            path.name for path in target.iterdir()
        }:
            return
        shutil.rmtree(target)
    temporary.rename(target)
    _sync_folder(target.parent)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


# --- Nested state and flat files -------------------------------------------------------------------------------------


def _flatten(state: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split nested state into named tensors and JSON values, keys joined by "|"."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        if "|" in str(key):
            raise ValueError(f"state keys must not contain '|', got {name!r}")
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, np.ndarray):
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value))
        elif isinstance(value, Mapping) and value:
            below = _flatten(value, f"{name}|")
            tensors |= below[0]
            values |= below[1]
        else:
            values[name] = value
    return tensors, values


def _unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("|")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def _refuse_non_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise TrainingError(
                f"the network's parameter {name} is not finite: training has diverged and this state is not saved; "
                "earlier checkpoints are whole. A smaller learning_rate or max_grad_norm usually helps"
            )
