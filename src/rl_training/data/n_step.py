"""N-step returns: each stored transition spans `n_step` env steps.

    R = r_t + gamma r_{t+1} + ... + gamma^(m-1) r_{t+m-1},   next_obs = s_{t+m},   discounts = gamma^m

with m = n_step, or fewer where the episode ends earlier. After a termination nothing is added to R; after a truncation
the target bootstraps from s_{t+m}. Sutton 1988, Learning to predict by the methods of temporal differences.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.core.spaces import Field
from rl_training.core.state_checks import stored_array, stored_count
from rl_training.core.types import StateDict
from rl_training.errors import CheckpointError


class NStepWindows:
    """The last steps of each env that do not have n_step rewards yet."""

    def __init__(self, n_step: int, gamma: float, num_envs: int, fields: Mapping[str, Field]) -> None:
        """`fields`: those of the transitions that `push` returns."""
        self.n_step, self.num_envs = n_step, num_envs
        # The fields of the first step of a transition; the others (next_*, terminated) are those of its last step.
        self.starts = {
            name: np.zeros((n_step, num_envs, *field.shape), field.dtype)
            for name, field in fields.items()
            if f"next_{name}" in fields or name == "actions"
        }
        computed = {*self.starts, "rewards", "discounts"}
        self._last_step_fields = [name for name in fields if name not in computed]
        self._observations = [name for name in self.starts if f"next_{name}" in fields]
        powers = gamma ** np.arange(n_step + 1)
        slots = np.arange(n_step)
        self._decays = powers[(slots[:, None] - slots) % n_step][:, :, None]  # [now, slot]: gamma^(steps since)
        self._discounts = powers[n_step - slots].astype(np.float32)  # by the age of a start relative to the oldest
        self._full_discounts = np.full(num_envs, powers[n_step], np.float32)
        self._returns = np.zeros((n_step, num_envs))
        self._clock = 0  # steps taken; step t is in slot t % n_step
        self._window_starts = np.zeros(num_envs, np.int64)  # the first step in the window of each env
        self._newest_start = 0  # the largest of these
        self._last_obs: dict[str, np.ndarray] = {}  # the newest observations, named as in the first step
        self._resumed = False

    def push(self, transitions: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take one step of every env, row i from env i, and return the transitions that it completes, oldest first.

        The returned arrays may change at the next call.
        """
        now = self._clock
        slot = now % self.n_step
        if self._resumed:
            self._drop_broken(transitions)
        for name, ring in self.starts.items():
            ring[slot] = transitions[name]
        self._returns[slot] = 0.0
        self._returns += self._decays[slot] * transitions["rewards"]
        self._clock += 1
        self._last_obs = {name: transitions[f"next_{name}"] for name in self._observations}
        ended = transitions["terminated"] | transitions["truncated"]
        is_steady = self._clock - self._newest_start >= self.n_step and not any(ended.tolist())  # faster than `.any()`
        return self._complete_oldest(transitions) if is_steady else self._complete_ended(transitions, ended)

    def _complete_oldest(self, transitions: Mapping[str, Any]) -> dict[str, Any]:
        """Return one transition per env: all windows are full and no episode ended."""
        oldest = self._clock % self.n_step
        completed = {name: ring[oldest] for name, ring in self.starts.items()}
        completed["rewards"], completed["discounts"] = self._returns[oldest], self._full_discounts
        for name in self._last_step_fields:
            completed[name] = transitions[name]
        return completed

    def _complete_ended(self, transitions: Mapping[str, Any], ended: np.ndarray) -> dict[str, Any]:
        """Return the transitions that are n_step long, and all of the episodes that ended."""
        times = np.arange(self._clock - self.n_step, self._clock)
        is_complete = ended | (times == times[0])[:, None]
        starts, envs = np.nonzero(is_complete & (times[:, None] >= self._window_starts))
        slots = times[starts] % self.n_step
        completed = {name: ring[slots, envs] for name, ring in self.starts.items()}
        completed["rewards"], completed["discounts"] = self._returns[slots, envs], self._discounts[starts]
        for name in self._last_step_fields:
            completed[name] = np.asarray(transitions[name])[envs]
        if ended.any():
            self._window_starts[ended] = self._newest_start = self._clock
        return completed

    def _stored_newest(self, values: Any, name: str) -> np.ndarray:
        ring = self.starts[name]
        newest: np.ndarray = stored_array(values, f"the newest {name}", ring.shape[1:], ring.dtype).copy()
        return newest

    def _drop_broken(self, transitions: Mapping[str, Any]) -> None:
        """Restart the window of each env that does not continue its episode: a resume may start a new one instead."""
        for name, expected in self._last_obs.items():
            is_same = np.asarray(transitions[name]) == expected
            broken = ~is_same.reshape(self.num_envs, -1).all(1)
            if broken.any():
                self._window_starts[broken] = self._newest_start = self._clock
        self._resumed = False

    def state_dict(self) -> StateDict:
        return {
            "starts": self.starts,
            "returns": self._returns,
            "clock": self._clock,
            "begun": self._window_starts,
            "last": self._last_obs,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, ring in [*self.starts.items(), ("returns", self._returns)]:
            stored = state["returns"] if name == "returns" else state["starts"][name]
            ring[:] = stored_array(stored, f"the stored n-step windows' {name}", ring.shape, ring.dtype)
        self._clock = stored_count(state["clock"], "the clock of the n-step windows")
        starts = stored_array(state["begun"], "the starts of the n-step windows", (self.num_envs,), np.int64)
        if (starts < 0).any() or (starts > self._clock).any():
            raise CheckpointError(f"the n-step windows must start at 0 to {self._clock}, found {starts}")
        self._window_starts[:] = starts
        self._newest_start = int(starts.max())
        self._last_obs = {name: self._stored_newest(values, name) for name, values in state["last"].items()}
        self._resumed = True
