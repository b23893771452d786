"""What a member of the off-policy actor-critics brings to `ActorCritic`."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import Batch, Metrics, State
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.random_inputs import RandomInput


class ActorCriticRecipe(Protocol):
    """What a member of the family brings."""

    @property
    def actor(self) -> FlatModule: ...

    @property
    def critics(self) -> FlatModule: ...

    def state(self) -> State:
        """Return the first values of everything that an update changes, `actor.params` among them."""
        ...

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        """Return what is drawn for `rounds` updates of `rows` rows each; with `actor`, for the actor's step, too."""
        ...

    def explore(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return exploring actions for the actor's outputs, (rows, outputs) -> (rows, *action).

        `noise`: standard normal numbers, (rows, numbers); for choices, noise on their logits, (rows, actions).
        """
        ...

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """Return the actions without exploration for the actor's outputs."""
        ...

    def values(self, state: State, obs: Tensor, actions: Tensor) -> Tensor:
        """Return what every critic expects of each row: (critics, batch)."""
        ...

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take the critics' step: return the entries of the state that change, and metrics with td_errors, (batch,)."""
        ...

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take the actor's step: return the entries of the state that change, and metrics."""
        ...


class DeviceRecipe(ActorCriticRecipe, Protocol):
    """A recipe that can act on the device."""

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        """Return exploring actions for the actor's outputs, by counters: a pure function."""
        ...
