"""Distributions over actions, one class per kind of action space.

Acting uses numpy rows (`sample`, `mode`), the loss (`evaluate`), acting on a device (`draw`) and exported policies
(`greedy`) use tensors. The output of a network for one observation is a row of `num_outputs` numbers; further columns
are ignored. In a row of `action_mask`, True marks an allowed choice. The other choices get no probability, no gradient
and no part of the entropy.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.errors import SpaceError

LOG_STD_RANGE = (-20.0, 2.0)  # of squashed actions
MASKED = -1e8  # a logit whose probability is 0 in float32; with -infinity, 0 * log 0 would make the entropy NaN


class Distribution(Protocol):
    """The meaning of the outputs of a policy."""

    num_outputs: int

    def sample(self, outputs: np.ndarray, generator: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        """Sample one action per row."""
        ...

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        """Sample one action per row of tensors by counters: a pure function."""
        ...

    def mode(self, outputs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Return the most likely action per row."""
        ...

    def greedy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return `mode` of tensors, by operations that can be exported."""
        ...

    def evaluate(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the log-probability (or density) of the actions, (batch,), and the entropy, (batch,)."""
        ...


class Categorical:
    """One or several independent choices: outputs are their concatenated logits. Actions (batch,) or (batch, k)."""

    def __init__(self, sizes: Sequence[int], *, single: bool) -> None:
        self.num_outputs = sum(sizes)
        self._sizes, self._single = list(sizes), single
        self._ends = np.cumsum(sizes)[:-1]

    def sample(self, outputs: np.ndarray, generator: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        # argmax(logits + Gumbel noise) is a sample of the softmax; -log of an exponential sample is Gumbel noise.
        logits = self._logits(outputs, mask)
        return self._largest(logits - np.log(generator.standard_exponential(logits.shape)))

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        exponential = -keys.uniform(lane, self.num_outputs).log()
        return self.greedy(outputs[:, : self.num_outputs] - exponential.log(), None)

    def mode(self, outputs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return self._largest(self._logits(outputs, mask))

    def greedy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        scores = outputs[:, : self.num_outputs]
        if mask is not None:
            scores = torch.where(mask, scores, -torch.inf)
        best = [part.argmax(1) for part in torch.split(scores, self._sizes, dim=1)]
        return best[0] if self._single else torch.stack(best, 1)

    def evaluate(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = outputs[:, : self.num_outputs]
        if mask is not None:
            logits = torch.where(mask, logits, MASKED)
        log_prob = entropy = torch.zeros(())
        for index, part in enumerate(torch.split(logits, self._sizes, dim=1)):
            chosen = actions if self._single else actions[:, index]
            log_probs = torch.log_softmax(part, dim=1)
            # Not `gather`: its gradient adds with atomics, which is slow in the deterministic mode of a GPU.
            is_chosen = chosen[:, None] == torch.arange(part.shape[1], device=part.device)
            log_prob = log_prob + torch.where(is_chosen, log_probs, 0.0).sum(1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(1)
        return log_prob, entropy

    def _logits(self, outputs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        logits = outputs[:, : self.num_outputs]
        return logits if mask is None else np.where(mask, logits, MASKED)

    def _largest(self, scores: np.ndarray) -> np.ndarray:
        if self._single:
            largest: np.ndarray = scores.argmax(1)
            return largest
        return np.stack([part.argmax(1) for part in np.split(scores, self._ends, axis=1)], axis=1)


class Bernoulli:
    """Independent switches: outputs are the logits of "on". Actions (batch, *shape) of 0 and 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.num_outputs = math.prod(shape)
        self._shape = shape

    def sample(self, outputs: np.ndarray, generator: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        # sigmoid(x) > u is x > log(u / (1 - u)), which is a sample of the logistic distribution.
        logits = self._logits(outputs)
        return self._shaped(logits > generator.logistic(size=logits.shape))

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        uniform = keys.uniform(lane, self.num_outputs)
        on = (outputs[:, : self.num_outputs].sigmoid() > uniform).to(torch.int64)
        return on.reshape(outputs.shape[0], *self._shape)

    def mode(self, outputs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return self._shaped(self._logits(outputs) > 0.0)

    def greedy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        on = (outputs[:, : self.num_outputs] > 0.0).to(torch.int64)
        return on.reshape(outputs.shape[0], *self._shape)

    def evaluate(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = outputs[:, : self.num_outputs]
        log_on, log_off = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
        log_prob = torch.where(actions.flatten(1) > 0, log_on, log_off).sum(1)
        return log_prob, -(log_on.exp() * log_on + log_off.exp() * log_off).sum(1)

    def _logits(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, : self.num_outputs]

    def _shaped(self, on: np.ndarray) -> np.ndarray:
        return on.astype(np.int64).reshape(len(on), *self._shape)


class Gaussian:
    """Independent normal numbers: outputs are the means, then the log standard deviations. Actions (batch, *shape).

    Actions are not bounded here: the collector clips those for the env, and the loss uses them unclipped.
    `log_std_range`: log standard deviations are clipped to it.
    """

    def __init__(self, shape: tuple[int, ...], log_std_range: tuple[float, float] | None = None) -> None:
        self._size = math.prod(shape)
        self._shape = shape
        self._log_std_range = log_std_range
        self.num_outputs = 2 * self._size

    def sample(self, outputs: np.ndarray, generator: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        mean, log_std = outputs[:, : self._size], outputs[:, self._size : self.num_outputs]
        if self._log_std_range is not None:
            log_std = np.clip(log_std, *self._log_std_range)
        noise = generator.standard_normal(mean.shape, np.float32)
        return self._shaped(mean + np.exp(log_std) * noise)

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        mean, log_std = outputs[:, : self._size], outputs[:, self._size : self.num_outputs]
        if self._log_std_range is not None:
            log_std = log_std.clamp(*self._log_std_range)
        return (mean + log_std.exp() * keys.normal(lane, self._size)).reshape(outputs.shape[0], *self._shape)

    def mode(self, outputs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return self._shaped(outputs[:, : self._size])

    def greedy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return outputs[:, : self._size].reshape(outputs.shape[0], *self._shape)

    def evaluate(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs[:, : self._size], outputs[:, self._size : self.num_outputs]
        if self._log_std_range is not None:
            log_std = log_std.clamp(*self._log_std_range)
        error = (actions.reshape(len(actions), -1) - mean) * (-log_std).exp()
        log_prob = (-0.5 * error.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(1)
        return log_prob, (log_std + 0.5 + 0.5 * math.log(2.0 * math.pi)).sum(1)

    def _shaped(self, actions: np.ndarray) -> np.ndarray:
        return actions.reshape(len(actions), *self._shape)


class SquashedGaussian:
    """tanh of independent normal numbers: outputs are the means, then the log standard deviations.

    Actions (batch, *shape) are in (-1, 1). Haarnoja et al. 2018, appendix C.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.size = math.prod(shape)
        self.num_outputs = 2 * self.size
        self._shape = shape

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Turn standard normal `noise`, (batch, numbers), into actions."""
        log_std = np.clip(outputs[:, self.size :], *LOG_STD_RANGE)
        return self._shaped(np.tanh(outputs[:, : self.size] + np.exp(log_std) * noise))

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        """Sample actions of tensors by counters: a pure function."""
        log_std = outputs[:, self.size :].clamp(*LOG_STD_RANGE)
        raw = outputs[:, : self.size] + log_std.exp() * keys.normal(lane, self.size)
        return raw.tanh().reshape(outputs.shape[0], *self._shape)

    def mode(self, outputs: np.ndarray) -> np.ndarray:
        """Return the squashed mean, which evaluations use."""
        return self._shaped(np.tanh(outputs[:, : self.size]))

    def greedy(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return `mode` of tensors, by operations that can be exported."""
        return outputs[:, : self.size].tanh().reshape(outputs.shape[0], *self._shape)

    def rsample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Turn standard normal `noise`, (batch, numbers), into actions, (batch, numbers), and their log-densities.

        Gradients flow through both into the outputs.
        """
        log_std = outputs[:, self.size :].clamp(*LOG_STD_RANGE)
        raw = outputs[:, : self.size] + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
        # log(1 - tanh(raw)^2) in a stable form: the plain one is log 0 for large actions.
        log_slope = 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))
        return raw.tanh(), (log_prob - log_slope).sum(1)

    def _shaped(self, actions: np.ndarray) -> np.ndarray:
        return actions.reshape(len(actions), *self._shape)


def build_distribution(space: gym.Space[Any]) -> Distribution:
    """Build the distribution over an action space."""
    if isinstance(space, gym.spaces.Discrete):
        return Categorical([int(space.n)], single=True)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return Categorical(space.nvec.tolist(), single=False)
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli(tuple(space.shape))
    if isinstance(space, gym.spaces.Box):
        return Gaussian(tuple(space.shape))
    raise SpaceError(f"there is no distribution over actions of {space}")
