"""Observations and rewards on a scale of about one, by running statistics.

On-policy, statistics change only between rollouts: within one, acting and learning see the same function of the
observation. Off-policy they change between env steps; replay memories hold observations as they were.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.core.spaces import observation_field, observation_kind
from rl_training.core.types import Batch, State, StateDict
from rl_training.errors import CheckpointError, SpaceError
from rl_training.learners.returns import discounted_sum

_EPS = 1e-8  # added to variances, so that constant entries become 0
_LIMIT = 10.0  # normalised values are clipped to ± this
_MIN_STD = 1e-3  # of a dataset's entries: one that hardly varies there may vary in the environment
_ROWS_AT_ONCE = 65_536  # converted to float64 at a time


class RunningMoments:
    """Mean and variance over everything seen, (rows, *shape) at a time. Chan, Golub and LeVeque 1979."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.variance = torch.ones(shape, dtype=torch.float64)
        self.count = 0

    def update(self, values: Tensor) -> None:
        values = values.to("cpu", torch.float64)
        rows, mean, variance = len(values), values.mean(0), values.var(0, correction=0)
        total = self.count + rows
        shift = mean - self.mean
        squares = self.variance * self.count + variance * rows + shift.square() * (self.count * rows / total)
        self.mean = self.mean + shift * (rows / total)
        self.variance, self.count = squares / total, total

    @property
    def std(self) -> Tensor:
        return (self.variance + _EPS).sqrt()

    def state_dict(self) -> StateDict:
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean = torch.as_tensor(state["mean"]).clone()
        self.variance = torch.as_tensor(state["variance"]).clone()
        self.count = int(state["count"])


def normalized(obs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((obs - mean) * scale).clamp(-_LIMIT, _LIMIT)


class ObsNormalizer:
    """Normalises each entry of an observation: (obs - mean) / standard deviation, of at least `min_std`."""

    def __init__(self, shape: tuple[int, ...], *, min_std: float = 0.0) -> None:
        self.moments = RunningMoments(shape)
        self._min_std = min_std
        self._refresh()

    def rows(self, obs: np.ndarray) -> np.ndarray:
        """Normalise observations for acting."""
        floats = obs.astype(np.float32, copy=False)  # numpy would make float64 of integers
        normalized: np.ndarray = np.clip((floats - self._mean) * self._scale, -_LIMIT, _LIMIT)
        return normalized

    def tensor(self, obs: Tensor) -> Tensor:
        """Normalise observations for learning."""
        mean, scale = (constant.to(obs.device) for constant in self.constants())
        return normalized(obs, mean, scale)

    def constants(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the scale that `normalized` takes."""
        return torch.from_numpy(self._mean), torch.from_numpy(self._scale)

    def update(self, obs: Tensor) -> None:
        self.moments.update(obs)
        self._refresh()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.moments.load_state_dict(state)
        self._refresh()

    def _refresh(self) -> None:
        self._mean = self.moments.mean.float().numpy()
        self._scale = (1.0 / self.moments.std.clamp(min=self._min_std)).float().numpy()


def normalize_batch(batch: Batch, state: State) -> Batch:
    """Return the batch with observations normalised by the constants in the state of a pure step."""
    seen = {name: normalized(batch[name], state["obs_mean"], state["obs_scale"]) for name in ("obs", "next_obs")}
    return {**batch, **seen}


def vector_normalizer(space: gym.Space[Any], *, min_std: float = 0.0) -> ObsNormalizer:
    """Return a normalizer without statistics; raise `SpaceError` for observations that are no vectors."""
    if observation_kind(space) != "vector":
        raise SpaceError(f"normalize_observations needs vector observations, but these are {space}")
    return ObsNormalizer(observation_field(space).shape, min_std=min_std)


def take_moments(policy: dict[str, Any], name: str) -> Any:
    """Remove the statistics of this name from a saved policy and return them."""
    if name not in policy:
        raise CheckpointError(f"the saved policy has no {name}: it was trained without that normalisation")
    return policy.pop(name)


def dataset_normalizer(space: gym.Space[Any], obs: np.ndarray | None) -> ObsNormalizer:
    """Return a normalizer with the statistics of a dataset's observations, (rows, *shape).

    Without a dataset, its statistics are those of a checkpoint that is loaded later.
    """
    normalizer = vector_normalizer(space, min_std=_MIN_STD)
    if obs is None:
        return normalizer
    for start in range(0, len(obs), _ROWS_AT_ONCE):
        normalizer.update(torch.from_numpy(obs[start : start + _ROWS_AT_ONCE].copy()))
    return normalizer


class RewardScaler:
    """Divides rewards by the standard deviation of the discounted return since the episode's start."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.moments = RunningMoments()
        self.returns = torch.zeros(num_envs, dtype=torch.float64)  # of the open episodes
        self._gamma = gamma

    def scale(self, rewards: Tensor, ended: Tensor, terminal_rewards: Tensor | None = None) -> Tensor:
        """Update the statistics with one rollout, (steps, envs), and return its rewards scaled.

        `terminal_rewards` are added to the rewards, but not clipped: each is the sum of many that an end stands for.
        """
        device, rewards, ended = rewards.device, rewards.cpu().double(), ended.cpu()
        terminal = torch.zeros_like(rewards) if terminal_rewards is None else terminal_rewards.cpu().double()
        earned = rewards + terminal
        before = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))  # a new return starts after an end
        decay = self._gamma * (~before).double()
        first = earned[:1] + self._gamma * self.returns
        # The sum runs from the start: the one of the future on the reversed rollout.
        returns = discounted_sum(torch.cat((first, earned[1:])).flip(0), decay.flip(0)).flip(0)
        self.returns = returns[-1] * (~ended[-1])
        self.moments.update(returns.flatten())
        scaled = (rewards / self.moments.std).clamp(-_LIMIT, _LIMIT) + terminal / self.moments.std
        return scaled.float().to(device)
