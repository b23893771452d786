"""The return that follows a transition in its episode.

    G_t = r_t + gamma * G_{t+1}       after a termination G = 0; after a time limit G = r_T / (1 - gamma)

After a time limit the last reward r_T is taken to continue. An episode with the same reward at every step that never
reaches its goal then has G = r / (1 - gamma) everywhere, as Cal-QL sets it for sparse rewards.

Beside each return, `discount_sums` holds the one of rewards of 1: constants added to rewards change returns by that.
Nakamoto et al. 2023, Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.core.spaces import Field
from rl_training.core.state_checks import stored_array
from rl_training.core.types import StateDict
from rl_training.data.row_storage import Allocate, RowStorage
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import CheckpointError

RETURN_FIELDS = {name: Field((), np.dtype(np.float32)) for name in ("returns_to_go", "discount_sums")}
UNKNOWN = np.float32(-1e30)  # the return of a step whose episode has not ended: below every value


def returns_to_go(rewards: np.ndarray, gamma: float, *, terminated: bool) -> np.ndarray:
    """Return the discounted return that follows each step of one episode, (steps,) float64."""
    returns: np.ndarray = np.empty(len(rewards))
    following = 0.0 if terminated else float(rewards[-1]) / (1.0 - gamma)
    for step in range(len(rewards) - 1, -1, -1):
        following = float(rewards[step]) + gamma * following
        returns[step] = following
    return returns


def episode_columns(rewards: np.ndarray, gamma: float, *, terminated: bool) -> dict[str, np.ndarray]:
    """Return the columns of one episode, by the names of `RETURN_FIELDS`."""
    return {
        "returns_to_go": returns_to_go(rewards, gamma, terminated=terminated),
        "discount_sums": returns_to_go(np.ones(len(rewards)), gamma, terminated=terminated),
    }


def dataset_returns(dataset: TransitionDataset, gamma: float) -> dict[str, np.ndarray]:
    """Return the columns of a dataset; its last episode may have no end, which counts as a time limit."""
    columns: dict[str, np.ndarray] = {name: np.empty(len(dataset), np.float32) for name in RETURN_FIELDS}
    for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
        episode = slice(start, end + 1)
        found = episode_columns(dataset.rewards[episode], gamma, terminated=bool(dataset.terminated[end]))
        for name, values in found.items():
            columns[name][episode] = values
    return columns


class ReturnRows(RowStorage):
    """Rows of several envs in turn, whose returns are written when their episode ends."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        gamma: float,
        num_envs: int,
        allocate: Allocate = np.zeros,
    ) -> None:
        """`fields`: with `RETURN_FIELDS`."""
        super().__init__(capacity, fields, allocate=allocate)
        self._gamma, self._num_envs = gamma, num_envs
        self._steps: np.ndarray = np.zeros(num_envs, np.int64)  # of each env's episode so far
        self._resumed = False

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store one step of every env, row i from env i."""
        if self._resumed:
            self._drop_broken(transitions)
        unknown = {"returns_to_go": np.full(self._num_envs, UNKNOWN), "discount_sums": np.zeros(self._num_envs)}
        super().add({**transitions, **unknown})
        self._steps += 1
        ended = transitions["terminated"] | transitions["truncated"]
        for env in np.flatnonzero(ended):
            self._end_episode(int(env), terminated=bool(transitions["terminated"][env]))

    def state_dict(self) -> StateDict:
        return {**super().state_dict(), "open_steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        steps = stored_array(state["open_steps"], "the steps of the open episodes", (self._num_envs,), np.int64)
        if (steps < 0).any():
            raise CheckpointError(f"the steps of the open episodes must not be negative, found {steps}")
        self._steps[:] = steps
        self._resumed = self.end > self.first

    def _end_episode(self, env: int, *, terminated: bool) -> None:
        """Write the returns of the rows of an episode that are still stored; its newest row is its last."""
        last = self.end - self._num_envs + env
        stored = min(int(self._steps[env]), (last - self.first) // self._num_envs + 1)
        places = (last - np.arange(stored)[::-1] * self._num_envs) % self.capacity
        for name, values in episode_columns(self.arrays["rewards"][places], self._gamma, terminated=terminated).items():
            self.arrays[name][places] = values
        self._steps[env] = 0

    def _drop_broken(self, transitions: Mapping[str, Any]) -> None:
        """Forget the episodes that a resume could not continue: their returns stay unknown."""
        newest = np.arange(self.end - self._num_envs, self.end) % self.capacity
        is_same = np.asarray(transitions["obs"]) == self.arrays["next_obs"][newest]
        self._steps[~is_same.reshape(self._num_envs, -1).all(1)] = 0
        self._resumed = False
