"""Record datasets: whole episodes of one or several policies, each with its own seed, saved in pieces."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rl_training.core.counted import counted
from rl_training.core.durable_files import sync_folder, write_atomic
from rl_training.core.memory_limits import check_memory
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces, action_field, observation_field
from rl_training.datasets.files import check_new, read_transitions, write_transitions
from rl_training.datasets.transitions import COLUMN_NAMES, Transitions
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, DatasetError
from rl_training.runtime.episodes import MAX_EPISODE_STEPS, play_episode
from rl_training.runtime.policies import StartEpisode, random_policy

log = logging.getLogger("rl_training")

_PIECE_ROWS, _PIECE_SECONDS = 50_000, 30.0  # after either, finished episodes are written to the disk
_STATE = "recording.json"

Columns: TypeAlias = dict[str, np.ndarray]


class RecordingStopped(Exception):  # noqa: N818  a request of the user, not an error
    """The user asked to stop in the middle of an episode, which is then played again."""


def record_episode(
    envs: SyncEnvs,
    policy: StartEpisode,
    streams: Streams,
    number: int,
    *,
    max_steps: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Columns:
    """Play episode `number`, which the seed of `streams` determines, and return its columns.

    Actions are those that the environment received. The episode is cut, and so truncated, after `max_steps`.
    """
    rows: dict[str, list[Any]] = {name: [] for name in COLUMN_NAMES}
    act = policy(streams.integer("action", number))
    seed = streams.episode_seed(0, number)
    for step in play_episode(envs, act, seed=seed, number=number, max_steps=max_steps):
        result = step.result
        truncated = result.truncated | step.cut
        values = (step.obs, step.actions, result.rewards, result.obs, result.terminated, truncated)
        for column, value in zip(rows.values(), values, strict=True):
            column.append(value[0])
        if should_stop():
            raise RecordingStopped
    return {name: np.array(column) for name, column in rows.items()}


def random_transitions(envs: SyncEnvs, size: int, *, seed: int) -> Transitions:
    """Take `size` random steps, determined by the seed; the last episode is cut there."""
    spaces = Spaces(envs.observation_space, envs.action_space)
    _check_size(size, spaces)
    policy, streams, episodes = random_policy(spaces.action), Streams(seed), list[Columns]()
    rows = 0
    while rows < size:
        episodes.append(record_episode(envs, policy, streams, len(episodes), max_steps=size - rows))
        rows += len(episodes[-1]["rewards"])
    return Transitions(source=f"the random dataset with seed {seed}", spaces=spaces, env_id="", **joined(episodes))


def joined(pieces: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in COLUMN_NAMES}


def _check_size(steps: int, spaces: Spaces) -> None:
    obs, action = observation_field(spaces.observation), action_field(spaces.action)
    per_row = 2 * (2 * obs.num_bytes + action.num_bytes) + 16  # as float64, which an environment may use
    check_memory(2 * steps * per_row, f"a recording of {counted(steps, 'step')}", "the number of steps")


# --- Recording to a file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Player:
    """A policy with its name, for messages and for the record of what was recorded, and its share of the recording."""

    name: str
    policy: StartEpisode
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to record: a number of steps or of episodes, divided among the players by their shares."""

    players: Sequence[Player]
    seed: int
    steps: int | None = None
    episodes: int | None = None
    env_id: str = ""
    details: dict[str, Any] = field(default_factory=dict)  # what else two recordings may differ in, for messages

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.episodes is None):
            raise ConfigError("give --steps or --episodes, one of them")
        if not self.players or any(not player.share > 0.0 for player in self.players):
            raise ConfigError(f"shares must be above 0, got {[player.share for player in self.players]}")

    @property
    def amounts(self) -> list[int]:
        """The steps or episodes of each player, by shares; their sum is exactly the number requested."""
        shares = np.cumsum([player.share for player in self.players])
        bounds = np.rint(shares / shares[-1] * (self.steps or self.episodes)).astype(int)
        return [int(amount) for amount in np.diff(bounds, prepend=0)]

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for an interrupted recording to continue."""
        players = [[player.name, player.share] for player in self.players]
        numbers = {"env_id": self.env_id, "seed": self.seed, "steps": self.steps, "episodes": self.episodes}
        return {**numbers, "players": players, **self.details}


class Recorder:
    """Plays a plan's episodes and keeps them in `<out>.partial` until the dataset is complete.

    The seed and its number determine each episode. A recording that continues after an interruption therefore equals
    one without.
    """

    def __init__(self, plan: Plan, factory: EnvFactory, out: Path) -> None:
        check_new(out)
        self.plan, self.out = plan, out
        self.rows = self.episodes = 0  # recorded so far
        self.returns: list[float] = []  # of the episodes that this process recorded
        self._factory = factory
        self._folder = out.with_name(f"{out.name}.partial")
        self._done = [0] * len(plan.players)  # steps or episodes of each player
        self._pieces = 0
        self._pending: list[Columns] = []
        self._flushed_at = 0.0

    @property
    def amount(self) -> int:
        """Steps or episodes recorded so far, in the unit of the plan."""
        return sum(self._done)

    @property
    def total(self) -> int:
        return sum(self.plan.amounts)

    def run(
        self, *, should_stop: Callable[[], bool] = lambda: False, on_episode: Callable[[], None] = lambda: None
    ) -> bool:
        """Record what is missing and write the dataset. False: stopped before; a second run continues from there."""
        with SyncEnvs(self._factory) as envs:
            spaces = Spaces(envs.observation_space, envs.action_space)
            if self.plan.steps is not None:
                _check_size(self.plan.steps, spaces)
            self._continue()
            try:
                complete = self._play(envs, spaces, should_stop, on_episode)
            except RecordingStopped:
                complete = False
            finally:
                self._flush(spaces)
        if complete:
            self._write_dataset(spaces)
        return complete

    def _play(
        self, envs: SyncEnvs, spaces: Spaces, should_stop: Callable[[], bool], on_episode: Callable[[], None]
    ) -> bool:
        streams, by_steps = Streams(self.plan.seed), self.plan.steps is not None
        self._flushed_at = time.monotonic()
        for index, (player, amount) in enumerate(zip(self.plan.players, self.plan.amounts, strict=True)):
            while self._done[index] < amount:
                if should_stop():
                    return False
                limit = amount - self._done[index] if by_steps else MAX_EPISODE_STEPS
                episode = record_episode(
                    envs, player.policy, streams, self.episodes, max_steps=limit, should_stop=should_stop
                )
                length = len(episode["rewards"])
                self._pending.append(episode)
                self._done[index] += length if by_steps else 1
                self.rows, self.episodes = self.rows + length, self.episodes + 1
                self.returns.append(float(episode["rewards"].sum()))
                on_episode()
                if self._piece_is_due():
                    self._flush(spaces)
        return True

    def _piece_is_due(self) -> bool:
        waiting = sum(len(episode["rewards"]) for episode in self._pending)
        return waiting >= _PIECE_ROWS or time.monotonic() - self._flushed_at >= _PIECE_SECONDS

    def _continue(self) -> None:
        """Load the state that an interrupted recording left."""
        state_file, identity = self._folder / _STATE, json.loads(json.dumps(self.plan.identity()))
        if not state_file.is_file():
            return
        try:
            state = json.loads(state_file.read_text("utf-8"))
            before = dict(state["plan"])
            done, self.rows, self.episodes, self._pieces = (
                state[key] for key in ("done", "rows", "episodes", "pieces")
            )
            self._done = list(done)
        except (ValueError, KeyError, TypeError) as problem:
            raise DatasetError(f"{state_file} is damaged: {problem}; remove {self._folder} to start again") from None
        if before != identity:
            changed = [key for key in identity if before.get(key) != identity[key]]
            listed = ", ".join(f"{key} {before.get(key)!r}, now {identity[key]!r}" for key in changed)
            raise ConfigError(
                f"{self._folder} holds a recording with other settings ({listed}); remove it to start again"
            )
        rows, episodes = counted(self.rows, "step"), counted(self.episodes, "episode")
        log.info("continuing after %s of %s in %s", rows, episodes, self._folder)

    def _flush(self, spaces: Spaces) -> None:
        """Write the finished episodes that are not on the disk yet; then note it, in one atomic write."""
        if not self._pending:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        piece = self._piece(self._pieces)
        piece.unlink(missing_ok=True)  # of a recording that was killed between the two writes
        write_transitions(Transitions(source=str(piece), spaces=spaces, env_id="", **joined(self._pending)), piece)
        self._pieces, self._pending = self._pieces + 1, []
        counts = {"done": self._done, "rows": self.rows, "episodes": self.episodes, "pieces": self._pieces}
        write_atomic(self._folder / _STATE, json.dumps({"plan": self.plan.identity(), **counts}))
        self._flushed_at = time.monotonic()

    def _write_dataset(self, spaces: Spaces) -> None:
        """Join the pieces into the dataset and remove them."""
        columns = joined([read_transitions(self._piece(number)).columns() for number in range(self._pieces)])
        recorded = Transitions(source=str(self.out), spaces=spaces, env_id=self.plan.env_id, **columns)
        whole = self._folder / self.out.name  # there, so that a kill leaves nothing elsewhere
        if not whole.exists():
            write_transitions(recorded, whole)
        whole.replace(self.out)
        sync_folder(self.out.parent)
        shutil.rmtree(self._folder)

    def _piece(self, number: int) -> Path:
        return self._folder / f"piece_{number:05d}.npz"
