"""Observations and rewards on a scale of about one, by running statistics.

On-policy, statistics change only between rollouts: within one, acting and learning see the same function of the
observation. Off-policy they change between env steps; replay memories hold observations as they were.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.core.spaces import observation_field, observation_kind
from rl_training.core.state_checks import stored_number
from rl_training.core.types import Batch, State, StateDict
from rl_training.errors import CheckpointError, SpaceError
from rl_training.learners.returns import discounted_sum

_EPS = 1e-8  # added to variances, so that constant entries become 0
OBS_CONSTANTS = ("obs_mean", "obs_scale")  # entries of a state by which observations are normalised
LIMIT = 10.0  # normalised values are clipped to ± this
_MIN_STD = 1e-3  # of a dataset's entries: one that hardly varies there may vary in the environment
_ROWS_AT_ONCE = 65_536  # converted to float64 at a time


def merged_moments(moments: Sequence[Tensor], values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and count, float64, after `values`, (rows, *shape). Chan, Golub and LeVeque 1979."""
    old_mean, old_variance, count = moments
    values = values.to(old_mean.device, torch.float64)
    rows, mean, variance = len(values), values.mean(0), values.var(0, correction=0)
    total = count + rows
    shift = mean - old_mean
    squares = old_variance * count + variance * rows + shift.square() * (count * rows / total)
    return old_mean + shift * (rows / total), squares / total, total


def deviation(variance: Tensor) -> Tensor:
    return (variance + _EPS).sqrt()


class RunningMoments:
    """Mean and variance over everything seen, (rows, *shape) at a time.

    They are float64 tensors that change in place: a CUDA graph that reads them sees the present values.
    """

    def __init__(self, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.variance = torch.ones(shape, dtype=torch.float64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.variance, self.total

    def use(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        """Hold these tensors in place of its own: the member's rows of a stack."""
        self.mean, self.variance, self.total = mean, variance, total

    @property
    def count(self) -> int:
        return int(self.total)

    def update(self, values: Tensor) -> None:
        if len(values) == 1 and self.mean.device.type == values.device.type == "cpu":
            self._add_row(values.numpy()[0].astype(np.float64))
            return
        for tensor, new in zip(self.tensors, merged_moments(self.tensors, values), strict=True):
            tensor.copy_(new)

    def _add_row(self, row: np.ndarray) -> None:
        """Add one row, as `merged_moments` does, bit for bit: its mean is the row, its variance 0.

        One environment adds one row per step. Numpy takes a fifth of the time of a dozen small tensors.
        """
        mean, variance, count = (tensor.numpy() for tensor in self.tensors)
        total, shift = count + 1.0, row - mean
        variance[...] = (variance * count + shift * shift * (count / total)) / total
        mean += shift * (1.0 / total)
        count[...] = total

    @property
    def std(self) -> Tensor:
        return deviation(self.variance)

    def state_dict(self) -> StateDict:
        return {"mean": self.mean.clone(), "variance": self.variance.clone(), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean.copy_(torch.as_tensor(state["mean"]))
        self.variance.copy_(torch.as_tensor(state["variance"]))
        self.total.fill_(int(state["count"]))


def normalized(obs: Tensor, mean: Tensor, scale: Tensor, limit: float | None = LIMIT) -> Tensor:
    scaled = (obs - mean) * scale
    return scaled if limit is None else scaled.clamp(-limit, limit)


class ObsNormalizer:
    """Normalises each entry of an observation: (obs - mean) / standard deviation, of at least `min_std`.

    The result is clipped to ± `limit`, unless that is None.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        min_std: float = 0.0,
        limit: float | None = LIMIT,
        device: torch.device | str = "cpu",
        live: bool = False,
    ) -> None:
        """`live`: a step on the device changes the statistics, so they are read again for every use on the host."""
        self.moments, self.limit = RunningMoments(shape, device), limit
        self._min_std, self._live = min_std, live
        self._refresh()

    def rows(self, obs: np.ndarray) -> np.ndarray:
        """Normalise observations for acting."""
        if self._live:
            self._refresh()
        floats = obs.astype(np.float32, copy=False)  # numpy would make float64 of integers
        scaled: np.ndarray = (floats - self._mean) * self._scale
        return scaled if self.limit is None else np.clip(scaled, -self.limit, self.limit)

    def tensor(self, obs: Tensor) -> Tensor:
        """Normalise observations for learning."""
        mean, scale = (constant.to(obs.device) for constant in self.constants().values())
        return normalized(obs, mean, scale, self.limit)

    def constants(self) -> State:
        """Return the mean and the scale that `normalized` takes, as entries of a state."""
        if self._live:
            self._refresh()
        return dict(zip(OBS_CONSTANTS, map(torch.from_numpy, (self._mean, self._scale)), strict=True))

    def update(self, obs: Tensor) -> None:
        self.moments.update(obs)
        self._refresh()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.moments.load_state_dict(state)
        self._refresh()

    def _refresh(self) -> None:
        self._mean = self.moments.mean.float().cpu().numpy()
        self._scale = (1.0 / self.moments.std.clamp(min=self._min_std)).float().cpu().numpy()


def normalize_batch(batch: Batch, state: State, limit: float | None = LIMIT) -> Batch:
    """Return the batch with observations normalised by the constants in the state of a pure step."""
    mean, scale = (state[name] for name in OBS_CONSTANTS)
    return {**batch, **{name: normalized(batch[name], mean, scale, limit) for name in ("obs", "next_obs")}}


def vector_normalizer(space: gym.Space[Any], *, min_std: float = 0.0, limit: float | None = LIMIT) -> ObsNormalizer:
    """Return a normalizer without statistics; raise `SpaceError` for observations that are no vectors."""
    if observation_kind(space) != "vector":
        raise SpaceError(f"normalize_observations needs vector observations, but these are {space}; set it to false")
    return ObsNormalizer(observation_field(space).shape, min_std=min_std, limit=limit)


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


class ReturnScaler:
    """The scale of rewards by the discounted returns G since the start of each episode, of all steps so far.

    It is 1 / max(standard deviation of G, largest |G| / limit): returns then stay within ± `limit`. A new return
    starts after the end of an episode. Lee et al. 2025, Hyperspherical normalization, section 4.
    """

    def __init__(self, num_envs: int, gamma: float, *, limit: float) -> None:
        self.moments, self.largest = RunningMoments(), 0.0
        self.returns = torch.zeros(num_envs, dtype=torch.float64)  # of the open episodes
        self._gamma, self._limit = gamma, limit

    def update(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Add a step of all envs: rewards and ends of episodes, both (envs,)."""
        returns = self.returns.numpy()
        returns *= self._gamma
        returns += rewards
        self.moments.update(self.returns)
        self.largest = max(self.largest, float(np.abs(returns).max()))
        returns[ended] = 0.0

    def restart(self, envs: np.ndarray) -> None:
        """Start a new return where `envs`, (envs,) bool, is true."""
        self.returns.numpy()[envs] = 0.0

    @property
    def scale(self) -> float:
        return 1.0 / max(float(self.moments.std), self.largest / self._limit)

    def state_dict(self) -> StateDict:
        return {"moments": self.moments.state_dict(), "largest": self.largest, "returns": self.returns.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.moments.load_state_dict(state["moments"])
        self.largest = stored_number(state["largest"], "the largest return")
        self.returns.copy_(torch.as_tensor(state["returns"]))


class RewardScaler:
    """Divides rewards by the standard deviation of the discounted return since the episode's start."""

    def __init__(self, num_envs: int, gamma: float, device: torch.device | str = "cpu") -> None:
        self.moments = RunningMoments(device=device)
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)  # of the open episodes
        self._gamma = gamma

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.moments.tensors, self.returns)

    def use(self, mean: Tensor, variance: Tensor, total: Tensor, returns: Tensor) -> None:
        """Hold these tensors in place of its own: the member's rows of a stack."""
        self.moments.use(mean, variance, total)
        self.returns = returns

    def scale(self, rewards: Tensor, ended: Tensor, terminal_rewards: Tensor | None = None) -> Tensor:
        """Update the statistics with one rollout, (steps, envs), and return its rewards scaled."""
        where = self.returns.device
        terminal = None if terminal_rewards is None else terminal_rewards.to(where)
        scaled, new = scaled_rewards(self.tensors, rewards.to(where), ended.to(where), self._gamma, terminal)
        for tensor, value in zip(self.tensors, new, strict=True):
            tensor.copy_(value)
        return scaled.to(rewards.device)


def scaled_rewards(
    statistics: Sequence[Tensor], rewards: Tensor, ended: Tensor, gamma: float, terminal_rewards: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the rewards of a rollout, (steps, envs), scaled, and the new statistics (`RewardScaler.tensors`).

    `terminal_rewards` are added to the rewards, but not clipped: each is the sum of many that an end stands for.
    """
    *moments, open_returns = statistics
    rewards = rewards.double()
    terminal = torch.zeros_like(rewards) if terminal_rewards is None else terminal_rewards.double()
    earned = rewards + terminal
    before = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))  # a new return starts after an end
    decay = gamma * (~before).double()
    first = earned[:1] + gamma * open_returns
    # The sum runs from the start: the one of the future on the reversed rollout.
    returns = discounted_sum(torch.cat((first, earned[1:])).flip(0), decay.flip(0)).flip(0)
    mean, variance, count = merged_moments(moments, returns.flatten())
    std = deviation(variance)
    scaled = (rewards / std).clamp(-LIMIT, LIMIT) + terminal / std
    return scaled.float(), (mean, variance, count, returns[-1] * (~ended[-1]))
