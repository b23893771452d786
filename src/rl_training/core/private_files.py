"""The user's private cache folder, and the check that no other user can change a file.

Native code that is loaded and keys that prove who wrote a file are trusted because of where they are. So every part of
their path, from the root folder down, must belong to this user or to root and be writable by the owner alone: whoever
can write to a folder can replace what is in it. One kind of shared folder is accepted above a private one: in a folder
with the sticky bit, such as /tmp, only the owner of an entry can rename or remove it.
"""

import os
import stat
from pathlib import Path

from rl_training.errors import ConfigError

ROOT_USER = 0


class UntrustedPathError(ConfigError):
    """Another user can change a file whose content must be the user's own."""


def private_folder(name: str) -> Path:
    """Return the folder `name` in the user's cache and create it if it is missing.

    The cache is `$RL_TRAINING_CACHE`, otherwise `$XDG_CACHE_HOME/rl_training`, otherwise `~/.cache/rl_training`.
    Raises `UntrustedPathError` for a folder that others can change, and `OSError` for one that cannot be created.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("RL_TRAINING_CACHE") or base / "rl_training").expanduser().absolute() / name
    for missing in reversed([part for part in (folder, *folder.parents) if not part.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)  # another process may be creating it too
    return check_private(folder)


def check_private(path: Path) -> Path:
    """Return the real path of a file or folder; raise `UntrustedPathError` if another user can change it.

    Use the returned path to open the file: it has no links, which somebody could turn elsewhere. What it contains
    cannot change between this check and its use, except by this user or root.
    """
    real = path.resolve(strict=True)
    for part in (real, *real.parents):
        status = _status(part)
        if status.st_uid not in (os.getuid(), ROOT_USER):
            raise UntrustedPathError(
                f"{part} belongs to user {status.st_uid}, who can change {path}; only you and root may. "
                "Set RL_TRAINING_CACHE to a folder of your own"
            )
        shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and part != real
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
            raise UntrustedPathError(
                f"{part} is writable by others (mode {stat.S_IMODE(status.st_mode):o}), who can change {path}. "
                f"Run `chmod go-w {part}`, or set RL_TRAINING_CACHE to a folder of your own"
            )
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise UntrustedPathError(f"{part} is neither a regular file nor a folder")
    return real


def _status(path: Path) -> os.stat_result:
    return path.stat()
