"""Code that settings name: which it is, when it may be imported, and how a run remembers its env function.

A run folder or a checkpoint may come from a stranger. Importing a module that such a file names would run the
stranger's code, so that needs consent: `--allow-code` on the command line, `allow_code=True` in Python. No consent is
needed for a file with this user's seal, nor for a config that the user passes to `train`.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:name


def named_code(config: TrainConfig) -> list[str]:
    """Return the settings that name code to import, each with its value."""
    named = [
        ("env_factory", config.env_factory),
        ("env_id", config.env_id if ":" in config.env_id else ""),
        *_references("env_kwargs", config.env_kwargs),
        *_references("wrappers", config.wrappers),
    ]
    return [f"{name}: {value}" for name, value in named if value]


def check_consent(config: TrainConfig, *, allowed: bool) -> None:
    """Raise `CheckpointError` if the settings may be a stranger's and name code, unless the user allows it."""
    named = named_code(config) if config.origin is not None and not allowed else []
    if named:
        raise CheckpointError(
            f"{config.origin} names code ({', '.join(named)}), which is not imported: it has no seal of yours, so "
            "another user may have written it. If you trust its author, give --allow-code (in Python allow_code=True)"
        )


def _references(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts in nested settings that could name code: Python imports modules of almost any name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _references(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _references(name, inner)
    elif isinstance(value, str) and (":" in value or name.endswith("entry_point")):
        yield name, value


# --- The function that makes the environments of a run ---------------------------------------------------------------


def reference_to(function: Callable[..., Any]) -> str:
    """Return the `module:name` of a function or class, also if it cannot be imported by that.

    A lambda, for example, is `module:<lambda>`, and an object that is called is `module:Class()`.
    """
    name = getattr(function, "__qualname__", None)
    owner: Any = function if name else type(function)
    return f"{owner.__module__}:{name or owner.__qualname__ + '()'}"


def import_reference(config: TrainConfig) -> Callable[..., Any]:
    """Import the function that `env_factory` names; raise `ConfigError` with what to do if that is impossible."""
    reference = config.env_factory
    module, _, name = reference.partition(":")
    instead = f"give the function from Python: {config.spec.class_name}.load(path, env_factory=...)"
    if module == "__main__" or not _REFERENCE.fullmatch(reference):
        raise ConfigError(
            f"env_factory: the environments of this run were made by {reference}, which no other process can import; "
            f"define it at the top level of a module, or {instead}"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"env_factory: {reference} cannot be imported: {error}; start in the folder of its module, or {instead}"
        ) from error
    if not callable(found):
        raise ConfigError(f"env_factory: {reference} must be a function or a class, found {type(found).__name__}")
    return found  # type: ignore[no-any-return]
