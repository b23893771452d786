"""Why an environment could not be built by its id, and what to do about it."""

import difflib
import importlib.util
import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rl_training.envs.atari import ATARI_ID
from rl_training.envs.atari import SETTINGS as ATARI_SETTINGS
from rl_training.envs.tensor_env import registered_class
from rl_training.errors import ConfigError, EnvError

# Python module -> the extra that installs it, and a pattern for the entry points of the envs that need it.
EXTRAS = {
    "Box2D": ("box2d", re.compile(r"^gymnasium\.envs\.box2d")),
    "mujoco": ("mujoco", re.compile(r"^gymnasium\.envs\.mujoco")),
    "ale_py": ("atari", re.compile(r"^ale_py")),
    "minatar": ("minatar", re.compile(r"^rl_training\.envs\.minatar")),
}
_OWN_ERRORS = (gym.error.DependencyNotInstalled, gym.error.DeprecatedEnv)  # that say themselves what to do


def explain_failure(env_id: str, env_kwargs: Mapping[str, Any], cause: Exception) -> NoReturn:
    """Raise an error that names the setting and the remedy, from what `gym.make` raised."""
    name = env_id.rpartition(":")[2]
    spec = gym.registry.get(name)
    extra = _missing_extra(name, spec, cause)
    if extra is not None:
        raise EnvError(
            f"env_id {env_id!r} needs packages that are not installed: pip install 'rl-training[{extra}]' "
            f"({type(cause).__name__}: {cause})"
        ) from cause
    if spec is None and isinstance(cause, gym.error.Error) and not isinstance(cause, _OWN_ERRORS):
        raise ConfigError(_unknown_env(env_id)) from cause
    if isinstance(cause, ModuleNotFoundError):
        raise EnvError(
            f"env_id {env_id!r} needs a Python module that was not found: {cause} (current folder: {Path.cwd()})"
        ) from cause
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(cause))
    if unexpected and unexpected[1] in env_kwargs:
        raise ConfigError(
            f"env_kwargs: {env_id} has no setting {unexpected[1]!r}{_suggest_setting(spec, unexpected[1])}"
        ) from cause
    given = f" with env_kwargs {dict(env_kwargs)}" if env_kwargs else ""
    where = traceback.extract_tb(cause.__traceback__)[-1]
    why = str(cause) or f"{where.line} (in {where.filename}, line {where.lineno})"  # an assertion has no text
    raise EnvError(f"env_id {env_id!r}{given} could not be built: {type(cause).__name__}: {why}") from cause


def _unknown_env(env_id: str) -> str:
    """Return a message that no such environment is registered, with what was probably meant."""
    module, _, name = env_id.rpartition(":")
    known = {registered.rpartition("/")[2]: registered for registered in gym.registry} | {x: x for x in gym.registry}
    close = difflib.get_close_matches(name, known, n=1)
    suggestion = f"; did you mean {known[close[0]]!r}?" if close else ";"
    if module:
        return f"env_id: the module {module!r} was imported, but registers no {name!r}{suggestion}".rstrip(";")
    return (
        f"env_id: unknown environment {name!r}{suggestion} 'module:{name}' first imports the module that registers it"
    )


def _missing_extra(name: str, spec: EnvSpec | None, cause: Exception) -> str | None:
    """Return the extra that is not installed and explains `cause`, if there is one."""
    entry_point = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    for module, (extra, pattern) in EXTRAS.items():
        needed = pattern.search(entry_point) or (module == "ale_py" and ATARI_ID.search(name))
        if needed and (isinstance(cause, ModuleNotFoundError) or importlib.util.find_spec(module) is None):
            return extra
    return None


def _suggest_setting(spec: EnvSpec | None, setting: str) -> str:
    if spec is None or spec.entry_point is None:
        return ""
    entry_point = spec.entry_point
    creator: Callable[..., Any] = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if "tensor_env" in spec.kwargs:
        creator = registered_class(spec.kwargs["tensor_env"])
    known = [name for name in inspect.signature(creator).parameters if name not in ("self", "args", "kwargs")]
    known += ATARI_SETTINGS if ATARI_ID.search(spec.id) else ["pixels"]
    close = difflib.get_close_matches(setting, [*known, "max_episode_steps"], n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(known)}"
