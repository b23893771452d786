"""Wrappers that learn statistics: refused, because every copy of an environment would learn its own."""

from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from rl_training.errors import ConfigError

_MOMENTS = ("mean", "var", "count")  # the attributes of gymnasium's RunningMeanStd and its relatives
# Settings of algorithms that replace such a wrapper.
_OBS_SETTINGS = {"normalize": "obs", "normalize_observations": "true"}
_REWARD_SETTINGS = {"normalize": "returns", "reward_scale": "return"}


def learns_statistics(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Return whether a wrapper keeps running statistics, as Gymnasium's NormalizeObservation and NormalizeReward do.

    With `update_running_mean = False` it does not learn any more.
    """
    keeps = any(all(hasattr(value, name) for name in _MOMENTS) for value in vars(wrapper).values())
    return keeps and bool(getattr(wrapper, "update_running_mean", True))


def refuse_statistics(wrappers: Iterable[gym.Wrapper[Any, Any, Any, Any]], algo: str, settings: Iterable[str]) -> None:
    """Raise `ConfigError` for a wrapper that learns statistics, with a remedy that the algorithm has.

    `settings`: the names of the algorithm's own settings.
    """
    for wrapper in filter(learns_statistics, wrappers):
        name = type(wrapper).__name__
        is_reward = "reward" in name.lower()
        replaced_by = _REWARD_SETTINGS if is_reward else _OBS_SETTINGS
        own = [f"{key}: {value}" for key, value in replaced_by.items() if key in settings]
        constant = "TransformReward" if is_reward else "TransformObservation"
        remedy = (
            f"remove it and set algo_kwargs.{own[0]}; those statistics are shared, saved and used in evaluations"
            if own
            else f"{algo} has no setting for this: give the wrapper fixed statistics and update_running_mean = False, "
            f"or use gymnasium.wrappers.{constant} with constants"
        )
        raise ConfigError(
            f"the environment has the wrapper {name}, which learns statistics: each copy of the environment learns its "
            f"own, so evaluations would see other numbers than training; {remedy}"
        )
