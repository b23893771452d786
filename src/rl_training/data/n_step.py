"""N-step returns: from the steps of each env, transitions over `n_step` of them.

    R = r_t + gamma r_{t+1} + ... + gamma^(m-1) r_{t+m-1},   next_obs = s_{t+m},   discounts = gamma^m

with m = n_step, or fewer where the episode ends before: at a termination, after which nothing is added to R, and at a
truncation, where the value of s_{t+m} is. Sutton 1988, Learning to predict by the methods of temporal differences.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.core.spaces import Field
from rl_training.core.types import StateDict
from rl_training.errors import CheckpointError


class NStepWindows:
    """The last steps of each env, which have not seen n_step rewards yet."""

    def __init__(self, n_step: int, gamma: float, num_envs: int, fields: Mapping[str, Field]) -> None:
        """`fields`: those of the transitions that come out."""
        self.n_step, self.num_envs = n_step, num_envs
        # Of the first step of a transition; the others (next_*, terminated) are of its last one.
        self.starts = {
            name: np.zeros((n_step, num_envs, *field.shape), field.dtype)
            for name, field in fields.items()
            if f"next_{name}" in fields or name == "actions"
        }
        computed = {*self.starts, "rewards", "discounts"}
        self._ends = [name for name in fields if name not in computed]
        self._observations = [name for name in self.starts if f"next_{name}" in fields]
        powers = gamma ** np.arange(n_step + 1)
        slots = np.arange(n_step)
        self._decays = powers[(slots[:, None] - slots) % n_step][:, :, None]  # [now, slot]: gamma^(steps since)
        self._discounts = powers[n_step - slots].astype(np.float32)  # by the steps that a start is after the oldest
        self._full_discounts = np.full(num_envs, powers[n_step], np.float32)
        self._returns = np.zeros((n_step, num_envs))
        self._clock = 0  # steps taken; step t lies in slot t % n_step
        self._begun = np.zeros(num_envs, np.int64)  # the first step of each env's window
        self._quiet_since = 0  # the newest of these
        self._last: dict[str, np.ndarray] = {}  # the newest observations, by their names at a transition's start
        self._resumed = False

    def push(self, transitions: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take one step of every env, row i of env i; give the transitions that it completes, oldest first.

        What is given may change at the next call.
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
        self._last = {name: transitions[f"next_{name}"] for name in self._observations}
        ended = transitions["terminated"] | transitions["truncated"]
        if self._clock - self._quiet_since >= self.n_step and not any(ended.tolist()):  # an array's `any` takes longer
            oldest = self._clock % self.n_step
            given = {name: ring[oldest] for name, ring in self.starts.items()}
            given["rewards"], given["discounts"] = self._returns[oldest], self._full_discounts
            for name in self._ends:
                given[name] = transitions[name]
            return given
        times = np.arange(self._clock - self.n_step, self._clock)
        is_complete = ended | (times == times[0])[:, None]
        starts, envs = np.nonzero(is_complete & (times[:, None] >= self._begun))
        slots = times[starts] % self.n_step
        given = {name: ring[slots, envs] for name, ring in self.starts.items()}
        given["rewards"], given["discounts"] = self._returns[slots, envs], self._discounts[starts]
        for name in self._ends:
            given[name] = np.asarray(transitions[name])[envs]
        if ended.any():
            self._begun[ended] = self._quiet_since = self._clock
        return given

    def _drop_broken(self, transitions: Mapping[str, Any]) -> None:
        """Begin anew where an env does not go on from where it was: a resume may begin its next episode instead."""
        for name, expected in self._last.items():
            is_same = np.asarray(transitions[name]) == expected
            broken = ~is_same.reshape(self.num_envs, -1).all(1)
            if broken.any():
                self._begun[broken] = self._quiet_since = self._clock
        self._resumed = False

    def state_dict(self) -> StateDict:
        return {
            "starts": self.starts,
            "returns": self._returns,
            "clock": self._clock,
            "begun": self._begun,
            "last": self._last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, ring in [*self.starts.items(), ("returns", self._returns)]:
            stored = np.asarray(state["returns"] if name == "returns" else state["starts"][name])
            if stored.shape != ring.shape:
                raise CheckpointError(
                    f"the stored n-step windows' {name} have shape {stored.shape}, expected {ring.shape}"
                )
            ring[:] = stored
        self._clock = int(state["clock"])
        self._begun[:] = np.asarray(state["begun"])
        self._quiet_since = int(self._begun.max())
        self._last = {name: np.asarray(values).copy() for name, values in state["last"].items()}
        self._resumed = True
