"""Environments with one planted fault each, for `python -m benchmarks probe`.

Two of them cannot be seen from outside (swapped actions, an end that is missing). They are here so that the share of
faults that are named says something.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import rl_training.envs.factory  # noqa: F401  (registers environments)

Wrapper = gym.Wrapper[Any, Any, Any, Any]


class Transformed(gym.Wrapper[Any, Any, Any, Any]):
    """Change what an environment returns or is given by functions of (wrapper, value)."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        obs: Callable[[Any, Any], Any] | None = None,
        reward: Callable[[Any, Any], Any] | None = None,
        action: Callable[[Any, Any], Any] | None = None,
        flags: Callable[[Any, bool, bool], tuple[Any, Any]] | None = None,
        observation_space: Any = None,
        action_space: Any = None,
    ) -> None:
        super().__init__(env)
        self.obs, self.reward, self.action, self.flags = obs, reward, action, flags
        if observation_space is not None:
            self.observation_space = observation_space
        if action_space is not None:
            self.action_space = action_space
        self.num_steps = 0
        self.memory: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.num_steps, self.memory = 0, None
        return (self.obs(self, obs) if self.obs else obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.num_steps += 1
        obs, reward, terminated, truncated, info = self.env.step(self.action(self, action) if self.action else action)
        if self.flags:
            terminated, truncated = self.flags(self, terminated, truncated)
        obs = self.obs(self, obs) if self.obs else obs
        return obs, (self.reward(self, reward) if self.reward else reward), terminated, truncated, info


def transformed(**changes: Any) -> Callable[[gym.Env[Any, Any]], Wrapper]:
    return lambda env: Transformed(env, **changes)


def swap(wrapper: Any, value: Any) -> Any:
    """Return the value of the step before, at first this one, and keep this one."""
    before = value if wrapper.memory is None else wrapper.memory
    wrapper.memory = value
    return before


def late_reward(wrapper: Any, reward: Any) -> float:
    before, wrapper.memory = wrapper.memory or 0.0, float(reward)
    return before


def late_action(wrapper: Any, action: Any) -> Any:
    before, wrapper.memory = wrapper.memory, action
    return 0 if before is None else before


def sum_so_far(wrapper: Any, reward: Any) -> float:
    wrapper.memory = (wrapper.memory or 0.0) + float(reward)
    return float(wrapper.memory)


def first_only(wrapper: Any, obs: Any) -> Any:
    wrapper.memory = obs if wrapper.memory is None else wrapper.memory
    return np.array(wrapper.memory)


def wrong_at_step_30(value: float) -> Callable[[Any, Any], Any]:
    return lambda wrapper, given: given * value if wrapper.num_steps == 30 else given


def scaled_in_place(wrapper: Any, action: Any) -> Any:
    action *= 0.5
    return action


def hang_at_step_20(wrapper: Any, obs: Any) -> Any:
    if wrapper.num_steps == 20:
        time.sleep(3_600)
    return obs


class SameArray(gym.ObservationWrapper[Any, Any, Any]):
    """Return one array, whose values change."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._array = np.zeros(env.observation_space.shape or (), np.float32)

    def observation(self, observation: Any) -> Any:
        self._array[:] = observation
        return self._array


class WithoutTimeLimit(gym.Wrapper[Any, Any, Any, Any]):
    """Play the environment below all wrappers, without its time limit."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env.unwrapped)
        self.unwrapped.spec = None


class OldAPI(gym.Wrapper[Any, Any, Any, Any]):
    """Return (observation, reward, done, info) as Gym did."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, info


class AutoReset(gym.Wrapper[Any, Any, Any, Any]):
    """Reset at the end of an episode and return the start of the next one as its last observation."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            obs, info = self.env.reset()
        return obs, reward, terminated, truncated, info


class OwnReset(gym.Wrapper[Any, Any, Any, Any]):
    """Pass another seed on than the one that is given."""

    def __init__(self, env: gym.Env[Any, Any], seed: Callable[[int | None], int | None]) -> None:
        super().__init__(env)
        self._seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=self._seed(seed), options=options)


class KeptVelocity(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose pole keeps its velocity over a reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        inner: Any = self.unwrapped
        before = inner.state[3] if inner.state is not None else None
        obs, info = self.env.reset(seed=seed, options=options)
        if before is not None:
            inner.state = np.array([*inner.state[:3], before])
            obs = np.array(inner.state, np.float32)
        return obs, info


class KeptCount(gym.Wrapper[Any, Any, Any, Any]):
    """Truncate after 150 steps of which the count goes on over resets."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._count = 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = self.env.step(action)
        self._count += 1
        return obs, reward, terminated, self._count % 150 == 0, info


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: the environment it is planted in, the wrapper that plants it, and the name to report."""

    env_id: str
    wrapper: Callable[[Any], Any]
    name: str

    def __call__(self) -> Any:
        return self.wrapper(gym.make(self.env_id, disable_env_checker=True))


CARTPOLE, PENDULUM, ACROBOT = "CartPole-v1", "Pendulum-v1", "Acrobot-v1"
LANDER, LANDER_CONTINUOUS = "LunarLander-v3", "LunarLanderContinuous-v3"
ANYTHING = (-np.inf, np.inf)
POSITIONS = [0, 2]  # of CartPole's observation: cart and pole, without their velocities

FAULTS: dict[str, Planted] = {
    # Observations
    "NaN in the observation": Planted(PENDULUM, transformed(obs=wrong_at_step_30(np.nan)), "observation_not_finite"),
    "observation never computed again": Planted(CARTPOLE, transformed(obs=first_only), "observation_constant"),
    "observation one step old": Planted(CARTPOLE, transformed(obs=swap), "observation_delayed"),
    "observation in millimetres": Planted(
        LANDER,
        transformed(obs=lambda _, obs: obs * 10_000, observation_space=spaces.Box(*ANYTHING, (8,), np.float32)),
        "observation_scale",
    ),
    "one array, changed in place": Planted(PENDULUM, SameArray, "observation_aliased"),
    "bounds declared too narrow": Planted(
        PENDULUM, transformed(observation_space=spaces.Box(-1.0, 1.0, (3,), np.float32)), "observation_out_of_bounds"
    ),
    "integers for a space of floats": Planted(
        CARTPOLE, transformed(obs=lambda _, obs: (100 * obs).astype(np.int64)), "observation_dtype"
    ),
    "an extra axis": Planted(CARTPOLE, transformed(obs=lambda _, obs: obs[None]), "observation_shape"),
    "velocities left out": Planted(
        CARTPOLE,
        transformed(obs=lambda _, obs: obs[POSITIONS], observation_space=spaces.Box(*ANYTHING, (2,), np.float32)),
        "observation_incomplete",
    ),
    # Rewards
    "reward never paid": Planted(PENDULUM, transformed(reward=lambda *_: 0.0), "reward_constant"),
    "NaN as reward": Planted(PENDULUM, transformed(reward=wrong_at_step_30(np.nan)), "reward_not_finite"),
    "reward times 10,000": Planted(PENDULUM, transformed(reward=lambda _, r: 1e4 * r), "reward_scale"),
    "sum of the rewards so far": Planted(CARTPOLE, transformed(reward=sum_so_far), "reward_cumulative"),
    "reward paid one step late": Planted(PENDULUM, transformed(reward=late_reward), "reward_delayed"),
    "reward of the wrong sign": Planted(CARTPOLE, transformed(reward=lambda _, r: -r), "reward_sign"),
    "reward as an array": Planted(PENDULUM, transformed(reward=lambda _, r: np.array([r])), "reward_type"),
    # Ends of episodes
    "time limit reported as termination": Planted(
        PENDULUM, transformed(flags=lambda _, terminated, truncated: (truncated, False)), "time_limit_as_termination"
    ),
    "failure reported as truncation": Planted(
        CARTPOLE, transformed(flags=lambda _, terminated, truncated: (False, terminated)), "termination_as_truncation"
    ),
    "no time limit": Planted(PENDULUM, WithoutTimeLimit, "episode_endless"),
    "resets itself": Planted(CARTPOLE, AutoReset, "auto_reset"),
    "the API of Gym": Planted(CARTPOLE, OldAPI, "api"),
    "failure does not end the episode": Planted(
        CARTPOLE, transformed(flags=lambda _, terminated, truncated: (False, truncated)), "termination_missing"
    ),
    # Seeds and resets
    "seed not passed on": Planted(
        CARTPOLE, lambda env: OwnReset(env, lambda _: random.getrandbits(31)), "seed_ignored"
    ),
    "noise from a global generator": Planted(
        PENDULUM,
        transformed(
            obs=lambda wrapper, obs: obs + (wrapper.num_steps > 0) * np.float32(0.01 * random.random()),
            observation_space=spaces.Box(*ANYTHING, (3,), np.float32),
        ),
        "steps_not_seeded",
    ),
    "velocity kept over a reset": Planted(CARTPOLE, KeptVelocity, "reset_leaks"),
    "step count kept over a reset": Planted(PENDULUM, KeptCount, "reset_leaks"),
    "seed 0 where none is given": Planted(CARTPOLE, lambda env: OwnReset(env, lambda seed: seed or 0), "reset_repeats"),
    "every episode starts alike": Planted(LANDER, lambda env: OwnReset(env, lambda _: 0), "start_fixed"),
    # Actions
    "action not used": Planted(LANDER, transformed(action=lambda *_: 0), "action_no_effect"),
    "one dimension not used": Planted(
        LANDER_CONTINUOUS,
        transformed(action=lambda _, action: action * np.array([1, 0], np.float32)),
        "action_unused",
    ),
    "range declared ten times too wide": Planted(
        PENDULUM, transformed(action_space=spaces.Box(-20.0, 20.0, (1,), np.float32)), "action_saturates"
    ),
    "previous action executed": Planted(ACROBOT, transformed(action=late_action), "action_delayed"),
    "array of the action changed in place": Planted(PENDULUM, transformed(action=scaled_in_place), "action_changed"),
    "one action too many": Planted(ACROBOT, transformed(action_space=spaces.Discrete(4)), "raises"),
    "two actions do the same": Planted(ACROBOT, transformed(action=lambda _, action: action % 2), "actions_equal"),
    "infinite bounds": Planted(
        PENDULUM, transformed(action_space=spaces.Box(*ANYTHING, (1,), np.float32)), "action_space"
    ),
    "left and right swapped": Planted(CARTPOLE, transformed(action=lambda _, action: 1 - action), "actions_swapped"),
    # Calls
    "a step that never returns": Planted(ACROBOT, transformed(obs=hang_at_step_20), "hangs"),
}

# Environments without a fault: no finding may say `fix`.
HEALTHY = (
    CARTPOLE,
    PENDULUM,
    ACROBOT,
    LANDER,
    LANDER_CONTINUOUS,
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "BipedalWalker-v3",
    "Hopper-v5",
    "FrozenLake-v1",
    "Blackjack-v1",
    "MinAtar/Breakout-v1",
    "rl_training/Chain-v0",
    "rl_training/Identity-v0",
    "rl_training/Catch-v0",
    "rl_training/TinyDict-v0",
    "rl_training/Masked-v0",
)
