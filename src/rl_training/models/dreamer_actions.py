"""The actions of Dreamer's policy by kind of space: drawn from the actor's outputs, and encoded for the world model.

Random numbers are arguments, so that a step stays a pure function. Shapes may begin with any axes, written `...`.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import gymnasium as gym
import torch
from torch import Tensor

from rl_training.errors import SpaceError
from rl_training.models.dreamer_latents import draw_index, mixed_probs, unit_vectors

STD_RANGE = (0.1, 1.0)
_LOG_TWO_PI = math.log(2.0 * math.pi)


class Actions(Protocol):
    """What the outputs of the actor mean."""

    num_outputs: int  # of the actor
    num_inputs: int  # of the world model
    noise_size: int  # random numbers per action
    noise: Literal["uniform", "normal"]  # in [0, 1), or standard normal

    def draw(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Sample an action, (..., outputs) -> (..., *shape); without noise, return the most likely one."""
        ...

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions as the world model sees them: (..., *shape) -> (..., inputs)."""
        ...

    def evaluate(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability (or density) of the actions and the entropy, both summed over an action: (...)."""
        ...

    def scores(self, outputs: Tensor) -> Tensor | None:
        """Return what an exported policy decides by: logits, one per choice or switch; None for numbers."""
        ...


class Choices:
    """One or several independent choices, whose probabilities contain a uniform share; the world model sees one-hots.

    A MultiBinary is an array of choices between 0 and 1.
    """

    noise: Literal["uniform", "normal"] = "uniform"

    def __init__(
        self, sizes: Sequence[int], shape: tuple[int, ...], *, unimix: float, are_switches: bool = False
    ) -> None:
        """`sizes`: the number of options of each choice. `shape`: that of an action, () for a single choice."""
        self.num_outputs = self.num_inputs = sum(sizes)
        self.noise_size = len(sizes)
        self._shape, self._unimix, self._are_switches = shape, unimix, are_switches
        # Neighbours with equally many options are computed together: (choices, options).
        self._groups = [(len(list(group)), size) for size, group in itertools.groupby(sizes)]
        self._counts = [count for count, _ in self._groups]

    def draw(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        probs = self._probs(outputs)
        if noise is None:
            drawn = [part.argmax(-1) for part in probs]
        else:
            drawn = [draw_index(*pair) for pair in zip(probs, noise.split(self._counts, -1), strict=True)]
        return torch.cat(drawn, -1).reshape(*outputs.shape[:-1], *self._shape)

    def encode(self, actions: Tensor) -> Tensor:
        return torch.cat([one_hot.flatten(-2) for one_hot in self._one_hots(actions)], -1)

    def evaluate(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = [part.log() for part in self._probs(outputs)]
        pairs = list(zip(log_probs, self._one_hots(actions), strict=True))
        # Not `gather`: its gradient adds with atomics, which is slow in the deterministic mode of a GPU.
        log_prob = torch.stack([(one_hot * part).sum((-2, -1)) for part, one_hot in pairs]).sum(0)
        entropy = torch.stack([-(part.exp() * part).sum((-2, -1)) for part, _ in pairs]).sum(0)
        return log_prob, entropy

    def scores(self, outputs: Tensor) -> Tensor | None:
        log_probs = torch.cat([part.log().flatten(-2) for part in self._probs(outputs)], -1)
        return log_probs[..., 1::2] - log_probs[..., ::2] if self._are_switches else log_probs

    def _probs(self, outputs: Tensor) -> list[Tensor]:
        """Return (..., choices, options) of each group."""
        parts = outputs.split([count * size for count, size in self._groups], -1)
        return [
            mixed_probs(part.unflatten(-1, group), self._unimix)
            for part, group in zip(parts, self._groups, strict=True)
        ]

    def _one_hots(self, actions: Tensor) -> list[Tensor]:
        """Return (..., choices, options) of each group."""
        rows = actions.reshape(*actions.shape[: actions.ndim - len(self._shape)], -1)
        parts = rows.split(self._counts, -1)
        return [unit_vectors(part, size) for part, (_, size) in zip(parts, self._groups, strict=True)]


class BoundedNormal:
    """Independent normal numbers with means in (-1, 1) and standard deviations in STD_RANGE, about 0.9 at first.

    Outputs are the means, then the deviations. Samples are not bounded: the environment and the world model get them
    clipped to [-1, 1], and the density is that of the number before.
    """

    noise: Literal["uniform", "normal"] = "normal"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self.num_inputs = self.noise_size = math.prod(shape)
        self.num_outputs = 2 * self.num_inputs

    def draw(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        mean, std = self._moments(outputs)
        drawn = mean if noise is None else mean + std * noise
        return drawn.reshape(*outputs.shape[:-1], *self._shape)

    def encode(self, actions: Tensor) -> Tensor:
        return self._rows(actions).clamp(-1.0, 1.0)

    def evaluate(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self._moments(outputs)
        error = (self._rows(actions).detach() - mean) / std
        log_prob = (-0.5 * error.square() - std.log() - 0.5 * _LOG_TWO_PI).sum(-1)
        return log_prob, (std.log() + 0.5 + 0.5 * _LOG_TWO_PI).sum(-1)

    def scores(self, outputs: Tensor) -> Tensor | None:
        return None

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        low, high = STD_RANGE
        mean, raw = outputs.tensor_split(2, -1)
        return mean.tanh(), (high - low) * (raw + 2.0).sigmoid() + low

    def _rows(self, actions: Tensor) -> Tensor:
        return actions.reshape(*actions.shape[: actions.ndim - len(self._shape)], -1)


def build_actions(space: gym.Space[Any], unimix: float) -> Actions:
    """Return the kind of actions of a space. `unimix`: the uniform share of the probabilities of choices."""
    if isinstance(space, gym.spaces.Discrete):
        return Choices([int(space.n)], (), unimix=unimix)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return Choices(space.nvec.flatten().tolist(), tuple(space.shape), unimix=unimix)
    if isinstance(space, gym.spaces.MultiBinary):
        shape = tuple(space.shape)
        return Choices([2] * math.prod(shape), shape, unimix=unimix, are_switches=True)
    if isinstance(space, gym.spaces.Box):
        return BoundedNormal(tuple(space.shape))
    raise SpaceError(f"there are no actions of {space}")
