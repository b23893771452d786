"""Learn from a replay buffer on the device: acting and updates of an off-policy algorithm as pure functions.

Random numbers are functions of counters, so that a CUDA graph can hold whole iterations
(runtime/device_replay_loop.py).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.acceleration.steps import Step
from rl_training.core.counters import LEARNING_LANE, Keys
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError
from rl_training.learners.random_inputs import RandomInput, noise, normal, uniform
from rl_training.models.layers import noise_factors

_CHOICE = LEARNING_LANE + 1  # of an exploring action
_NOISE = LEARNING_LANE + 2  # of noisy layers that act
_FIRST_INPUT = LEARNING_LANE + 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLearner:
    """An off-policy algorithm as the device loop uses it: pure functions, and what the host decides.

    `draw` reads `params`, the entry of the state of that name, and `exploration`, 0-d. `kind_of`: which of the steps an
    update is, by its number.
    """

    params: str
    draw: Callable[[State, Tensor, Keys], Tensor]
    steps: Mapping[str, Step]
    kind_of: Callable[[int], str]
    exploration: Callable[[int], float]  # by env step
    rates: Mapping[str, float]  # learning rates at the start, by their names in the state
    rates_left: Callable[[], float]  # the share of them that the next update uses
    seed: int  # of the random inputs
    keep: Callable[[Metrics], Metrics]  # takes the metrics of an update and returns those of the run


def with_random_inputs(step: Step, inputs: Mapping[str, RandomInput]) -> Step:
    """Return the step with its random inputs drawn by counters.

    Its batch also holds `seed` and `update`, 0-d, and `row`, (batch,): int64 numbers of who asks.
    """
    for name, draw in inputs.items():
        if draw.fill not in _NUMBERS:
            raise ConfigError(f"execution_backend: tensor cannot draw the random input {name} of this algorithm")

    def drawing(state: State, batch: Batch) -> tuple[State, Metrics]:
        batch = dict(batch)
        row, update, seed = (batch.pop(name) for name in ("row", "update", "seed"))
        for number, (name, draw) in enumerate(inputs.items()):
            rows = row if draw.shape[0] == len(row) else row[:1]  # what belongs to no single row is asked for by one
            keys = Keys(seed.expand_as(rows), rows, torch.zeros_like(rows), update.expand_as(rows))
            numbers = _NUMBERS[draw.fill](keys, _FIRST_INPUT + number, math.prod(draw.shape) // len(rows))
            batch[name] = numbers.reshape(draw.shape)
        return step(state, batch)

    return drawing


def acting_noise(keys: Keys, count: int) -> Tensor:
    """Return the noise of noisy layers for one step, a row of it for each environment: (rows, count)."""
    return _noise(keys, _NOISE, count)


def _noise(keys: Keys, lane: int, count: int) -> Tensor:
    return noise_factors(keys.normal(lane, count))


# How the numbers of a random input are drawn by counters: (keys, lane, count) -> (rows, count).
_NUMBERS: dict[Callable[..., object], Callable[[Keys, int, int], Tensor]] = {
    uniform: Keys.uniform,
    normal: Keys.normal,
    noise: _noise,
}


def epsilon_greedy(q_values: Tensor, epsilon: Tensor, keys: Keys) -> Tensor:
    """Return the best action of each row, or any with probability `epsilon`: (rows, actions) -> (rows,)."""
    is_random = keys.uniform(LEARNING_LANE, 1)[:, 0] < epsilon
    return torch.where(is_random, keys.below(_CHOICE, q_values.shape[1]), q_values.argmax(1))


def warm_up(actions: Tensor, is_warm_up: Tensor, keys: Keys) -> Tensor:
    """Return the actions, or uniformly random ones in [-1, 1) during the warm-up."""
    size = math.prod(actions.shape[1:])
    return torch.where(is_warm_up > 0.5, (2.0 * keys.uniform(_CHOICE, size) - 1.0).view_as(actions), actions)
