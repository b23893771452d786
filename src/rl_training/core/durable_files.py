"""Files that survive a crash: synced to disk, and replaced in one atomic step or not at all."""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from rl_training.errors import CheckpointError


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: str) -> None:
    """Replace the file by a text; a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        write_synced(temporary, content.encode())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written: {error}; the run's checkpoints are intact") from error


def make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for above in (folder.parent, folder.parent.parent):  # the run folder and its parent may be new too
            sync_folder(above)


def sync_folder(folder: Path) -> None:
    """Sync the entries of the folder to disk: which files it has, and their names."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        with Path(target).open("rb") as file:
            os.fsync(file.fileno())


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
