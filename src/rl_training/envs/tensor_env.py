"""Environments whose state is a dict of tensors: all of them step in one call, on any device.

A `TensorEnv` is the rules of one environment as pure functions over rows. `TensorEnvs` adds what every environment
needs: episodes, time limits, resets that keep the true final observation, and their statistics. `TensorGymEnv` offers
one row as a Gymnasium environment, for the ordinary collector, evaluations and recordings.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import TimeLimit
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import State
from rl_training.envs.slot import STATELESS_WRAPPERS, Env, EnvState
from rl_training.errors import ConfigError

_ENV = "env."  # start of the names of the environment's own entries in the state of `TensorEnvs`
_SEEDS = 2**63

# Env id -> where the class is, the time limit, and arguments of the class.
TENSOR_ENVS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "tensor/CartPole-v1": ("tensor_classic:CartPole", 500, {}),
    "tensor/Pendulum-v1": ("tensor_classic:Pendulum", 200, {}),
    "tensor/Acrobot-v1": ("tensor_classic:Acrobot", 500, {}),
    "tensor/MountainCar-v0": ("tensor_classic:MountainCar", 200, {}),
    "tensor/MountainCarContinuous-v0": ("tensor_classic:MountainCarContinuous", 999, {}),
    "tensor/Catch-v0": ("tensor_catch:TensorCatch", None, {}),
    **{
        f"tensor/MinAtar-{game}-v{int(minimal)}": (f"{module}:{game}", limit, {"minimal_actions": minimal})
        for module, game, limit in (
            ("tensor_minatar", "Asterix", 10_000),
            ("tensor_minatar", "Breakout", 10_000),
            ("tensor_minatar", "Freeway", 2_501),
            ("tensor_seaquest", "Seaquest", 10_000),
            ("tensor_minatar", "SpaceInvaders", 10_000),
        )
        for minimal in (False, True)
    },
}
_registered: dict[str, Callable[..., "TensorEnv"] | str] = {}  # by env id: the class, or its `module:Class`
_limited_by_class: set[str] = set()  # env ids that were registered without a time limit of their own


@runtime_checkable
class TensorEnv(Protocol):
    """The rules of an environment over rows; each tensor has the rows as its first axis.

    Pure functions: they change nothing, wait for no value, and return fixed shapes and dtypes. Random numbers come from
    `keys` alone (`check_tensor_env` tests all this). `max_episode_steps` is a time limit that `TensorEnvs` counts.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    max_episode_steps: int | None

    def first(self, keys: Keys) -> State:
        """Return the state at the start of an episode for each row."""
        ...

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        """Return the next state, rewards (float), and whether the episode has terminated (bool), (rows,) each."""
        ...

    def observe(self, state: State) -> Tensor:
        """Return the observations, (rows, *shape), in the dtype of the observation space."""
        ...


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of every environment, (envs, ...) each."""

    rewards: Tensor  # float32
    terminated: Tensor
    truncated: Tensor  # by the time limit, without a termination
    ended: Tensor  # either of the two
    final_obs: Tensor  # the true successor, also where an episode ended
    obs: Tensor  # what to act on next: where an episode ended, the first observation of the next one
    episode_return: Tensor  # so far, this step included
    episode_length: Tensor


class TensorEnvs:
    """Environments that step together; their state is one dict of tensors, and this dict is the checkpoint.

    An episode is a function of the seed, its environment, its number and the actions. A row does not depend on how many
    others there are.
    """

    def __init__(self, env: TensorEnv, num_envs: int, seed: int, *, device: torch.device | str = "cpu") -> None:
        """`seed`: 63 bits, such as those of a random stream of the run."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.env, self.num_envs, self.device, self._seed = env, num_envs, torch.device(device), seed % _SEEDS

    def start(self) -> State:
        """Return the state at the start of episode 0 of every environment."""
        count = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        state = {
            "seed": torch.full_like(count, self._seed),
            "index": torch.arange(self.num_envs, device=self.device),
            "episode": count,
            "elapsed": count.clone(),
            "episode_return": torch.zeros(self.num_envs, device=self.device),
        }
        return state | _named(self.env.first(_keys(state)))

    def observe(self, state: State) -> Tensor:
        """Return what to act on, (envs, *shape)."""
        return self.env.observe(_own(state))

    def keys(self, state: State) -> Keys:
        """Return who asks for random numbers before the next step, such as those of actions."""
        return _keys(state)

    def step(self, state: State, actions: Tensor) -> tuple[State, Transition]:
        """Step every environment; those whose episode ends start the next one."""
        elapsed = state["elapsed"] + 1
        successor, rewards, terminated = self.env.step(_own(state), actions, _keys(state | {"elapsed": elapsed}))
        rewards = rewards.float()
        truncated = torch.zeros_like(terminated)
        if self.env.max_episode_steps is not None:
            truncated = (elapsed >= self.env.max_episode_steps) & ~terminated
        ended = terminated | truncated
        episode_return = state["episode_return"] + rewards
        next_state = {
            **state,
            "episode": state["episode"] + ended,
            "elapsed": torch.where(ended, 0, elapsed),
            "episode_return": torch.where(ended, 0.0, episode_return),
        }
        # Every row starts an episode, and those that need it are selected: no shape depends on a value.
        first = self.env.first(_keys(next_state | {"elapsed": torch.zeros_like(elapsed)}))
        state_after = {name: _select(ended, first[name], value) for name, value in successor.items()}
        transition = Transition(
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            ended=ended,
            final_obs=self.env.observe(successor),
            obs=self.env.observe(state_after),
            episode_return=episode_return,
            episode_length=elapsed,
        )
        return next_state | _named(state_after), transition


def _keys(state: Mapping[str, Tensor]) -> Keys:
    return Keys(state["seed"], state["index"], state["episode"], state["elapsed"])


def _named(own: State) -> State:
    return {_ENV + name: value for name, value in own.items()}


def _own(state: State) -> State:
    return {name.removeprefix(_ENV): value for name, value in state.items() if name.startswith(_ENV)}


def _select(rows: Tensor, value: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *(1,) * (value.ndim - 1)), value, other)


def to_env_tensors(space: gym.Space[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the function from the library's actions to those of the environment (`to_env_actions`), for tensors."""
    if not isinstance(space, gym.spaces.Box):
        start = torch.as_tensor(getattr(space, "start", 0), device=device)
        return (lambda actions: actions + start) if np.any(getattr(space, "start", 0)) else (lambda actions: actions)
    low, high = (torch.as_tensor(bound.astype(np.float32), device=device) for bound in (space.low, space.high))
    half = (high - low) / 2.0
    return lambda actions: torch.minimum(low + (actions.clamp(-1.0, 1.0) + 1.0) * half, high)


class TensorGymEnv(gym.Env[np.ndarray, Any]):
    """One row of a tensor environment on the CPU, without its time limit (`as_gym_env` adds it).

    `reset(seed)` and the same actions repeat an episode; `get_state` and `set_state` restore one.
    """

    def __init__(self, env: TensorEnv) -> None:
        self.tensor_env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._seed = self._elapsed = torch.zeros(1, dtype=torch.int64)
        self._state: State = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(_SEEDS)) if seed is None else seed
        self._seed = torch.tensor([number])
        self._elapsed = torch.zeros_like(self._seed)
        with torch.inference_mode():
            self._state = self.tensor_env.first(self._keys())
            return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._elapsed = self._elapsed + 1
        actions = torch.from_numpy(np.asarray(action)[None])
        with torch.inference_mode():
            self._state, rewards, terminated = self.tensor_env.step(self._state, actions, self._keys())
            return self._observe(), float(rewards.float()), bool(terminated), False, {}

    def get_state(self) -> EnvState:
        state = self._state | {"seed": self._seed, "elapsed": self._elapsed}
        return {name: value.numpy().copy() for name, value in state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in state.items()}
        self._seed, self._elapsed = tensors.pop("seed"), tensors.pop("elapsed")
        self._state = tensors
        return self._observe()

    def _keys(self) -> Keys:
        return episode_keys(self._seed, self._elapsed)

    def _observe(self) -> np.ndarray:
        obs: np.ndarray = self.tensor_env.observe(self._state)[0].numpy()
        return obs


def episode_keys(seeds: Tensor, elapsed: Tensor) -> Keys:
    """Return the keys of episodes that their seeds alone name, after so many steps; (rows,) each."""
    zeros = torch.zeros_like(seeds)
    return Keys(seeds, zeros, zeros, elapsed)


def as_gym_env(env: TensorEnv) -> Env:
    """Return one row of a tensor environment as a Gymnasium environment, with its time limit."""
    single = TensorGymEnv(env)
    return single if env.max_episode_steps is None else TimeLimit(single, env.max_episode_steps)


def tensor_env_of(factory: Callable[[], Env]) -> TensorEnv:
    """Return the tensor environment behind a factory, with the time limit of its wrappers; raise `ConfigError`."""
    return tensor_env_in(factory())


def tensor_env_in(env: Env) -> TensorEnv:
    """Return the tensor environment whose row this is, with the time limit of its wrappers; raise `ConfigError`."""
    limits, layers = [], []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        if not isinstance(env, STATELESS_WRAPPERS):
            layers.append(type(env).__name__)
        env = env.env
    what = "execution_backend: tensor needs a tensor environment (docs/tensor_environments.md)"
    if not isinstance(env, TensorGymEnv):
        raise ConfigError(f"{what}, but this is {type(env).__name__}; ids that begin with `tensor/` are some")
    if layers:
        raise ConfigError(f"{what} without wrappers, but this one has {', '.join(layers)}")
    env.tensor_env.max_episode_steps = min(limits, default=None)
    return env.tensor_env


def make_tensor_gym_env(tensor_env: str, **env_kwargs: Any) -> Env:
    """Build one row of the tensor environment that is registered as `tensor_env`, with these arguments.

    `gym.make` adds the time limit of the registration; if it has none, that of the environment is added here.
    Nothing else can be built: `env_kwargs` of a run folder may come from a stranger and must not name code.
    """
    env, limit = registered_class(tensor_env)(**env_kwargs), gym.registry[tensor_env].max_episode_steps
    if limit is None:
        return as_gym_env(env)
    if tensor_env in _limited_by_class and env.max_episode_steps != limit:
        raise ConfigError(
            f"max_episode_steps of {tensor_env} is {env.max_episode_steps}, but its class has {limit}, which gymnasium "
            "applies; pass register_tensor_env the one to use, or remove that of the class"
        )
    return TensorGymEnv(env)


def registered_class(env_id: str) -> Callable[..., TensorEnv]:
    """Return what builds the tensor environment that is registered as `env_id`; raise `ConfigError` if none is."""
    if env_id not in _registered:
        raise ConfigError(f"env_kwargs.tensor_env must not be set: {env_id!r} is no registered tensor environment")
    build = _registered[env_id]
    if isinstance(build, str):
        module, _, name = build.partition(":")
        build = getattr(importlib.import_module(module), name)
    assert callable(build)
    return build


def register_tensor_env(
    env_id: str,
    tensor_env: Callable[..., TensorEnv] | str,
    *,
    max_episode_steps: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Register a tensor environment with Gymnasium, such as `register_tensor_env("mine/Walk-v0", Walk)`.

    `tensor_env`: the class, or its `module:Class`, which is imported when it is needed. `max_episode_steps`: the
    default is that of the class or, if it states none, of each environment, which `gym.make` can only shorten.
    `env_kwargs`: arguments of the class, which those of a run may change. A second call with the same id changes
    nothing.
    """
    if env_id not in gym.registry:
        if max_episode_steps is None:
            max_episode_steps = getattr(tensor_env, "max_episode_steps", None)
            _limited_by_class.add(env_id)
        _registered[env_id] = tensor_env
        make = f"{__name__}:{make_tensor_gym_env.__name__}"
        kwargs = {"tensor_env": env_id, **(env_kwargs or {})}
        gym.register(env_id, make, max_episode_steps=max_episode_steps, kwargs=kwargs)


def register_tensor_envs() -> None:
    """Register the tensor environments of the library."""
    for env_id, (class_name, limit, kwargs) in TENSOR_ENVS.items():
        register_tensor_env(env_id, f"rl_training.envs.{class_name}", max_episode_steps=limit, env_kwargs=kwargs)
