"""The rules of a goal environment: reward and termination as functions of an achieved and a desired goal.

Gymnasium-Robotics' convention: a Dict observation with the parts `observation`, `achieved_goal` and `desired_goal`,
and the methods `compute_reward` and `compute_terminated` of (achieved_goal, desired_goal, info).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.errors import ConfigError, EnvError

log = logging.getLogger("rl_training")

GOAL_PARTS = ("observation", "achieved_goal", "desired_goal")
_METHODS = ("compute_reward", "compute_terminated")
_TRIAL_STEPS = 20  # random ones, on which the methods must repeat what `step` returned


@dataclass(frozen=True, slots=True)
class _Trial:
    """What random steps achieved, and what the environment returned for them; one row per step."""

    achieved: np.ndarray
    desired: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray


class GoalRules:
    """Rewards and terminations of steps for any desired goals, computed by the methods of an environment.

    Raises `ConfigError` for an environment without goals, and for one whose methods differ from its steps.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """`env`: for the rules only; it is played for a few steps first, and keeps what its methods read."""
        _check_parts(env.observation_space)
        missing = [name for name in _METHODS if not env.has_wrapper_attr(name)]
        if missing:
            raise ConfigError(
                f"algo_kwargs.her needs an environment with the methods {' and '.join(_METHODS)} of (achieved_goal, "
                f"desired_goal, info), but {env.unwrapped.__class__.__name__} has no {' and no '.join(missing)}"
            )
        self._env = env
        self._functions = [(env.get_wrapper_attr(name), dtype) for name, dtype in zip(_METHODS, _DTYPES, strict=True)]
        trial = _play(env)
        self._check_repeats(trial)
        self._takes_batches = [self._works_on_batches(function, dtype, trial) for function, dtype in self._functions]

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards, (rows,) float32, and terminations, (rows,) bool, of steps that achieved these goals."""
        with ENV_CALLS:
            rewards, terminated = (
                _on_batch(function, dtype, achieved, desired)
                if takes_batches
                else _row_by_row(function, dtype, achieved, desired)
                for (function, dtype), takes_batches in zip(self._functions, self._takes_batches, strict=True)
            )
        if not np.isfinite(rewards).all():
            raise EnvError("compute_reward returned a number that is not finite")
        return rewards, terminated

    def _check_repeats(self, trial: _Trial) -> None:
        for (function, dtype), name, expected in zip(
            self._functions, _METHODS, (trial.rewards, trial.terminated), strict=True
        ):
            try:
                found = _row_by_row(function, dtype, trial.achieved, trial.desired)
            except Exception as cause:
                raise ConfigError(
                    f"algo_kwargs.her: {name}(achieved_goal, desired_goal, {{}}) raised {type(cause).__name__}: "
                    f"{cause}; fields of info are not stored, so it must not read them"
                ) from cause
            different = np.flatnonzero(~np.isclose(found, expected, rtol=1e-5, atol=1e-6))
            if len(different):
                step = different[0]
                raise ConfigError(
                    f"algo_kwargs.her needs an environment whose {name} repeats what step returns, but a random step "
                    f"returned {expected[step]} where {name}(achieved_goal, desired_goal, {{}}) is {found[step]}; "
                    "wrappers that change rewards, and rules that read more than the goals, cannot be used"
                )

    @staticmethod
    def _works_on_batches(function: Callable[..., Any], dtype: type, trial: _Trial) -> bool:
        """Return whether a method returns the same for all rows at once; some rows reach their goal, some do not."""
        achieved = np.concatenate([trial.achieved, trial.achieved])
        desired = np.concatenate([trial.desired, trial.achieved])
        one_by_one = _row_by_row(function, dtype, achieved, desired)
        try:
            same = np.allclose(_on_batch(function, dtype, achieved, desired), one_by_one, rtol=1e-5, atol=1e-6)
        except Exception:
            same = False
        if not same:
            log.warning("%s does not take arrays of goals: it is called once per relabelled row", function.__name__)
        return bool(same)


_DTYPES: tuple[type, type] = (np.float32, np.bool_)  # of rewards and terminations


def _check_parts(space: gym.Space[Any]) -> None:
    if not isinstance(space, spaces.Dict) or not set(GOAL_PARTS) <= space.keys():
        raise ConfigError(
            f"algo_kwargs.her needs a Dict observation with the parts {', '.join(GOAL_PARTS)}, but the observation "
            f"space is {space}"
        )
    achieved, desired = space["achieved_goal"], space["desired_goal"]
    if not isinstance(achieved, spaces.Box | spaces.MultiBinary) or (achieved.shape, achieved.dtype) != (
        desired.shape,
        desired.dtype,
    ):
        raise ConfigError(
            f"algo_kwargs.her needs goals that are arrays of one shape and dtype, but achieved_goal is {achieved} and "
            f"desired_goal is {desired}"
        )


def _play(env: gym.Env[Any, Any]) -> _Trial:
    """Take random steps; episodes that end are followed by others."""
    rows: list[tuple[np.ndarray, np.ndarray, float, bool]] = []
    with ENV_CALLS:
        env.action_space.seed(0)
        env.reset(seed=0)
        for step in range(_TRIAL_STEPS):
            ENV_CALLS.next()
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            goals = (np.array(obs[name]) for name in GOAL_PARTS[1:])
            rows.append((*goals, float(reward), bool(terminated)))  # type: ignore[arg-type]
            if terminated or truncated:
                env.reset(seed=step + 1)
    achieved, desired, rewards, terminations = zip(*rows, strict=True)
    return _Trial(np.stack(achieved), np.stack(desired), np.array(rewards, np.float32), np.array(terminations))


def _on_batch(function: Callable[..., Any], dtype: type, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.asarray(function(achieved, desired, {}), dtype), len(achieved))


def _row_by_row(function: Callable[..., Any], dtype: type, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    rows = (function(one, other, {}) for one, other in zip(achieved, desired, strict=True))
    return np.array([np.asarray(row).item() for row in rows], dtype)
