"""One environment whose every answer is checked against what it declares."""

import copy
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.array_space import same_kind
from rl_training.envs.dict_obs import MASK_KEY, sample_action
from rl_training.envs.episode_tracker import describe_alone
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import Env, close_env
from rl_training.errors import EnvError
from rl_training.probing.findings import BrokenEnvError, Finding

Step = tuple[np.ndarray, float, bool, bool]


class WatchedEnv:
    """Calls an environment; raises `BrokenEnvError` for what cannot be played, and keeps a finding for the rest."""

    def __init__(self, factory: Callable[[], Env]) -> None:
        self.findings: dict[str, Finding] = {}
        self.masked = False
        with ENV_CALLS:
            self.env = _called("make_env", factory)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self._info: Mapping[str, Any] = {}
        self._returned: Any = None  # the last observation, as it was returned, and a copy of its values
        self._kept: np.ndarray = np.zeros(0)

    def close(self) -> None:
        close_env(self.env)

    @property
    def time_limit(self) -> int | None:
        spec = self.env.spec
        limits = [layer._max_episode_steps for layer in _layers(self.env) if isinstance(layer, gym.wrappers.TimeLimit)]
        declared = spec.max_episode_steps if spec is not None else None
        return min(limits, default=declared)

    def sample_action(self) -> Any:
        return sample_action(self.action_space, dict(self._info))

    def reset(self, seed: int | None = None) -> np.ndarray:
        with ENV_CALLS:
            answer: Any = _called("reset", self.env.reset, seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BrokenEnvError("api", f"reset must return (observation, info), but returned {_shape_of(answer)}")
        self._returned = None
        return self._checked(*answer, "reset")

    def step(self, action: Any) -> Step:
        given = copy.deepcopy(action)
        with ENV_CALLS:
            answer: Any = _called("step", self.env.step, given)
        if not isinstance(answer, tuple) or len(answer) != 5:
            wanted = "(observation, reward, terminated, truncated, info)"
            raise BrokenEnvError("api", f"step must return {wanted}, but returned {_shape_of(answer)}")
        if not np.array_equal(given, action):
            self._note("fix", "action_changed", "step changes the array of the action in place; work on a copy")
        obs, reward, terminated, truncated, info = answer
        values = self._checked(obs, info, "step")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                raise BrokenEnvError("api", f"step must return a bool for {name}, but returned {flag!r}")
        return values, _checked_reward(reward), bool(terminated), bool(truncated)

    def _checked(self, obs: Any, info: Any, call: str) -> np.ndarray:
        if not isinstance(info, dict):
            raise BrokenEnvError("api", f"{call} must return a dict as info, but returned {type(info).__name__}")
        self._info, self.masked = info, self.masked or MASK_KEY in info
        if self._returned is not None and not np.array_equal(flat(self._returned), self._kept):
            text = "step changed the observation that it had returned before; return a new array, or a copy"
            self._note("fix", "observation_aliased", text)
        self._check_observation(self.observation_space, obs, "the observation")
        self._returned, self._kept = obs, flat(obs)
        return self._kept

    def _check_observation(self, space: Any, obs: Any, name: str) -> None:
        if isinstance(space, spaces.Dict | spaces.Tuple):
            parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            for key, part in parts:
                try:
                    inner = obs[key]
                except (KeyError, IndexError, TypeError):
                    text = f"{name} has no part {key!r}, which its space declares"
                    raise BrokenEnvError("observation_shape", text) from None
                self._check_observation(part, inner, f"{name}'s part {key!r}")
            return
        found = np.asarray(obs)
        if space.shape is not None and found.shape != space.shape:
            text = f"{name} has the shape {found.shape}, but its space declares {space.shape}"
            raise BrokenEnvError("observation_shape", text)
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise BrokenEnvError("observation_not_finite", f"{name} holds NaN or infinity: {_short(found)}")
        if space.dtype is not None and not same_kind(found.dtype, np.dtype(space.dtype)):
            text = f"{name} is of {found.dtype}, but its space declares {space.dtype}"
            self._note("fix", "observation_dtype", text)
        elif not space.contains(found.astype(space.dtype) if found.shape else space.dtype.type(obs)):
            text = f"{name} lies outside of its space {space}: {_short(found)}"
            self._note("fix", "observation_out_of_bounds", text)

    def _note(self, verdict: Any, name: str, text: str) -> None:
        self.findings.setdefault(name, Finding(verdict, name, text))


def flat(obs: Any) -> np.ndarray:
    """Return all numbers of an observation, also of a Dict or Tuple, as a copy, (values,)."""
    if isinstance(obs, Mapping):
        obs = tuple(obs[key] for key in sorted(obs))
    if isinstance(obs, tuple):
        return np.concatenate([flat(part) for part in obs])
    return np.array(obs, np.float32 if np.asarray(obs).dtype.kind == "f" else None).reshape(-1)


def _called(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as cause:
        given = ", ".join([*map(str, args), *(f"{key}={value}" for key, value in kwargs.items())])
        hung = isinstance(cause, EnvError) and "gave no answer" in str(cause)  # from the watch over calls
        text = f"{name}({given}) {describe_alone(cause)}"
        raise BrokenEnvError("hangs" if hung else "raises", text) from cause


def _checked_reward(reward: Any) -> float:
    if not isinstance(reward, numbers.Real | np.bool_):
        raise BrokenEnvError("reward_type", f"the reward must be a number, but is {_shape_of(reward)}")
    if not np.isfinite(float(reward)):
        raise BrokenEnvError("reward_not_finite", f"the reward is {reward}")
    return float(reward)


def _layers(env: Any) -> list[Any]:
    return [env, *(_layers(env.env) if isinstance(env, gym.Wrapper) else [])]


def _shape_of(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"an array of the shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _short(values: np.ndarray) -> str:
    return np.array2string(values.reshape(-1), threshold=8, precision=4)
