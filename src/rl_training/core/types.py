"""The interfaces of algorithms (act, update, state) and memories, and the types that they exchange."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from torch import Tensor

from rl_training.errors import TrainingError

Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]
State = dict[str, Tensor]
StateDict = dict[str, Any]  # nested; leaves are tensors, arrays, numbers, strings
Carry = dict[str, np.ndarray]  # recurrent state of the episode of each env, (envs, ...) each; zeros at its start


@dataclass(frozen=True, slots=True)
class ActResult:
    """Actions for a batch of observations; `to_env_actions` converts them to those of the environment."""

    actions: np.ndarray  # indices from 0, or values in [-1, 1]
    carry: Carry | None = None  # to pass to a recurrent algorithm at the next step


@dataclass(frozen=True, slots=True)
class PendingActions:
    """Actions that wait for the outputs of the policy's network: all that is drawn for them is drawn."""

    inputs: np.ndarray  # of the network, one row per env
    finish: Callable[[np.ndarray], ActResult]  # from its outputs
    noise: np.ndarray | None = None  # of noisy layers, (envs, numbers)


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of one call of `update`."""

    metrics: Metrics
    num_gradient_steps: int = 1
    td_errors: Tensor | None = None  # per row, for prioritized replay


TD_ERRORS = "td_errors"  # metric of a step, (batch,): what the priorities of its rows follow from


def without_td_errors(metrics: Metrics) -> Metrics:
    """Return the metrics of a step without the errors of single rows."""
    return {name: value for name, value in metrics.items() if name != TD_ERRORS}


class Algorithm(Protocol):
    """The interface that loops, evaluation and checkpoints use."""

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        """Choose an action for each row of `obs`, (batch, *shape); greedy unless `explore`.

        `action_mask`: (batch, choices), True where a choice is allowed.
        """
        ...

    def update(self, batch: Batch) -> UpdateResult:
        """Learn from a batch: one gradient step, or all gradient steps on a rollout."""
        ...

    def status(self, step: int) -> dict[str, float]:
        """Return the scheduled values at `step` for the log, such as epsilon."""
        ...

    def policy_state_dict(self) -> StateDict:
        """Return the state that acting needs, by the names of the parameters of the network."""
        ...

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def state_dict(self) -> StateDict:
        """Return the state that resuming needs in addition to the policy: targets, optimizers, generators, counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class Observer(Protocol):
    """An algorithm that keeps statistics of observations or rewards of training, which evaluations must not change."""

    def observe(self, transitions: Mapping[str, np.ndarray]) -> None:
        """Take note of the latest step of the envs, as the collector returns it: one row per env."""
        ...


class Exploring(Protocol):
    """An algorithm that can draw its exploration before its network is evaluated."""

    def begin_act(
        self, obs: np.ndarray, *, step: int, action_mask: np.ndarray | None = None, carry: Carry | None = None
    ) -> ActResult | PendingActions:
        """Draw what an exploring `act` draws; return its actions, or what they still need."""
        ...


class Recurrent(Algorithm, Protocol):
    """An algorithm whose actions depend on the episode so far. It is stateless: `act` returns a carry."""

    def act(
        self,
        obs: np.ndarray,
        *,
        step: int = 0,
        explore: bool = False,
        action_mask: np.ndarray | None = None,
        carry: Carry | None = None,
    ) -> ActResult:
        """Choose actions as any algorithm does.

        `carry`: what it returned at the previous step. None, or rows of zeros, at the start of an episode.
        """
        ...


class DeviceAlgorithm(Algorithm, Protocol):
    """An algorithm that can learn on its device from tensor environments."""

    num_updates: int

    def on_device(self) -> Any:
        """Return its acting and updates as pure functions: a `RolloutLearner` or `ReplayLearner` (learners/)."""
        ...

    @property
    def state(self) -> State:
        """Everything that an update changes."""
        ...

    @property
    def use_state(self) -> Callable[[State], None]:
        """Replace the tensors of the state by others, which hold the same numbers."""
        ...


class RolloutAlgorithm(DeviceAlgorithm, Protocol):
    """An on-policy algorithm that can learn on its device."""

    def begin_learning(self) -> Mapping[str, float]:
        """Count the next update; return the entries of the state that the host decides for it, such as step sizes."""
        ...


class Decision(NamedTuple):
    """What a `GreedyPolicy` returns for a batch of observations."""

    actions: Tensor  # as in `ActResult`
    scores: Tensor | None = None  # (batch, choices): Q-values or logits, if actions are choices
    carry: tuple[Tensor, ...] = ()


class GreedyPolicy(Protocol):
    """The policy of an algorithm without exploration as an `nn.Module`, for exports."""

    @property
    def carry(self) -> Mapping[str, int]:
        """The names of the parts of the carry, and their numbers per row; empty if the policy has none."""
        ...

    @property
    def normalizes(self) -> bool:
        """Whether observations are normalised by statistics of the run."""
        ...

    def __call__(self, obs: Tensor | Sequence[Tensor], action_mask: Tensor | None, *carry: Tensor) -> Decision:
        """Choose as `act` does. `obs`: (batch, *shape); the parts of a Dict observation may come separately."""
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
    """Call `act` of any algorithm, with the carry that it returned at the previous step, if any.

    Raises `TrainingError` for an action that is not finite: an environment would be blamed for what it does with it.
    """
    if carry is None:
        chosen = algorithm.act(obs, step=step, explore=explore, action_mask=action_mask)
    else:
        recurrent = cast(Recurrent, algorithm)
        chosen = recurrent.act(obs, step=step, explore=explore, action_mask=action_mask, carry=carry)
    return checked_actions(chosen, step)


def checked_actions(chosen: ActResult, step: int) -> ActResult:
    """Return the actions; raise `TrainingError` if one is not finite."""
    actions = chosen.actions
    if actions.dtype.kind == "f" and not np.isfinite(actions).all():
        row = int(np.isfinite(actions).reshape(len(actions), -1).all(1).argmin())
        kind = "a NaN action" if np.isnan(actions[row]).any() else "an infinite action"
        raise TrainingError(
            f"the policy produced {kind} for env {row} at env step {step}: {actions[row]}; training has diverged; "
            "a smaller learning_rate or max_grad_norm usually helps"
        )
    return chosen


def reset_carry(carry: Carry | None, rows: Sequence[int]) -> Carry | None:
    """Return a copy of the carry with these rows, whose episodes start, set to zero."""
    if carry is None or not rows:
        return carry
    reset = {name: values.copy() for name, values in carry.items()}
    for values in reset.values():
        values[rows] = 0
    return reset


class Memory(Protocol):
    """Stores what the collector adds; its state can be saved."""

    def add(self, transitions: Mapping[str, Any]) -> None: ...

    def __len__(self) -> int: ...

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Replay(Memory, Protocol):
    """The memory of the off-policy loop: samples batches of what is stored."""

    def sample(self, batch_size: int) -> Batch: ...

    def sampler(self, batch_size: int) -> Callable[[], Batch]:
        """Return a function that samples into the same tensors at every call."""
        ...

    def update_priorities(self, td_errors: Tensor) -> None:
        """Set the priorities of the rows of the last batch from their TD errors: (batch,), not negative."""
        ...


class Rollouts(Memory, Protocol):
    """The memory of the on-policy loop: holds what was collected since the last update."""

    @property
    def full(self) -> bool: ...

    def rollout(self) -> Batch:
        """Return the rows of all envs and steps, and clear the memory. It must be full."""
        ...
