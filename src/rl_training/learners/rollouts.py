"""Several epochs of shuffled minibatches on each rollout: what PPO and PQN share."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics


class RolloutSettings(Protocol):
    """The setting that `num_rollouts` reads."""

    @property
    def num_steps(self) -> int: ...


def minibatches(indices: Tensor, rows: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """Shuffle the numbers of all rows, and yield `indices` filled with those of each minibatch in turn.

    It is the same tensor every time: a compiled step recognises tensors it has seen.
    """
    order = torch.from_numpy(generator.permutation(rows))
    for chosen in order.view(-1, len(indices)):
        yield indices.copy_(chosen)


def mean_metrics(history: Sequence[Metrics]) -> Metrics:
    """Return the mean of each metric over the gradient steps of an update."""
    return {name: torch.stack([metrics[name] for metrics in history]).mean() for name in history[0]}


def steps_of(rollout: Batch, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards, terminated and truncated of a rollout, (steps, envs) each."""
    rewards, terminated, truncated = (rollout[name].view(shape) for name in ("rewards", "terminated", "truncated"))
    return rewards, terminated, truncated


def num_rollouts(setup: Setup[RolloutSettings]) -> int:
    """Return how many rollouts the run learns from: one that its end cuts short does not count.

    Several envs may step past the end. On the device the run ends with a whole rollout.
    """
    steps, num_steps = -(-setup.total_timesteps // setup.num_envs), setup.hparams.num_steps
    return -(-steps // num_steps) if setup.device_loop else steps // num_steps
