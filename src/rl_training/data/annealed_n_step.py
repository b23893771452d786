"""N-step returns that are summed when a batch is sampled, because n and gamma change during the run.

    R = r_t + gamma r_{t+1} + ... + gamma^(m-1) r_{t+m-1},   next_obs = s_{t+m},   discounts = gamma^m

with m = n, or fewer where the episode ends or the newest stored step is reached. Steps are stored one by one, as they
come. Envs take turns: row k is followed in its episode by row k + num_envs.

Schwarzer et al. 2023, Bigger, better, faster: human-level Atari with human-level efficiency.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rl_training.core.setup import Setup
from rl_training.core.spaces import Field
from rl_training.core.state_checks import stored_count
from rl_training.core.types import StateDict
from rl_training.hparams.schedules import annealed_return
from rl_training.models.self_prediction import predicted_steps

# Stored with each row, in addition to the fields of n-step transitions.
TRUNCATED = {"truncated": Field((), np.dtype(np.bool_))}


@runtime_checkable
class AnnealingSettings(Protocol):
    """The settings of algorithms whose n and gamma can change."""

    @property
    def n_step_start(self) -> int | None: ...
    @property
    def gamma_start(self) -> float | None: ...


class StoredRows(Protocol):
    """What windows read of the storage that they belong to."""

    capacity: int
    end: int
    arrays: dict[str, np.ndarray]


class AnnealedWindows:
    """Sums the rewards of sampled rows; counts the batches, which are the updates of the run."""

    def __init__(self, schedule: Callable[[int], tuple[int, float]], *, longest: int, num_envs: int) -> None:
        """`schedule`: the number of updates so far -> n and gamma of the next one. `longest`: the largest n, from 2."""
        self._schedule, self.longest, self._num_envs = schedule, longest, num_envs
        self._num_batches = 0
        self._resumed = False

    def push(self, transitions: Mapping[str, Any], rows: StoredRows) -> Mapping[str, Any]:
        """Return one step of every env as it is stored; `discounts` is set when it is sampled."""
        if self._resumed:
            self._end_broken(transitions, rows)
        return {**transitions, "discounts": np.zeros(len(transitions["rewards"]), np.float32)}

    def sum_rewards(self, places: np.ndarray, batch: Mapping[str, np.ndarray], rows: StoredRows) -> None:
        """Turn the steps in a batch, those in these places, into transitions of several steps."""
        n_step, gamma = self._schedule(self._num_batches)
        self._num_batches += 1
        stored, capacity = rows.arrays, rows.capacity
        numbers = rows.end - 1 - (rows.end - 1 - places) % capacity
        returns = np.zeros(len(places))
        lengths = np.zeros(len(places), np.int64)
        goes_on = np.ones(len(places), np.bool_)
        for step in range(n_step):
            now = numbers + step * self._num_envs
            at = now % capacity
            returns += np.where(goes_on, gamma**step * stored["rewards"][at], 0.0)
            lengths += goes_on
            ended = stored["terminated"][at] | stored["truncated"][at]
            goes_on &= ~ended & (now + self._num_envs < rows.end)
        last = (numbers + (lengths - 1) * self._num_envs) % capacity
        for name in batch:
            if name.startswith("next_") or name in ("terminated", "truncated"):
                batch[name][:] = stored[name][last]
        batch["rewards"][:] = returns
        batch["discounts"][:] = gamma**lengths

    def state_dict(self) -> StateDict:
        return {"num_batches": self._num_batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_batches = stored_count(state["num_batches"], "the number of sampled batches")
        self._resumed = True

    def _end_broken(self, transitions: Mapping[str, Any], rows: StoredRows) -> None:
        """Mark the newest row of each env that does not continue its episode: a resume may start a new one instead."""
        self._resumed = False
        if rows.end < self._num_envs:
            return
        newest = np.arange(rows.end - self._num_envs, rows.end) % rows.capacity
        for name in ("obs", "obs_frames"):
            if name in rows.arrays:
                is_same = np.asarray(transitions[name]) == rows.arrays[f"next_{name}"][newest]
                rows.arrays["truncated"][newest] |= ~is_same.reshape(self._num_envs, -1).all(1)


def build_annealed_windows(setup: Setup[Any]) -> AnnealedWindows | None:
    """Return the windows that the settings describe, or None if n and gamma stay as they are.

    Self-prediction needs steps that are stored one by one, and therefore windows in any case.
    """
    hparams = setup.hparams
    if not isinstance(hparams, AnnealingSettings):
        return None
    if hparams.n_step_start is None and hparams.gamma_start is None and not predicted_steps(setup):
        return None
    longest = max(2, setup.hparams.n_step, hparams.n_step_start or 1)
    return AnnealedWindows(
        lambda updates: annealed_return(setup.hparams, updates, setup.total_updates),
        longest=longest,
        num_envs=setup.num_envs,
    )
