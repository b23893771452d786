"""What builds vector environments of Gymnasium: by their id, or by the user's function."""

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.envs.slot import Env
from rl_training.envs.vector_row import AnyVectorEnv, VectorRow
from rl_training.errors import ConfigError

SYNC_ARGUMENTS = ("copy", "observation_mode", "autoreset_mode")  # those of SyncVectorEnv; AsyncVectorEnv has more


@dataclass(frozen=True)
class RegisteredVectorEnv:
    """Build a vector environment by its id with `gymnasium.make_vec`, without automatic resets where it can choose."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # `vectorization_mode` and `vector_kwargs` among them

    def __call__(self, num_envs: int) -> AnyVectorEnv:
        kwargs = copy.deepcopy(dict(self.env_kwargs))
        mode, vector_kwargs = kwargs.pop("vectorization_mode", None), kwargs.pop("vector_kwargs", None) or {}
        if mode is None:
            module, _, name = self.env_id.rpartition(":")
            if module:  # `gym.make_vec` imports it, `gym.spec` does not
                importlib.import_module(module)
            has_own = gym.spec(name).vector_entry_point is not None
            mode = "vector_entry_point" if has_own else "sync"
        if mode != "vector_entry_point":
            kwargs.setdefault("disable_env_checker", True)
            vector_kwargs.setdefault("autoreset_mode", AutoresetMode.DISABLED)
        if mode == "async" and num_envs == 1:  # a process would gain nothing, and a worker may start none
            mode = "sync"
            vector_kwargs = {name: value for name, value in vector_kwargs.items() if name in SYNC_ARGUMENTS}
        return gym.make_vec(
            self.env_id, num_envs=num_envs, vectorization_mode=mode, vector_kwargs=vector_kwargs, **kwargs
        )


@dataclass(frozen=True)
class OwnVectorEnv:
    """Build a vector environment by the user's function, called with `num_envs` and `env_kwargs`."""

    function: Callable[..., Any]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(num_envs=1, **self.env_kwargs)
        except TypeError as problem:
            raise ConfigError(
                f"execution_backend: vector calls {self._name} with num_envs and the env_kwargs "
                f"{dict(self.env_kwargs)}, which it cannot be called with ({problem})"
            ) from None
        except ValueError:
            pass  # some functions written in C have no signature

    def __call__(self, num_envs: int) -> AnyVectorEnv:
        found = self.function(num_envs=num_envs, **copy.deepcopy(dict(self.env_kwargs)))
        if isinstance(found, VectorEnv) and found.num_envs == num_envs:
            return found
        what = f"{found.num_envs} environments" if isinstance(found, VectorEnv) else f"{type(found).__name__} {found!r}"
        close = getattr(found, "close", None)
        if callable(close):
            close()
        raise ConfigError(
            f"execution_backend: vector needs a gymnasium.vector.VectorEnv of num_envs={num_envs} environments, but "
            f"{self._name} returned {what}"
        )

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True)
class VectorFactory:
    """Build vector environments of any size; as a function, one environment for everything but training."""

    make: RegisteredVectorEnv | OwnVectorEnv

    @property
    def env_id(self) -> str:
        return self.make.env_id if isinstance(self.make, RegisteredVectorEnv) else ""

    def __call__(self) -> Env:
        return VectorRow(self.make(1))
