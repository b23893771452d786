"""What an algorithm is: act, update, state. Everything that is not learning lives elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.data.schema import Spaces
from rl_training.experiment.seeding import Streams
from rl_training.hparams.base import HParams

Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]
State = dict[str, Tensor]
StateDict = dict[str, Any]  # nested; leaves are tensors, arrays, numbers, texts

H = TypeVar("H", bound=HParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Generic[H]):
    """All that building an algorithm and its memory needs to know about a run."""

    spaces: Spaces
    hparams: H
    total_timesteps: int
    streams: Streams
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    acceleration: str = "eager"
    network: nn.Module | None = None  # the user's own, in place of the default one


@dataclass(frozen=True, slots=True)
class ActResult:
    """Actions for a batch of observations, as indices or values of ours (not yet the environment's)."""

    actions: np.ndarray


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one call of `update` did."""

    metrics: Metrics
    num_gradient_steps: int = 1
    td_errors: Tensor | None = None  # per row, for prioritized replay


class Algorithm(Protocol):
    """The face that loops, evaluation and checkpoints see."""

    def act(self, obs: np.ndarray, *, step: int = 0, explore: bool = False) -> ActResult:
        """Choose an action per row of `obs` (batch, *shape); greedy unless `explore`."""
        ...

    def update(self, batch: Batch) -> UpdateResult:
        """Take one gradient step."""
        ...

    def status(self, step: int) -> dict[str, float]:
        """Name the quantities of the schedules at `step` that a log should show, such as epsilon."""
        ...

    def policy_state_dict(self) -> StateDict:
        """What acting needs, by the names of the network's parameters."""
        ...

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def state_dict(self) -> StateDict:
        """What continuing needs besides the policy: targets, optimizers, generators, counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Memory(Protocol):
    """Takes what the collector brings; gives batches."""

    def add(self, transitions: Mapping[str, Any]) -> None: ...

    def sample(self, batch_size: int) -> Batch: ...

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Give a function that samples into the same batch at every call."""
        ...

    def __len__(self) -> int: ...

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
