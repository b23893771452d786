"""Settings that build copies of an environment which the user gave as an instance."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import PassiveEnvChecker

from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.slot import Env
from rl_training.envs.wrapping import with_wrappers
from rl_training.errors import ConfigError


def settings_of(env: Env) -> dict[str, Any]:
    """Return `env_id`, `env_kwargs` and `wrappers` that build a copy of an instance; raise `ConfigError` if none do."""
    spec = env.spec
    if spec is None:
        raise ConfigError("it was not made by gymnasium.make")
    kwargs, added = dict(spec.kwargs), spec.additional_wrappers
    registered = gym.registry.get(spec.id)
    if registered is not None:
        added = added[len(registered.additional_wrappers) :]
        if registered.max_episode_steps != spec.max_episode_steps:
            kwargs["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    for wrapper in added:
        if wrapper.kwargs is None:
            raise ConfigError(
                f"its wrapper {wrapper.name} does not record its arguments (gymnasium.utils.RecordConstructorArgs)"
            )
    wrappers = [{"class": wrapper.entry_point, **(wrapper.kwargs or {})} for wrapper in added]
    for arguments in (kwargs, *wrappers):
        _check_writable(arguments)
    _check_copy(env, spec.id, kwargs, wrappers)
    return {"env_id": spec.id, "env_kwargs": kwargs, "wrappers": wrappers}


def settings_of_vector(vector: gym.vector.VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    """Return the settings that build copies of a vector environment; raise `ConfigError` if none do."""
    spec = vector.spec
    if spec is None:
        raise ConfigError("it was not made by gymnasium.make_vec")
    if vector.unwrapped is not vector or "wrappers" in spec.kwargs:
        raise ConfigError("it has wrappers, which config.yaml cannot hold")
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "num_envs"}
    vector_kwargs = kwargs.get("vector_kwargs", {})
    if "autoreset_mode" in vector_kwargs:
        mode = gym.vector.AutoresetMode(vector_kwargs["autoreset_mode"])
        kwargs["vector_kwargs"] = {**vector_kwargs, "autoreset_mode": mode.value}
    _check_writable(kwargs)
    return {"env_id": spec.id, "env_kwargs": kwargs, "num_envs": vector.num_envs, "execution_backend": "vector"}


def _check_writable(arguments: dict[str, Any]) -> None:
    try:
        if json.loads(json.dumps(arguments)) != arguments:
            raise TypeError("lists and dicts with text keys are the only containers")
    except TypeError as error:
        raise ConfigError(f"config.yaml cannot hold the arguments {arguments} ({error})") from None


def _check_copy(env: Env, env_id: str, env_kwargs: dict[str, Any], wrappers: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` if a copy made from these settings differs from the instance."""
    try:
        with contextlib.closing(with_wrappers(RegisteredEnv(env_id, env_kwargs), wrappers)()) as copied:
            layers, copied_layers = _layers(env), _layers(copied)
            spaces = (env.observation_space, env.action_space)
            copied_spaces = (copied.observation_space, copied.action_space)
    except Exception as error:
        raise ConfigError(f"gymnasium.make({env_id!r}) and its wrappers: {describe_alone(error)}") from error
    if layers != copied_layers:
        made, found = " of ".join(copied_layers), " of ".join(layers)
        raise ConfigError(f"gymnasium.make({env_id!r}) gives {made}, not {found}")
    if spaces != copied_spaces:
        raise ConfigError(f"gymnasium.make({env_id!r}) gives other spaces")


def _layers(env: Env) -> list[str]:
    """Return the names of the wrappers that matter and of the environment, outermost first."""
    names = []
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, PassiveEnvChecker):  # checks the environment's own answers; the library does that, too
            names.append(type(env).__qualname__)
        env = env.env
    return [*names, type(env).__qualname__]
