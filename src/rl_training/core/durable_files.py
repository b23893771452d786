"""Files that survive a crash: synced to disk, and replaced in one atomic step or not at all.

What a run folder, a dataset or a config holds may come from anywhere. Its files are opened by `open_file`, which never
blocks: a pipe or an endless device in place of a file is an error.
"""

import contextlib
import errno
import glob
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from rl_training.core.memory_limits import describe_bytes
from rl_training.errors import CheckpointError, ConfigError

MAX_TEXT_BYTES = 64 * 2**20  # of a file that is read as a whole


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise `OSError` for anything else, such as a pipe, a device or a folder."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK, opening a pipe waits for its writer
    return open(_regular(os.open(path, flags), path), "rb")


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file in UTF-8; raise `OSError` if it has more than `max_bytes`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than the {max_bytes:,} of any such file", str(path))
        return file.read(max_bytes).decode("utf-8")


def open_log(path: Path) -> BinaryIO:
    """Open a regular file to append to it, and create it if it is missing; raise `OSError` for a link or anything else.

    A file that is reached through a link may belong to something else.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(_regular(os.open(path, flags, 0o666), path), "ab")


def _regular(descriptor: int, path: Path) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def describe_os_error(error: OSError, folder: Path, needed: int | None = None) -> str:
    """Return the text of an error; if the disk is full, with the bytes that are free and those that are needed."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    figures = f"{describe_bytes(shutil.disk_usage(folder).free)} are free in {folder}"
    return f"{error} ({f'{describe_bytes(needed)} are needed, ' if needed is not None else ''}{figures})"


def check_free_space(needed: int, folder: Path, what: str) -> None:
    """Raise `ConfigError` if the disk of `folder`, which need not exist yet, cannot hold `needed` bytes."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ConfigError(
            f"{what} needs {describe_bytes(needed)}, but only {describe_bytes(free)} are free in {folder}"
        )


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: str) -> None:
    """Replace the file by a text; a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        _remove_leftovers(path)
        write_synced(temporary, content.encode())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        problem = describe_os_error(error, path.parent, len(content.encode()))
        raise CheckpointError(f"{path} cannot be written: {problem}; the run's checkpoints are intact") from error


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of other writers of `path` that were killed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}_*"):
        pid = leftover.name.rpartition("_")[2]
        if pid.isdecimal() and pid != str(os.getpid()) and not _is_running(int(pid)):
            leftover.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


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


def copy_synced(source: Path, target: Path) -> None:
    """Copy a regular file; raise `OSError` for anything else, such as a device without an end."""
    with open_file(source) as original, target.open("wb") as copy:
        shutil.copyfileobj(original, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)  # a link to the file itself, where `source` is a symbolic one
    except OSError:  # another file system, or one without links
        copy_synced(source, target)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
