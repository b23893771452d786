"""One environment of a group: its spaces as arrays, the checks on what it returns, its replay and its own state."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation, OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.packed_space import Composite
from rl_training.envs.array_space import FLOAT32_MAX, ArraySpace, checked_flag, checked_result, checked_reward
from rl_training.envs.dict_obs import PackedDictObs
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.errors import EnvError, SpaceError

log = logging.getLogger("rl_training")

Env = gym.Env[Any, Any]
EnvState = dict[str, np.ndarray]

# Keys added to the state that an env returns: the counts of its time limits, and the number of steps of its episode.
ELAPSED_STEPS_KEY = "rl_training/elapsed_steps"
NUM_STEPS_KEY = "rl_training/num_steps"

# Wrappers that keep nothing of an episode except what `EnvSlot` restores itself.
STATELESS_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker, PackedDictObs)


class ReplayDivergedError(EnvError):
    """A replayed episode ended before its last action: the environment is not repeatable."""


def check_env(env: object) -> Env:
    """Raise for what a factory must not return; pack observations of several parts; recognise stacked frames."""
    if isinstance(env, gym.vector.VectorEnv):
        raise EnvError(
            f"came from a factory that returned the vector environment {env!r}; it must return a single "
            "environment, and num_envs says how many there are, or set execution_backend: vector and let it take "
            "num_envs,"
        )
    if not isinstance(env, gym.Env):
        raise EnvError(f"came from a factory that returned {type(env).__name__} {env!r}, not a gymnasium.Env,")
    if not isinstance(env.observation_space, Composite):
        _declare_stacked_frames(env)
        return env
    try:
        return PackedDictObs(env)
    except SpaceError:
        close_env(env)
        raise


def close_env(env: Env) -> None:
    """Close an env; an error there is only a warning, because nothing is lost by it."""
    try:
        with ENV_CALLS:
            env.close()
    except KeyboardInterrupt:
        raise
    except BaseException as cause:
        log.warning("env.close() raised %s: %s", type(cause).__name__, cause)


def _declare_stacked_frames(env: Env) -> None:
    """Declare grey frames that Gymnasium's own wrapper stacks as a frame stack."""
    space, wrapper = env.observation_space, env
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3 or space.low.any():
        return
    shape, high = space.shape, int(space.high.max())
    # Outer wrappers that keep its space keep its observations, too; if one does not, only memory is lost.
    while isinstance(wrapper, gym.Wrapper) and wrapper.observation_space is space:
        if isinstance(wrapper, FrameStackObservation):
            env.observation_space = FrameStackSpace(wrapper.stack_size, shape, high=high)
            return
        wrapper = wrapper.env


class EnvSlot:
    """One environment of a group, with checks on what it returns. Used in this process and inside the workers."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self._unpacked = env.env if isinstance(env, PackedDictObs) else env  # as the factory returned it
        self.observations = ArraySpace.of(env.observation_space, "observation")
        self.actions = ArraySpace.of(env.action_space, "action")
        self._offers_state = True  # until `get_state` turns out to be something else
        self._obs_shape, self._safe_dtype = self.observations.shape, self.observations.safe_dtype

    def check_spaces(self, observations: ArraySpace, actions: ArraySpace) -> None:
        """Raise for an env whose spaces are not those of the group."""
        if (self.observations, self.actions) != (observations, actions):
            raise EnvError(
                f"has the spaces {self.observations.text} and {self.actions.text}, but the group has "
                f"{observations.text} and {actions.text}; the env factory must always return the same kind"
            )

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        obs, info = checked_result(self.env.reset(seed=seed), "reset")
        obs = self.observations.checked(obs)
        if self.observations.first_not_finite(np.asarray(obs)[None]) is not None:
            raise EnvError(self.observations.not_finite(obs))
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env and check what it returned."""
        return self.checked_step(*self.env.step(action))

    def checked_step(
        self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the values of a step; raise for those that the space does not declare or that cannot be stored.

        Whether a float observation is finite is left to the caller, who checks all envs of a group together.
        """
        if type(obs) is not np.ndarray or obs.dtype is not self._safe_dtype or obs.shape != self._obs_shape:
            obs = self.observations.checked(obs)
        if not isinstance(reward, float) or not -FLOAT32_MAX <= reward <= FLOAT32_MAX:
            reward = checked_reward(reward)
        if type(terminated) is not bool:
            terminated = checked_flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = checked_flag("truncated", truncated)
        return obs, reward, terminated, truncated, info

    def replay(
        self, seed: int, actions: np.ndarray, report_progress: Callable[[], None] | None = None
    ) -> tuple[np.ndarray, bool]:
        """Return the observation after `actions` and whether the last of them ended the episode."""
        obs, _ = self.reset(seed)
        ended = False
        if len(actions) > 0:  # without actions there is no row to check the shape of
            actions = self.actions.cast_actions(actions, len(actions))
        for number, action in enumerate(actions, start=1):
            obs, _, terminated, truncated, _ = self.step(action)
            ended = terminated or truncated
            if ended and number < len(actions):
                raise ReplayDivergedError(f"ended its episode at step {number} of {len(actions)} replayed steps")
            if report_progress is not None:
                report_progress()
        return np.array(obs, dtype=self.observations.dtype), ended

    def get_state(self) -> EnvState | None:
        holder = self._state_holder()
        if holder is None or not self._offers_state:
            return None
        try:
            arrays = _numeric_arrays(holder.get_state())
        except Exception as cause:
            log.warning("get_state of the environment raised %s: %s; it is not used", type(cause).__name__, cause)
            arrays = None
        if arrays is None:
            self._offers_state = False  # this env means something else by get_state: it is not asked again
            return None
        elapsed = [limit._elapsed_steps or 0 for limit in self.time_limits()]
        return arrays if holder is self._unpacked else arrays | {ELAPSED_STEPS_KEY: np.array(elapsed, dtype=np.int64)}

    def set_state(self, state: EnvState) -> np.ndarray | None:
        holder = self._state_holder()
        if holder is None:
            raise EnvError("has no get_state and set_state")
        own = {key: value.copy() for key, value in state.items() if key not in (ELAPSED_STEPS_KEY, NUM_STEPS_KEY)}
        obs = holder.set_state(own)
        if holder is not self._unpacked:
            for limit, elapsed in zip(self.time_limits(), state[ELAPSED_STEPS_KEY], strict=True):
                limit._elapsed_steps = int(elapsed)
        if obs is None:
            return None
        if isinstance(self.env, PackedDictObs):
            obs = self.env.pack(obs)
        return np.array(self.observations.checked(obs), dtype=self.observations.dtype)

    def _state_holder(self) -> Any:
        """Return the outermost env if it offers its state, else the innermost, else None.

        The state of the innermost env is enough only if no wrapper keeps more than what is restored here: a frame
        stack, for example, would silently keep the frames of another episode.
        """
        stateless = all(isinstance(wrapper, STATELESS_WRAPPERS) for wrapper in self.wrappers())
        candidates = [self._unpacked, self._unpacked.unwrapped] if stateless else [self._unpacked]
        for env in candidates:
            if callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None)):
                return env
        return None

    def wrappers(self) -> Iterator[gym.Wrapper[Any, Any, Any, Any]]:
        env: Env = self.env
        while isinstance(env, gym.Wrapper):
            yield env
            env = env.env

    def time_limits(self) -> list[Any]:
        return [wrapper for wrapper in self.wrappers() if isinstance(wrapper, TimeLimit)]


def _numeric_arrays(state: object) -> EnvState | None:
    """Return the state of an env as arrays; None if it is not a dict of numbers by name."""
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        return None
    arrays = {key: np.array(value) for key, value in state.items()}
    return None if any(array.dtype.kind not in "biufc" for array in arrays.values()) else arrays
