"""Build environments from an env id: `gym.make` with errors that say what to do, and the backends.

Importing this module registers the tiny environments, the tasks that need memory, MinAtar's games and the tensor
environments with gymnasium.
"""

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from rl_training.envs.array_space import checked_result
from rl_training.envs.atari import ATARI_ID, make_atari
from rl_training.envs.build_failures import explain_failure
from rl_training.envs.dict_obs import sample_action
from rl_training.envs.envpool_envs import EnvPoolEnvs, reject
from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.gymnasium_vector import make_vector_envs
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.local_workers import LocalWorkers, WorkerStart
from rl_training.envs.memory_tasks import register_memory_tasks
from rl_training.envs.minatar import MINATAR_IDS, register_minatar_envs
from rl_training.envs.pixels import PixelSettings, make_pixels
from rl_training.envs.ray_workers import RayWorkers, check_ray
from rl_training.envs.slot import Env, EnvSlot, check_env, close_env
from rl_training.envs.tensor_env import TENSOR_ENVS, register_tensor_envs, tensor_env_of
from rl_training.envs.vector import EnvGroup, SyncEnvs
from rl_training.envs.vector_factory import OwnVectorEnv, RegisteredVectorEnv, VectorFactory
from rl_training.envs.vector_row import AnyVectorEnv
from rl_training.envs.workers import AsyncEnvs
from rl_training.envs.wrapping import WrappedEnv, with_wrappers
from rl_training.errors import ConfigError, EnvError, SpaceError, UserError

EnvFactory = Callable[..., Env]  # called without arguments; the user's own, with `env_kwargs`
GivenFactory = Callable[..., Env | AnyVectorEnv]  # the user's own; a vector environment if the backend is `vector`
Backend = Literal["local_sync", "local_async", "envpool", "ray", "tensor", "vector"]

TINY_ENVS = {
    "rl_training/Chain-v0": ("tiny:Chain", 100),
    "rl_training/Identity-v0": ("tiny:Identity", None),
    "rl_training/TwoArmedBandit-v0": ("tiny:TwoArmedBandit", None),
    "rl_training/Lottery-v0": ("tiny:Lottery", None),
    "rl_training/TinyImage-v0": ("tiny:TinyImage", None),
    "rl_training/Catch-v0": ("tiny:Catch", None),
    "rl_training/ContinuousCatch-v0": ("tiny:ContinuousCatch", None),
    "rl_training/TinyDict-v0": ("tiny:TinyDict", None),
    "rl_training/Masked-v0": ("tiny:Masked", None),
    "rl_training/Misbehaving-v0": ("tiny:Misbehaving", None),
    "rl_training/BitFlip-v0": ("goal_tasks:BitFlip", None),
    "rl_training/PointReach-v0": ("goal_tasks:PointReach", None),
}


def register_tiny_envs() -> None:
    """Register the tiny environments with gymnasium; a second call changes nothing."""
    for env_id, (entry_point, max_episode_steps) in TINY_ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, f"rl_training.envs.{entry_point}", max_episode_steps=max_episode_steps)


register_tiny_envs()
register_memory_tasks()
register_minatar_envs()
register_tensor_envs()


@dataclass(frozen=True)
class RegisteredEnv:
    """Build one environment by its id; a class and not a closure, so that it can be sent to worker processes.

    Atari games are preprocessed; others return pixels if `env_kwargs` ask for it.
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Env:
        # `make_env_factory` has checked the first copy; gymnasium's checker would cost time on every step.
        kwargs = {"disable_env_checker": True, **copy.deepcopy(dict(self.env_kwargs))}
        if ATARI_ID.search(_env_name(self.env_id)):
            _register_atari()
            return make_atari(self.env_id, kwargs)
        # With the id, gymnasium would warn that v0 is outdated; MinAtar's v1 is not newer, it only has fewer actions.
        env_id = gym.registry[self.env_id] if self.env_id in {**MINATAR_IDS, **TENSOR_ENVS} else self.env_id
        pixels = PixelSettings.parse(kwargs.pop("pixels", False))
        if pixels is not None:
            return make_pixels(env_id, kwargs, pixels)
        return gym.make(env_id, **kwargs)


@dataclass(frozen=True)
class OwnEnv:
    """Build one environment by the user's function, called with `env_kwargs`."""

    function: GivenFactory
    env_kwargs: Mapping[str, Any]

    def __call__(self) -> Env:
        return cast(Env, self.function(**copy.deepcopy(dict(self.env_kwargs))))  # `check_env` looks at it


@dataclass(frozen=True)
class LimitedEnv:
    """Build one environment by a function of the user and truncate its episodes after `max_episode_steps`."""

    function: EnvFactory
    max_episode_steps: int

    def __call__(self) -> Env:
        return TimeLimit(self.function(), self.max_episode_steps)


def with_env_kwargs(function: GivenFactory, env_kwargs: Mapping[str, Any]) -> EnvFactory:
    """Return the user's function with its arguments; raise `ConfigError` for arguments that it does not take."""
    if not env_kwargs:
        return cast(EnvFactory, function)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return OwnEnv(function, env_kwargs)
    try:
        signature.bind(**env_kwargs)
    except TypeError as problem:
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"env_kwargs: {name} cannot be called with {dict(env_kwargs)} ({problem}); "
            "give only arguments that it takes"
        ) from None
    return OwnEnv(function, env_kwargs)


def modules_of(factory: GivenFactory | RegisteredVectorEnv | OwnVectorEnv) -> list[str]:
    """Return the modules that the environments and wrappers of a factory come from."""
    if isinstance(factory, WrappedEnv):
        return [*modules_of(factory.factory), *(wrapper.__module__ for wrapper, _ in factory.wrappers)]
    if isinstance(factory, OwnEnv | LimitedEnv | OwnVectorEnv):
        return modules_of(factory.function)
    if isinstance(factory, VectorFactory):
        return modules_of(factory.make)
    if not isinstance(factory, RegisteredEnv | RegisteredVectorEnv):
        return [getattr(factory, "__module__", None) or type(factory).__module__]
    spec = gym.registry[_env_name(factory.env_id)]
    entry_point: Any = spec.entry_point or spec.vector_entry_point  # an id may have a vector class alone
    if isinstance(entry_point, str):
        return [entry_point.partition(":")[0]]
    return [getattr(entry_point, "func", entry_point).__module__]  # the function of a partial


def make_env_factory(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Mapping[str, Any]] = (),
) -> EnvFactory:
    """Check that the environment can be built, reset and stepped; return the function that builds it.

    `env_id` may be `module:EnvId`: the module is imported first. `env_kwargs` go to `gym.make`, which also
    accepts `max_episode_steps`. `wrappers` are those of the config.
    """
    if ATARI_ID.search(_env_name(env_id)) or _env_name(env_id) not in gym.registry:
        _register_atari()
    kwargs = dict(env_kwargs or {})
    return _tried(with_wrappers(RegisteredEnv(env_id, kwargs), wrappers), env_id, kwargs)


def make_vector_factory(
    env_id: str, env_kwargs: Mapping[str, Any], function: Callable[..., Any] | None = None, *, check: bool = True
) -> VectorFactory:
    """Return what builds the vector environments of a run: by the user's function, or `gymnasium.make_vec(env_id)`.

    `check`: build one with a single environment by its id first, and raise if it cannot be reset and stepped.
    """
    if function is not None:
        return VectorFactory(OwnVectorEnv(function, env_kwargs))
    if ATARI_ID.search(_env_name(env_id)) or "pixels" in env_kwargs:
        raise ConfigError(
            f"execution_backend: vector does not preprocess images, but env_id {env_id!r} needs it; use local_sync, "
            "local_async or envpool, or a function that makes the vector environment"
        )
    factory = VectorFactory(RegisteredVectorEnv(env_id, env_kwargs))
    if check:
        _tried(factory, env_id, env_kwargs)
    return factory


def _tried(factory: EnvFactory, env_id: str, kwargs: Mapping[str, Any]) -> EnvFactory:
    """Build an environment, reset and step it once; raise with what to do if that fails."""
    try:
        with ENV_CALLS:
            env = check_env(factory())
    except SpaceError as cause:
        raise SpaceError(f"env_id {env_id!r}: {cause}") from None
    except UserError:
        raise
    except Exception as cause:
        explain_failure(env_id, kwargs, cause)
    try:
        _try_env(env_id, env)
    finally:
        close_env(env)
    return factory


def make_envs(
    factory: EnvFactory,
    num_envs: int = 1,
    *,
    backend: Backend = "local_sync",
    worker_timeout: float = 60.0,
    worker_start: WorkerStart = "auto",
    crash_dir: Path | None = None,
) -> EnvGroup:
    """Build a group of environments in this process, in one process each, in EnvPool's threads, or as one vector.

    `worker_timeout`: seconds after which a worker that does not reply counts as hung. `worker_start`: how worker
    processes start. `crash_dir`: where `env_<index>.txt` is written when an environment crashes.
    """
    if backend == "local_sync":
        return SyncEnvs(factory, num_envs, crash_dir=crash_dir)
    if backend in ("local_async", "ray"):
        return make_worker_envs(
            factory,
            num_envs,
            on_ray=backend == "ray",
            worker_timeout=worker_timeout,
            worker_start=worker_start,
            crash_dir=crash_dir,
        )
    if backend == "envpool":
        if isinstance(factory, WrappedEnv):
            reject("it cannot step environments with wrappers")
        if not isinstance(factory, RegisteredEnv):
            reject(f"it cannot step environments built by your own function {getattr(factory, '__name__', factory)}")
        return EnvPoolEnvs(factory, num_envs, crash_dir=crash_dir)
    if backend == "vector":
        assert isinstance(factory, VectorFactory)
        return make_vector_envs(factory, num_envs, crash_dir=crash_dir)
    raise ConfigError(f"execution_backend must be local_sync, local_async, envpool, ray or vector, got {backend!r}")


def make_worker_envs(
    factory: EnvFactory,
    num_envs: int,
    *,
    on_ray: bool = False,
    worker_timeout: float = 60.0,
    worker_start: WorkerStart = "auto",
    crash_dir: Path | None = None,
) -> AsyncEnvs:
    """Build environments in one process each, on this machine or on those of a Ray cluster; as for `make_envs`."""
    return AsyncEnvs(
        factory,
        num_envs,
        worker_timeout=worker_timeout,
        worker_start=worker_start,
        crash_dir=crash_dir,
        make_workers=RayWorkers if on_ray else LocalWorkers,
    )


def check_backend(factory: EnvFactory, backend: Backend, num_envs: int = 1) -> None:
    """Raise `ConfigError` for an environment that the backend cannot step, or if its package is missing."""
    if backend == "envpool":
        make_envs(factory, backend=backend).close()  # no pool is created before the first reset
    if backend == "ray":
        check_ray(factory)
    if backend == "tensor":
        tensor_env_of(factory)
    if backend == "vector" and num_envs > 1:
        make_envs(factory, num_envs, backend=backend).close()


def _try_env(env_id: str, env: Env) -> None:
    """Reset and step the first copy once, so that an env of another API is named and rejected before training."""
    try:
        slot = EnvSlot(env)
        with ENV_CALLS:
            _, info = slot.reset(seed=0)
            ENV_CALLS.next()
            result = env.step(sample_action(env.action_space, info))
        slot.checked_step(*checked_result(result, "step"))
    except SpaceError as cause:
        raise SpaceError(f"env_id {env_id!r}: {cause}") from None
    except Exception as cause:
        raise EnvError(f"env_id {env_id!r}: the environment {describe_alone(cause)}") from cause


def _env_name(env_id: str) -> str:
    return env_id.rpartition(":")[2]


def _register_atari() -> None:
    if importlib.util.find_spec("ale_py") is not None:
        gym.register_envs(importlib.import_module("ale_py"))
