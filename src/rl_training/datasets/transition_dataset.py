"""`TransitionDataset`: recorded transitions to learn from, checked once and never changed."""

from dataclasses import dataclass, field, replace

import numpy as np
from gymnasium.spaces import Box

from rl_training.core.spaces import Spaces, observation_field, to_env_actions, transition_fields
from rl_training.datasets.checks import (
    cast_column,
    check_actions,
    check_observations,
    from_env_actions,
    refuse_non_finite,
    resolve_spaces,
)
from rl_training.datasets.transitions import Transitions, rows_of_the_file
from rl_training.errors import DatasetError


@dataclass(frozen=True, eq=False, kw_only=True)
class TransitionDataset:
    """N transitions in the order in which they were recorded, as read-only arrays.

    `actions` are in [-1, 1] for a Box, and indices from 0 for choices. Targets bootstrap at `truncated` and not at
    `terminated`; `next_obs` is the true next observation in either case. An episode ends at a row with one of these
    flags, and at the last row.
    """

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    spaces: Spaces
    env_id: str = ""  # empty if unknown
    source: str = "the dataset"  # for messages
    episode_ends: np.ndarray = field(init=False)  # the last row of each episode, ascending

    def __post_init__(self) -> None:
        fields = {**transition_fields(self.spaces), "truncated": transition_fields(self.spaces)["terminated"]}
        rows = len(self.rewards)
        if rows == 0:
            raise DatasetError(f"{self.source} is empty: it has no rows")
        for name, expected in fields.items():
            array = getattr(self, name)
            if array.shape != (rows, *expected.shape) or array.dtype != expected.dtype:
                raise DatasetError(
                    f"{self.source}: {name} must have shape {(rows, *expected.shape)} and dtype {expected.dtype}, "
                    f"found {array.shape} and {array.dtype}"
                )
        for name in ("obs", "next_obs"):
            check_observations(name, getattr(self, name), self.spaces.observation, self.source)
        refuse_non_finite("rewards", self.rewards, self.source)
        check_actions(self.actions, self.spaces.action, self.source)
        ends = self.terminated | self.truncated
        ends[-1] = True
        object.__setattr__(self, "episode_ends", np.flatnonzero(ends))
        for name in (*fields, "episode_ends"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def from_transitions(cls, transitions: Transitions, env_spaces: Spaces | None = None) -> "TransitionDataset":
        """Build a dataset from the columns of a file. `env_spaces`: those of the environment, if there is one."""
        with rows_of_the_file(transitions):
            return cls._from_columns(transitions, env_spaces)

    @classmethod
    def _from_columns(cls, transitions: Transitions, env_spaces: Spaces | None) -> "TransitionDataset":
        source = transitions.source
        known = resolve_spaces(transitions, env_spaces)
        observation = observation_field(known.observation)
        obs, next_obs = (
            cast_column(name, array, observation.shape, observation.dtype, source)
            for name, array in (
                ("observations", transitions.observations),
                ("next_observations", transitions.next_observations),
            )
        )
        with np.errstate(over="ignore"):  # a value that float32 cannot hold is rejected as not finite
            rewards = transitions.rewards.astype(np.float32)
        return cls(
            obs=obs,
            actions=from_env_actions(transitions.actions, known.action, source),
            rewards=rewards,
            next_obs=next_obs,
            terminated=transitions.terminations,
            truncated=transitions.truncations,
            spaces=known,
            env_id=transitions.env_id,
            source=source,
        )

    def to_transitions(self) -> Transitions:
        """Return the columns as files hold them, with the actions of the environment."""
        # In float64, so that reading them returns the same float32 actions.
        actions = self.actions.astype(np.float64) if isinstance(self.spaces.action, Box) else self.actions
        return Transitions(
            source=self.source,
            observations=self.obs,
            actions=to_env_actions(self.spaces.action)(actions),
            rewards=self.rewards,
            next_observations=self.next_obs,
            terminations=self.terminated,
            truncations=self.truncated,
            spaces=self.spaces,
            env_id=self.env_id,
        )

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episode_starts(self) -> np.ndarray:
        return np.concatenate([[0], self.episode_ends[:-1] + 1])

    def episode_lengths(self) -> np.ndarray:
        lengths: np.ndarray = self.episode_ends - self.episode_starts + 1
        return lengths

    def episode_returns(self) -> np.ndarray:
        """Return the sum of the rewards of each episode, (episodes,) float64."""
        returns: np.ndarray = np.add.reduceat(self.rewards.astype(np.float64), self.episode_starts)
        return returns

    def split(self, held_out: float, seed: int) -> tuple["TransitionDataset", "TransitionDataset"]:
        """Split off a share of the episodes, chosen at random by `seed`: (to learn from, held out)."""
        episodes = len(self.episode_ends)
        if not 0.0 < held_out < 1.0:
            raise DatasetError(f"held_out must be in (0, 1), got {held_out}")
        if episodes < 2:
            raise DatasetError(
                f"{self.source} has a single episode, so none can be held out; set held_out to 0 and evaluate in an "
                "environment, env_id"
            )
        count = min(max(1, round(held_out * episodes)), episodes - 1)
        chosen = np.zeros(episodes, np.bool_)
        chosen[np.random.default_rng(seed).permutation(episodes)[:count]] = True
        rows = np.repeat(chosen, self.episode_lengths())
        return self._rows(~rows), self._rows(rows)

    def first(self, count: int) -> "TransitionDataset":
        """Return the first `count` rows; an episode that continues beyond them ends there."""
        return self if count >= len(self) else self._rows(np.arange(len(self)) < count)

    def with_shuffled_actions(self, seed: int) -> "TransitionDataset":
        """Return a copy whose actions are permuted over all rows: a control, independent of the observations."""
        return replace(self, actions=np.random.default_rng(seed).permutation(self.actions))

    def _rows(self, chosen: np.ndarray) -> "TransitionDataset":
        """Return the chosen rows as a dataset."""
        truncated = self.truncated.copy()
        # The last episode may have neither flag at its end: it ends only because no row follows. Mark it.
        truncated[-1] |= not self.terminated[-1]
        return TransitionDataset(
            obs=self.obs[chosen],
            actions=self.actions[chosen],
            rewards=self.rewards[chosen],
            next_obs=self.next_obs[chosen],
            terminated=self.terminated[chosen],
            truncated=truncated[chosen],
            spaces=self.spaces,
            env_id=self.env_id,
            source=self.source,
        )
