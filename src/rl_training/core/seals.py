"""Seals: the proof that this user wrote a file.

A seal is a hash with a key. The key is random, lies in the user's private cache and is never copied anywhere else. So
nobody else can make a seal of this user, and a file from anywhere can be recognised as the user's own.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
from pathlib import Path

from rl_training.core.durable_files import open_file
from rl_training.core.private_files import UntrustedPathError, check_private, private_folder

_KEY_BYTES = 32

log = logging.getLogger("rl_training")


def make_seal(kind: str, text: str) -> str | None:
    """Return the user's seal of a text; None if there is no folder in which a key can be kept secret.

    `kind`: what the text is, so that the seal of one kind of file is not valid for another.
    """
    try:
        key = _read_key(create=True)
    except (OSError, UntrustedPathError) as error:
        log.debug("nothing is sealed, because the key cannot be used: %s", error)
        return None
    return _seal(key, kind, text)


def is_own(kind: str, text: str, seal: object) -> bool:
    """Return whether `seal` is this user's seal of the text."""
    try:
        return isinstance(seal, str) and hmac.compare_digest(
            _seal(_read_key(create=False), kind, text).encode(), seal.encode("utf-8", "replace")
        )
    except (OSError, UntrustedPathError) as error:
        log.debug("no seal can be checked, because the key cannot be used: %s", error)
        return False


def _seal(key: bytes, kind: str, text: str) -> str:
    return hmac.new(key, f"{kind}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _read_key(*, create: bool) -> bytes:
    path = private_folder("keys") / "seal.key"
    if create and not path.exists():
        _create_key(path)
    with open_file(check_private(path)) as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise UntrustedPathError(f"{path} can be read by others: run `chmod 600 {path}`, or remove it")
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} is damaged: it has {len(key)} bytes, not {_KEY_BYTES}; remove it")
    return key


def _create_key(path: Path) -> None:
    """Create the key in one atomic step; a process that creates it at the same time keeps the same one."""
    temporary = path.with_name(f".{path.name}_{os.getpid()}_{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
