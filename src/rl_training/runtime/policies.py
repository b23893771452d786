"""Policies that a recording can play: random actions, a trained policy, either with noise."""

from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.seeding import RepeatableStreams
from rl_training.core.spaces import action_field
from rl_training.core.types import Algorithm
from rl_training.runtime.episodes import Act, follow_episode

# Returns what acts in one episode. Its random numbers are determined by the given seed.
StartEpisode: TypeAlias = Callable[[int], Act]


def random_policy(space: gym.Space[Any]) -> StartEpisode:
    """Act uniformly at random: over a Box, or among the valid choices."""
    return lambda seed: _random_actions(space, np.random.default_rng(seed))


def trained_policy(
    algorithm: Algorithm, streams: RepeatableStreams, *, step: int, explore: bool = False
) -> StartEpisode:
    """Act with `algorithm`, which draws its random numbers from `streams`."""

    def start_episode(seed: int) -> Act:
        streams.restart(seed)
        return follow_episode(algorithm, step=step, explore=explore)

    return start_episode


def noisy_policy(policy: StartEpisode, noise: float, space: gym.Space[Any]) -> StartEpisode:
    """Add Gaussian noise to numbers in [-1, 1]; replace a choice by a random one with probability `noise`."""

    def start_episode(seed: int) -> Act:
        act, generator = policy(seed), np.random.default_rng(seed)
        act_randomly = _random_actions(space, generator)

        def act_noisily(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
            if isinstance(space, spaces.Box):
                actions = act(obs, mask)
                drawn = generator.standard_normal(actions.shape, np.float32)
                return np.asarray(np.clip(actions + np.float32(noise) * drawn, -1.0, 1.0))
            return (act_randomly if generator.random() < noise else act)(obs, mask)

        return act_noisily

    return start_episode if noise else policy


def _random_actions(space: gym.Space[Any], generator: np.random.Generator) -> Act:
    shape = (1, *action_field(space).shape)

    def act(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        if isinstance(space, spaces.Box):
            return generator.uniform(-1.0, 1.0, shape).astype(np.float32)
        if isinstance(space, spaces.MultiBinary):
            return generator.integers(2, size=shape)
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.array([space.n])  # type: ignore[attr-defined]
        valid = np.ones(int(sizes.sum()), np.bool_) if mask is None else mask[0]
        flags = np.split(valid, np.cumsum(sizes)[:-1])
        chosen = [generator.choice(np.flatnonzero(choice)) for choice in flags]
        return np.array(chosen, np.int64).reshape(shape)

    return act
