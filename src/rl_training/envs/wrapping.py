"""The setting `wrappers`: Gymnasium wrappers around the environments of a run, by class path and arguments."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rl_training.envs.slot import Env
from rl_training.errors import ConfigError

Wrapper = gym.Wrapper[Any, Any, Any, Any]


@dataclass(frozen=True)
class WrappedEnv:
    """Build one environment and put wrappers around it, the first one innermost."""

    factory: Callable[[], Env]
    wrappers: tuple[tuple[type[Wrapper], Mapping[str, Any]], ...]  # each with its arguments

    def __call__(self) -> Env:
        env = self.factory()
        for wrapper, arguments in self.wrappers:
            try:
                env = wrapper(env, **copy.deepcopy(dict(arguments)))
            except Exception as cause:
                env.close()
                raise ConfigError(
                    f"wrappers: {wrapper.__module__}:{wrapper.__qualname__} around {env} failed with "
                    f"{type(cause).__name__}: {cause}"
                ) from cause
        return env


def with_wrappers(factory: Callable[..., Env], entries: Sequence[str | Mapping[str, Any]]) -> Callable[..., Env]:
    """Return the factory with the wrappers of the setting `wrappers` around its environments.

    This imports the modules that the entries name: the caller has the user's consent.
    """
    if not entries:
        return factory
    return WrappedEnv(factory, tuple(_import_wrapper(*parse_wrapper(entry)) for entry in entries))


def parse_wrapper(entry: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the `module:Class` of an entry of `wrappers` and the arguments."""
    arguments = {"class": entry} if isinstance(entry, str) else dict(entry)
    reference = arguments.pop("class", None)
    if not isinstance(reference, str) or not all(reference.partition(":")):
        raise ConfigError(
            "wrappers: each entry must be a class, such as gymnasium.wrappers:FlattenObservation, or a group with "
            f"`class` and its arguments, got {entry!r}"
        )
    return reference, arguments


def _import_wrapper(reference: str, arguments: dict[str, Any]) -> tuple[type[Wrapper], dict[str, Any]]:
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"wrappers: {reference} cannot be imported: {error}") from error
    if not isinstance(found, type) or not issubclass(found, gym.Wrapper):
        raise ConfigError(f"wrappers: {reference} must be a subclass of gymnasium.Wrapper, found {found!r}")
    return found, arguments
