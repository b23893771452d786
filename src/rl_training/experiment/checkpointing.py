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
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rl_training.errors import CheckpointError, ConfigError, TrainingError
from rl_training.experiment.config import TrainConfig

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
POLICY, TRAINING, MEMORY = "policy", "training", "memory"
_NAME = re.compile(r"step_\d+")

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
        try:
            return TrainConfig(**self.manifest["config"])
        except ConfigError as error:  # another release wrote it, or an algorithm's package is not installed here
            raise CheckpointError(f"{self.path} holds settings that are not valid here: {error}") from error

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
    name = checkpoint_name(counters["step"])
    target = folder / name
    temporary = folder / f".writing_{name}_{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _make_folder(folder)
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
        if TRAINING in parts:
            write_pointer(folder, "latest", name)
    except OSError as error:
        raise _not_written(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def copy_checkpoint(checkpoint: Checkpoint, folder: Path) -> Path:
    """Let `folder` hold the checkpoint too; files are never changed once written, so links will do."""
    name = checkpoint_name(checkpoint.step)
    target = folder / name
    temporary = folder / f".writing_{name}_{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _make_folder(folder)
        shutil.copytree(checkpoint.path, temporary, copy_function=_link_or_copy)
        _sync_folder(temporary)
        _publish(temporary, target)
    except (OSError, shutil.Error) as error:
        raise _not_written(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def forget_end(path: Path) -> None:
    """Let a checkpoint with which a run had ended be one on its way: the run goes on."""
    manifest = _read_manifest(path)
    manifest["counters"]["stop_reason"] = ""
    temporary = path / f".{MANIFEST}_{os.getpid()}"
    try:
        _write_synced(temporary, json.dumps(manifest, indent=1).encode())
        temporary.replace(path / MANIFEST)
        _sync_folder(path)
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST} could not be written: {error}; it is as it was") from error


def remove_checkpoint(path: Path) -> None:
    """Take a checkpoint out of sight in one step, then delete it: a death in between leaves no half of one."""
    hidden = path.with_name(f".removing_{path.name}_{os.getpid()}")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    _sync_folder(path.parent)
    shutil.rmtree(hidden, ignore_errors=True)


def _not_written(target: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"the checkpoint {target} could not be written: {error}; earlier ones are whole")


def write_pointer(folder: Path, pointer: str, name: str) -> None:
    """Let `latest` or `best` name a checkpoint, in one atomic step."""
    temporary = folder / f".{pointer}_{os.getpid()}"
    try:
        _write_synced(temporary, f"{name}\n".encode())
        temporary.replace(folder / pointer)
        _sync_folder(folder)
    except OSError as error:
        raise CheckpointError(f"{folder / pointer} could not be written: {error}; the checkpoints are whole") from error


def read_pointer(folder: Path, pointer: str) -> str | None:
    """Give the name of the checkpoint that `latest` or `best` names; None if there is no such checkpoint."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = (folder / pointer).read_text(encoding="utf-8").strip()
        if _NAME.fullmatch(name) and (folder / name).is_dir():
            return name
    return None


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and those that `latest` and `best` name, and leftovers of deaths.

    A policy alone counts only as `best`: it could not be resumed if the others were lost.
    """
    kept = {*resumable_names(folder)[-keep:], read_pointer(folder, "latest"), read_pointer(folder, "best")}
    with contextlib.suppress(OSError):  # what stays now goes the next time
        for name in checkpoint_names(folder):
            if name not in kept:
                remove_checkpoint(folder / name)
        for leftover in folder.glob(".*_*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def checkpoint_name(step: int) -> str:
    return f"step_{step:09d}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step_"))


def checkpoint_names(folder: Path) -> list[str]:
    """Names of the checkpoint folders, oldest first."""
    names = (path.name for path in folder.glob("step_*") if path.is_dir())
    return sorted(filter(_NAME.fullmatch, names), key=step_of)


def resumable_names(folder: Path) -> list[str]:
    """Names of those that hold more than a policy, oldest first."""
    return [name for name in checkpoint_names(folder) if (folder / name / f"{MEMORY}.safetensors").is_file()]


def find_checkpoint(path: str | Path, pointer: str = "latest") -> Path:
    """Find the checkpoint meant by a run folder, its `checkpoints` folder, or a checkpoint folder itself."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"there is no run or checkpoint at {str(path)!r}")
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    name = read_pointer(folder, pointer)
    if pointer == "latest":
        # After a death between a checkpoint and its pointer, the pointer is one behind.
        names = resumable_names(folder) or checkpoint_names(folder)
        name = max([*names[-1:], *([name] if name else [])], key=step_of, default=None)
    if name is None:
        raise CheckpointError(f"{path} holds no {pointer + ' ' if pointer != 'latest' else ''}checkpoint")
    return folder / name


def open_checkpoint(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """Read a checkpoint's manifest and check every file (of `parts`) against it.

    Damage is named, with the next whole one.
    """
    try:
        manifest = _read_manifest(path)
        for name, expected in manifest["sha256"].items():
            if (parts is None or name.removesuffix(".safetensors") in parts) and _sha256(path / name) != expected:
                raise CheckpointError(f"{path / name} is damaged: its checksum is not the manifest's")
    except OSError as error:
        raise CheckpointError(f"{path} is damaged: {error}{_offer_another(path)}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_offer_another(path)}") from None
    return Checkpoint(path, manifest)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest and check its shape: it may have come from anywhere."""
    checked: dict[str, Any]
    try:
        manifest: Any = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / MANIFEST} is damaged: {error}") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise CheckpointError(f"{path} has schema version {version}, this release reads {SCHEMA_VERSION}")
    groups = [manifest.get(key) for key in ("config", "counters", "sha256", "values")] if version is not None else []
    if not groups or not all(isinstance(group, dict) for group in groups):
        raise CheckpointError(f"{path / MANIFEST} is not a checkpoint's manifest")
    parts = manifest["values"]
    if not {POLICY} <= parts.keys() <= {POLICY, TRAINING, MEMORY} or not all(
        isinstance(part, dict) for part in parts.values()
    ):
        raise CheckpointError(f"{path / MANIFEST} names parts that no checkpoint has: {', '.join(parts)}")
    if manifest["sha256"].keys() != {f"{part}.safetensors" for part in parts}:
        raise CheckpointError(f"{path / MANIFEST} names other files than its parts: {', '.join(manifest['sha256'])}")
    if not isinstance(manifest["counters"].get("step"), int):
        raise CheckpointError(f"{path / MANIFEST} does not say at which step it was written")
    checked = manifest
    return checked


def _offer_another(damaged: Path) -> str:
    """Name the newest other checkpoint that is whole, if there is one; rather one that can be resumed."""
    folder = damaged.parent
    for name in [*reversed(resumable_names(folder)), *reversed(checkpoint_names(folder))]:
        if name != damaged.name and is_whole(folder / name):
            return f"; the newest whole one is {folder / name}"
    return ""


def is_whole(path: Path) -> bool:
    """Tell whether every file of a checkpoint is what its manifest says."""
    try:
        return all(_sha256(path / name) == expected for name, expected in _read_manifest(path)["sha256"].items())
    except (OSError, CheckpointError):
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


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for above in (folder.parent, folder.parent.parent):  # the run's folder and its place may be as new
            _sync_folder(above)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        with Path(target).open("rb") as file:
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, target: Path) -> None:
    """Rename `temporary` to `target`.

    The state of a step is unique, so a whole checkpoint of that step says the same and stays: moving it aside would
    open a moment without it. If it is a policy alone, the other files join it, the manifest that names them last.
    """
    if target.exists() and _agree(temporary, target):
        missing = [path for path in temporary.iterdir() if not (target / path.name).exists()]
        for path in [*missing, temporary / MANIFEST] if missing else []:
            path.replace(target / path.name)
        _sync_folder(target)
    else:
        if target.exists():
            remove_checkpoint(target)
        temporary.rename(target)
    _sync_folder(target.parent)


def _agree(temporary: Path, target: Path) -> bool:
    """Tell whether `target` is whole and holds the same as `temporary` wherever both hold something."""
    if not is_whole(target):
        return False
    ours, theirs = _read_manifest(temporary)["sha256"], _read_manifest(target)["sha256"]
    return all(ours.get(name, digest) == digest for name, digest in theirs.items())


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
            tensors[name] = torch.from_numpy(np.asarray(value, order="C"))  # not ascontiguousarray: 0-d stays 0-d
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
