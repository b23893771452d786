"""What an algorithm is: act, update, state. Everything that is not learning lives elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    pass

Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]
State = dict[str, Tensor]
StateDict = dict[str, Any]  # nested; leaves are tensors, arrays, numbers, texts
Carry = dict[str, np.ndarray]  # what is remembered of each env's episode, (envs, ...) each; zeros where one begins


@dataclass(frozen=True, slots=True)
class ActResult:
    """Actions for a batch of observations, as indices or values of ours: `to_env_actions` makes them the env's."""

    actions: np.ndarray
    carry: Carry | None = None  # what a recurrent algorithm wants to be handed at the next step


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one call of `update` did."""

    metrics: Metrics
    num_gradient_steps: int = 1
    td_errors: Tensor | None = None  # per row, for prioritized replay


class Algorithm(Protocol):
    """The face that loops, evaluation and checkpoints see."""

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        """Choose an action per row of `obs` (batch, *shape); greedy unless `explore`.

        `action_mask`: (batch, choices), True where a choice is allowed.
        """
        ...

    def update(self, batch: Batch) -> UpdateResult:
        """Learn from a batch: one gradient step, or all those that a rollout is good for."""
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


class Recurrent(Algorithm, Protocol):
    """An algorithm whose actions depend on the episode so far: it remembers nothing itself, but gives a carry."""

    def act(
        self,
        obs: np.ndarray,
        *,
        step: int = 0,
        explore: bool = False,
        action_mask: np.ndarray | None = None,
        carry: Carry | None = None,
    ) -> ActResult:
        """As of any algorithm. `carry`: what it gave at the step before; rows of zeros, or None: an episode begins."""
        ...


def act_on(
    algorithm: Algorithm,
    obs: np.ndarray,
    carry: Carry | None,
    *,
    step: int,
    explore: bool = False,
    action_mask: np.ndarray | None = None,
) -> ActResult:
    """Let any algorithm act: one that gave a carry at the step before is handed it."""
    if carry is None:
        return algorithm.act(obs, step=step, explore=explore, action_mask=action_mask)
    recurrent = cast(Recurrent, algorithm)
    return recurrent.act(obs, step=step, explore=explore, action_mask=action_mask, carry=carry)


def reset_carry(carry: Carry | None, rows: Sequence[int]) -> Carry | None:
    """Give a carry in which the episodes of these rows begin."""
    if carry is None or not rows:
        return carry
    begun = {name: values.copy() for name, values in carry.items()}
    for values in begun.values():
        values[rows] = 0
    return begun


class Memory(Protocol):
    """Takes what the collector brings, and can be kept."""

    def add(self, transitions: Mapping[str, Any]) -> None: ...

    def __len__(self) -> int: ...

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Replay(Memory, Protocol):
    """The off-policy loop's memory: gives batches of what it remembers."""

    def sample(self, batch_size: int) -> Batch: ...

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Give a function that samples into the same batch at every call."""
        ...

    def update_priorities(self, td_errors: Tensor) -> None:
        """Learn how wrong the values of the rows of the last batch were: (batch,), not negative."""
        ...


class Rollouts(Memory, Protocol):
    """The on-policy loop's memory: gives what was collected since the last update, once it is full."""

    @property
    def full(self) -> bool: ...

    def rollout(self) -> Batch:
        """Give the rows of all envs and steps, and forget them."""
        ...
