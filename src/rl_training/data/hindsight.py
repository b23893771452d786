"""Hindsight experience replay: sampled transitions get goals that their own episode achieved.

    with probability k / (k + 1):  g' = achieved goal after step t',   t' in the episode of step t
                                   r' = compute_reward(achieved goal after step t, g'),   d' = compute_terminated(same)

in place of the goal, the reward and the termination of step t; k is `her_ratio`. t' is uniform in {t, ..., T} for
`future`, in {1, ..., T} for `episode`, and T for `final`, where T is the newest step of the episode so far. A time
limit is no termination: such a row bootstraps for any goal.

Goals are drawn when a batch is sampled: rows are stored once, and each sample has a new goal.

Andrychowicz et al. 2017, Hindsight experience replay.
Deviations: rows of the running episodes are sampled, too; `compute_terminated` is called for the new goal.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from rl_training.core.packed_space import Leaf, PackedSpace
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field
from rl_training.core.types import Batch, StateDict
from rl_training.data.row_storage import Reader, RowStorage, Storage
from rl_training.envs.goals import GoalRules
from rl_training.errors import CheckpointError, ConfigError

# Stored with each row: the steps of its episode before it, and those after it, RUNNING until the episode has ended.
EPISODE_FIELDS = {name: Field((), np.dtype(np.int32)) for name in ("steps_before", "steps_after")}
RUNNING = -1


@runtime_checkable
class HindsightSettings(Protocol):
    """The settings of algorithms that can learn from new goals."""

    @property
    def her(self) -> str: ...
    @property
    def her_ratio(self) -> float: ...


def has_new_goals(hparams: object) -> bool:
    """Return whether the settings ask for new goals."""
    return isinstance(hparams, HindsightSettings) and hparams.her != "none"


def goal_rules(setup: Setup[Any]) -> GoalRules | None:
    """Return the rules of the run's goal environment, which is made and tried, if its settings ask for new goals."""
    if not has_new_goals(setup.hparams):
        return None
    if setup.make_env is None:
        raise ConfigError("algo_kwargs.her needs an environment: its methods compute the rewards of new goals")
    if setup.hparams.buffer_capacity < setup.num_envs:
        raise ConfigError(f"algo_kwargs.her needs a buffer_capacity of at least num_envs, {setup.num_envs}")
    return GoalRules(setup.make_env())


def relabelled(rows: RowStorage, rules: GoalRules, setup: Setup[Any], generator: np.random.Generator) -> Storage:
    """Return a storage whose batches have new goals, as the settings say."""
    space, hparams = setup.spaces.observation, setup.hparams
    assert isinstance(space, PackedSpace)
    assert isinstance(hparams, HindsightSettings)
    return HindsightStorage(
        rows,
        space,
        rules,
        strategy=hparams.her,
        ratio=hparams.her_ratio,
        num_envs=setup.num_envs,
        generator=generator,
    )


class HindsightStorage:
    """Stores rows with their places in episodes, and relabels each batch that is read.

    Envs take turns: row n is followed in its episode by row n + num_envs.
    """

    def __init__(
        self,
        rows: RowStorage,
        space: PackedSpace,
        rules: GoalRules,
        *,
        strategy: str,
        ratio: float,
        num_envs: int,
        generator: np.random.Generator,
    ) -> None:
        """`rows`: with `EPISODE_FIELDS`. `generator`: draws the goals; its owner saves it."""
        self.rows, self.capacity = rows, rows.capacity
        self._rules, self._num_envs, self._generator = rules, num_envs, generator
        self._strategy, self._relabelled_share = strategy, ratio / (ratio + 1.0)
        leaves = {leaf.name: leaf for leaf in space.leaves}
        self._achieved, self._desired = leaves["achieved_goal"], leaves["desired_goal"]
        self._steps: np.ndarray = np.zeros(num_envs, np.int32)  # of each env's episode so far
        self._resumed = False

    @property
    def first(self) -> int:
        return self.rows.first

    @property
    def end(self) -> int:
        return self.rows.end

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store one step of every env, row i from env i."""
        if self._resumed:
            self._end_broken(transitions)
        running = np.full(self._num_envs, RUNNING, np.int32)
        self.rows.add({**transitions, "steps_before": self._steps, "steps_after": running})
        self._steps += 1
        ended = transitions["terminated"] | transitions["truncated"]
        for env in np.flatnonzero(ended):
            self._end_episode(int(env))

    def add_dataset(self, transitions: Mapping[str, Any]) -> None:
        raise ConfigError("algo_kwargs.her cannot relabel the transitions of a dataset")

    def reader(self, batch_size: int, device: torch.device, columns: tuple[str, ...] = ()) -> Reader:
        reader = self.rows.reader(batch_size, device, columns, edit=self._relabel)
        return replace(
            reader,
            batch=_without_places(reader.batch),
            host=_without_places(reader.host),
            snapshot=lambda: _without_places(reader.snapshot()),
        )

    def draw_goal_rows(self, places: np.ndarray) -> np.ndarray:
        """Draw for each place the number of a stored row of the same episode, whose achieved goal is the new goal."""
        numbers = self.first + (places - self.first) % self.capacity
        after = self._steps_after(numbers)
        shares = self._generator.random(len(places))
        before = np.zeros_like(after)
        if self._strategy == "episode":  # the oldest rows of the episode may be overwritten
            before = np.minimum(self.rows.arrays["steps_before"][places], (numbers - self.first) // self._num_envs)
        moves: np.ndarray = (
            after if self._strategy == "final" else (shares * (before + after + 1)).astype(np.int64) - before
        )
        goal_rows: np.ndarray = numbers + moves * self._num_envs
        return goal_rows

    def state_dict(self) -> StateDict:
        return self.rows.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows.load_state_dict(state)
        numbers = np.arange(self.first, self.end)
        before, after = (self.rows.arrays[name][numbers % self.capacity] for name in EPISODE_FIELDS)
        if (before < 0).any() or (after < RUNNING).any() or (numbers + after * self._num_envs >= self.end).any():
            raise CheckpointError("the stored rows have places in episodes that are not stored")
        if len(numbers) >= self._num_envs:
            newest = slice(len(numbers) - self._num_envs, None)
            self._steps[:] = np.where(after[newest] == RUNNING, before[newest] + 1, 0)
            self._resumed = True

    def _steps_after(self, numbers: np.ndarray) -> np.ndarray:
        after = self.rows.arrays["steps_after"][numbers % self.capacity].astype(np.int64)
        return np.where(after == RUNNING, (self.end - 1 - numbers) // self._num_envs, after)

    def _end_episode(self, env: int) -> None:
        """Write the places of the rows in the episode of an env, whose newest row is its last."""
        last = self.end - self._num_envs + env
        after = np.arange(min(int(self._steps[env]), (last - self.first) // self._num_envs + 1))
        self.rows.arrays["steps_after"][(last - after * self._num_envs) % self.capacity] = after
        self._steps[env] = 0

    def _end_broken(self, transitions: Mapping[str, Any]) -> None:
        """End the episode of each env that does not continue it: a resume may start a new one instead."""
        newest = np.arange(self.end - self._num_envs, self.end) % self.capacity
        is_same = np.asarray(transitions["obs"]) == self.rows.arrays["next_obs"][newest]
        for env in np.flatnonzero((self._steps > 0) & ~is_same.all(1)):
            self._end_episode(int(env))
        self._resumed = False

    def _relabel(self, places: np.ndarray, batch: Mapping[str, np.ndarray]) -> None:
        """Put new goals, and what follows from them, into a share of the batch."""
        goal_rows = self.draw_goal_rows(places)
        chosen = np.flatnonzero(self._generator.random(len(places)) < self._relabelled_share)
        if not len(chosen):
            return
        achieved, desired = _bytes_of(self._achieved), _bytes_of(self._desired)
        goals = self.rows.arrays["next_obs"][goal_rows[chosen] % self.capacity, achieved]
        for name in ("obs", "next_obs"):
            batch[name][chosen, desired] = goals
        reached = batch["next_obs"][chosen, achieved]
        batch["rewards"][chosen], batch["terminated"][chosen] = self._rules(
            _as_goals(reached, self._achieved), _as_goals(goals, self._achieved)
        )


def _bytes_of(leaf: Leaf) -> slice:
    return slice(leaf.start, leaf.start + leaf.num_bytes)


def _as_goals(rows: np.ndarray, leaf: Leaf) -> np.ndarray:
    """Return goals, (rows, *shape), in the dtype of the environment, from their bytes, (rows, bytes)."""
    goals: np.ndarray = np.ascontiguousarray(rows).view(leaf.dtype).reshape(len(rows), *leaf.shape)
    return goals.astype(leaf.space.dtype, copy=False)


def _without_places(batch: Batch) -> Batch:
    return {name: values for name, values in batch.items() if name not in EPISODE_FIELDS}
