"""Checkpoints: folders of safetensors files and a manifest, written so that a crash never leaves a partial one.

    checkpoints/step_000100000/{manifest.json, policy.safetensors, training.safetensors, memory.safetensors}
    checkpoints/latest, checkpoints/best          the name of such a folder, each in a small file

A checkpoint is written to a temporary folder, synced, and renamed; the pointers `latest` and `best` are updated after
that. Nothing in a checkpoint is ever executed: tensors are safetensors, everything else is JSON.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.core.durable_files import (
    describe_os_error,
    make_folder,
    read_text,
    sha256,
    sync_folder,
    write_atomic,
    write_synced,
)
from rl_training.errors import CheckpointError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import (
    MANIFEST,
    POLICY,
    TRAINING,
    file_name,
    is_own_manifest,
    is_resumable,
    manifest_text,
    read_manifest,
    with_proofs,
)
from rl_training.experiment.state_files import first_non_finite, flatten, num_bytes, write_tensors

_NAME = re.compile(r"step_\d{1,18}")
_MAX_POINTER_BYTES = 100
# What the library writes into a folder of checkpoints, the temporary names of killed processes included.
_OUR_FILE = re.compile(r"manifest\.json|(policy|training|memory)\.safetensors|\.manifest\.json_\d+")
_LEFTOVER_FOLDER = re.compile(r"\.(writing|removing)_step_\d+_\d+")
_LEFTOVER_POINTER = re.compile(r"\.(latest|best)_\d+")


# --- Writing ---------------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path, *, config: TrainConfig, counters: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> Path:
    """Write `parts` as the checkpoint of step `counters["step"]` in `folder`, and point `latest` at it.

    Without the parts "training" and "memory", the checkpoint serves acting only and `latest` does not change.
    """

    def write(temporary: Path) -> None:
        temporary.mkdir()
        checksums, values = {}, {}
        for part, state in parts.items():
            tensors, values[part] = flatten(state)
            if part == POLICY and (name := first_non_finite(tensors)):
                raise TrainingError(
                    f"the network's parameter {name} is not finite: training has diverged and this state is not saved; "
                    "earlier checkpoints are intact. A smaller learning_rate or max_grad_norm usually helps"
                )
            checksums[file_name(part)] = write_tensors(temporary / file_name(part), tensors)
        text = manifest_text(
            config=config.model_dump(mode="json"),
            counters=dict(counters),
            sha256=checksums,
            values=values,
            own=config.origin is None,
        )
        write_synced(temporary / MANIFEST, text.encode())

    needed = sum(num_bytes(state) for state in parts.values())
    target = write_atomically(folder / checkpoint_name(counters["step"]), write, needed)
    if TRAINING in parts:
        write_pointer(folder, "latest", target.name)
    return target


def write_atomically(target: Path, write: Callable[[Path], None], needed: int) -> Path:
    """Call `write`, which writes `needed` bytes, on a temporary folder, sync it to disk and rename it to `target`."""
    temporary = target.with_name(f".writing_{target.name}_{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        make_folder(target.parent)
        write(temporary)
        sync_folder(temporary)
        _publish(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        problem = describe_os_error(error, target.parent, needed)
        raise CheckpointError(
            f"the checkpoint {target} could not be written: {problem}; earlier ones are intact"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _publish(temporary: Path, target: Path) -> None:
    """Rename `temporary` to `target`.

    The state of a step is unique, so an existing complete checkpoint of that step holds the same data. It is kept: to
    replace it, there would be a moment without it. If it holds only a policy, the other files are added to it, the
    manifest that names them last.
    """
    if target.exists() and _holds_the_same(temporary, target):
        missing = [path for path in temporary.iterdir() if not (target / path.name).exists()]
        for path in [*missing, temporary / MANIFEST] if missing else []:
            path.replace(target / path.name)
        sync_folder(target)
    else:
        if target.exists():
            remove_checkpoint(target)
        temporary.rename(target)
    sync_folder(target.parent)


def _holds_the_same(temporary: Path, target: Path) -> bool:
    """Return whether `target` is complete and has the same content in all files that both have."""
    if not is_whole(target):
        return False
    new, existing = read_manifest(temporary)["sha256"], read_manifest(target)["sha256"]
    return all(new.get(name, digest) == digest for name, digest in existing.items())


def amend_checkpoint(path: Path, *, counters: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Replace some counters and some values of the part "training", none of them tensors, in one atomic step."""
    manifest = read_manifest(path)
    own = is_own_manifest(manifest)
    manifest["counters"] |= counters
    manifest["values"][TRAINING] |= flatten(training)[1]
    write_atomic(path / MANIFEST, with_proofs(manifest, own=own))


def clear_stop_reason(path: Path) -> None:
    """Remove the stop reason from the last checkpoint of a finished run: the run continues."""
    amend_checkpoint(path, counters={"stop_reason": ""}, training={})


def write_pointer(folder: Path, pointer: str, name: str) -> None:
    """Point `latest` or `best` at a checkpoint, in one atomic step."""
    write_atomic(folder / pointer, f"{name}\n")


# --- Removing --------------------------------------------------------------------------------------------------------


def remove_checkpoint(path: Path) -> None:
    """Hide a checkpoint in one atomic step, then delete it: a crash in between leaves no partial checkpoint."""
    if not holds_only_ours(path):
        raise CheckpointError(
            f"{path} is not removed or replaced: it is a link, or holds other files than a checkpoint"
        )
    hidden = path.with_name(f".removing_{path.name}_{os.getpid()}")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    sync_folder(path.parent)
    shutil.rmtree(hidden, ignore_errors=True)


def holds_only_ours(path: Path) -> bool:
    """Return whether a path is a folder, not a link, whose files all have names that a checkpoint writes."""
    return path.is_dir() and not path.is_symlink() and all(_OUR_FILE.fullmatch(file.name) for file in path.iterdir())


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove leftovers of crashes and all checkpoints except the newest `keep` and those of `latest` and `best`.

    A checkpoint with only a policy is kept only as `best`: it could not be resumed if the others were lost. What the
    library did not write stays, also in a folder with the name of a checkpoint.
    """
    kept = {*resumable_names(folder)[-keep:], read_pointer(folder, "latest"), read_pointer(folder, "best")}
    with contextlib.suppress(OSError):  # what cannot be removed now is removed the next time
        for name in checkpoint_names(folder):
            if name not in kept and holds_only_ours(folder / name):
                remove_checkpoint(folder / name)
        for leftover in folder.glob(".*_*"):
            if _LEFTOVER_FOLDER.fullmatch(leftover.name) and holds_only_ours(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
            elif _LEFTOVER_POINTER.fullmatch(leftover.name):
                leftover.unlink(missing_ok=True)


# --- What a folder of checkpoints holds ------------------------------------------------------------------------------


def checkpoint_name(step: int) -> str:
    return f"step_{step:09d}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step_"))


def checkpoint_names(folder: Path) -> list[str]:
    """Return the names of the checkpoint folders, oldest first."""
    names = (path.name for path in folder.glob("step_*") if path.is_dir() and not path.is_symlink())
    return sorted(filter(_NAME.fullmatch, names), key=step_of)


def resumable_names(folder: Path) -> list[str]:
    """Return the names of the checkpoints that hold more than a policy, oldest first.

    The manifest decides, not the files. A checkpoint that lost a file, or whose manifest cannot be read, counts as
    resumable: the user may repair it, and skipping it would silently lose the state of a run.
    """

    def has_only_policy(path: Path) -> bool:
        try:
            return not is_resumable(read_manifest(path))
        except (OSError, CheckpointError):
            return False

    return [name for name in checkpoint_names(folder) if not has_only_policy(folder / name)]


def read_pointer(folder: Path, pointer: str) -> str | None:
    """Return the name of the checkpoint that `latest` or `best` points at; None if there is no such checkpoint."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = read_text(folder / pointer, _MAX_POINTER_BYTES).strip()
        if _NAME.fullmatch(name) and (folder / name).is_dir() and not (folder / name).is_symlink():
            return name
    return None


def is_whole(path: Path) -> bool:
    """Return whether every file of a checkpoint has the checksum in its manifest."""
    try:
        return all(sha256(path / name) == expected for name, expected in read_manifest(path)["sha256"].items())
    except (OSError, CheckpointError):
        return False
