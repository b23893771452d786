"""Errors whose message is meant for the user.

Each message says what is wrong, what was found and what is expected. The CLI prints the message alone and exits with
code 2. Any other error is a bug of the library and keeps its traceback.
"""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """Base class of every error that the user can fix; never raised itself."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, has the wrong type or is out of range."""


class SpaceError(UserError, TypeError):
    """An algorithm cannot handle the environment's observation or action space."""


class EnvError(UserError, RuntimeError):
    """An environment could not be created, crashed, hung, or returned values that cannot be used for training."""


class CheckpointError(UserError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class DatasetError(UserError, ValueError):
    """A dataset is missing, damaged, hostile, or does not fit the environment."""


class ExportError(UserError, RuntimeError):
    """A policy cannot be exported, or an exported one is missing, damaged or differs from the agent."""


class TrainingError(UserError, RuntimeError):
    """Training reached a state that must not be saved, such as weights that are not finite."""


class UserCodeError(UserError, RuntimeError):
    """Code of the user (an environment, a callback, a network) tried to end the process, as `sys.exit` does."""


@contextlib.contextmanager
def exits_are_errors() -> Iterator[None]:
    """Raise `UserCodeError` for `SystemExit` and its like, which would end the process as if all was well."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as cause:
        place = traceback.extract_tb(cause.__traceback__)[-1]
        raise UserCodeError(
            f"{type(cause).__name__}({cause}) was raised in {place.filename}, line {place.lineno}: environments, "
            "callbacks and networks must not end the process; a callback sets run.stop_reason to end the run"
        ) from cause


def check_argument(value: object, kind: type, function: str, *, path: str, other: str) -> None:
    """Raise `TypeError` for an argument of another kind, with the call that works.

    `path`, `other`: what to write in place of a path, which stands for `{}`, and in place of any other value.
    """
    if isinstance(value, kind):
        return
    found, instead = f"a {type(value).__name__}", other
    if isinstance(value, str | Path):
        found = repr(str(value))
        instead = path.format(found)
    raise TypeError(f"{function} takes a {kind.__name__}, got {found}; write {function}({instead})")


def text_of(error: BaseException) -> str:
    """Return the message of an error; errors of the user's code may fail to give one."""
    try:
        return str(error)
    except Exception as another:
        return f"(its message cannot be shown: {type(another).__name__})"
