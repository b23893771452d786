"""Recording: whole episodes of one policy or several, each with its own seed, kept in pieces until all are there."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.action_masks import MaskReader
from rl_training.core.durable_files import sync_folder, write_atomic
from rl_training.core.memory_limits import check_memory
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces, action_field, observation_field, to_env_actions
from rl_training.datasets.files import check_new, read_transitions, write_transitions
from rl_training.datasets.transitions import COLUMN_NAMES, Transitions
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, DatasetError, EnvError

log = logging.getLogger("rl_training")

MAX_EPISODE_STEPS = 27_000  # where neither the environment nor a number of steps sets a limit, as in evaluations
_PIECE_ROWS, _PIECE_SECONDS = 50_000, 30.0  # after either, finished episodes are written to the disk
_STATE = "recording.json"

# From an observation, (1, *shape), the action mask, (1, choices), if there is one, and the episode's own generator to
# an action of ours, (1, *shape).
Act: TypeAlias = Callable[[np.ndarray, np.ndarray | None, np.random.Generator], np.ndarray]
Columns: TypeAlias = dict[str, np.ndarray]


def random_actions(space: gym.Space[Any]) -> Act:
    """Act uniformly: over the Box, or among the valid choices."""
    wanted = action_field(space)

    def act(obs: np.ndarray, mask: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        if isinstance(space, spaces.Box):
            return generator.uniform(-1.0, 1.0, (1, *wanted.shape)).astype(np.float32)
        if isinstance(space, spaces.MultiBinary):
            return generator.integers(2, size=(1, *wanted.shape))
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.array([space.n])  # type: ignore[attr-defined]
        valid = np.ones(int(sizes.sum()), np.bool_) if mask is None else mask[0]
        flags = np.split(valid, np.cumsum(sizes)[:-1])
        chosen = [generator.choice(np.flatnonzero(choice)) for choice in flags]
        return np.array(chosen, np.int64).reshape(1, *wanted.shape)

    return act


def noisy(act: Act, noise: float, space: gym.Space[Any]) -> Act:
    """Add Gaussian noise to numbers in [-1, 1]; take a random choice instead with probability `noise`."""
    random = random_actions(space)

    def act_noisily(obs: np.ndarray, mask: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        if isinstance(space, spaces.Box):
            actions = act(obs, mask, generator)
            drawn = generator.standard_normal(actions.shape, np.float32)
            return np.asarray(np.clip(actions + np.float32(noise) * drawn, -1.0, 1.0))
        return (random if generator.random() < noise else act)(obs, mask, generator)

    return act_noisily if noise else act


def play_episode(
    envs: SyncEnvs, act: Act, streams: Streams, number: int, max_steps: int, on_step: Callable[[], None] | None = None
) -> Columns:
    """Play episode `number`, determined by the streams' seed; give its columns, actions as the environment takes them.

    It is cut, and so truncated, after `max_steps`.
    """
    seed = streams.episode_seed(0, number)
    generator = np.random.default_rng(streams.integer("action", number))
    to_env, dtype = to_env_actions(envs.action_space), observation_field(envs.observation_space).dtype
    action_dtype = np.dtype(envs.action_space.dtype)
    obs, infos = envs.reset([0], [seed], [number])
    reader = MaskReader(envs.action_space) if "action_mask" in infos[0] else None
    rows: dict[str, list[Any]] = {name: [] for name in COLUMN_NAMES}
    ended = False
    while not ended and len(rows["rewards"]) < max_steps:
        try:
            mask = None if reader is None else reader.read(infos[0])[None]
        except ValueError as problem:
            raise EnvError(f"env 0 gave {problem} in episode {number} (seed {seed})") from None
        actions = to_env(act(obs.astype(dtype, copy=False), mask, generator)).astype(action_dtype)
        result = envs.step(actions)
        ended = bool(result.ended)
        cut = not ended and len(rows["rewards"]) + 1 == max_steps
        values = (obs, actions, result.rewards, result.obs, result.terminated, result.truncated | cut)
        for column, value in zip(rows.values(), values, strict=True):
            column.append(value[0])
        obs, infos = result.obs, result.infos
        if on_step is not None:
            on_step()
    return {name: np.array(column) for name, column in rows.items()}


def random_transitions(envs: SyncEnvs, size: int, *, seed: int) -> Transitions:
    """Take `size` random steps, determined by the seed; the last episode is cut there."""
    known = Spaces(envs.observation_space, envs.action_space)
    _check_size(size, known)
    act, streams, episodes = random_actions(known.action), Streams(seed), list[Columns]()
    rows = 0
    while rows < size:
        episodes.append(play_episode(envs, act, streams, len(episodes), size - rows))
        rows += len(episodes[-1]["rewards"])
    return Transitions(source=f"the random dataset with seed {seed}", spaces=known, env_id="", **joined(episodes))


def joined(pieces: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in COLUMN_NAMES}


def _check_size(steps: int, known: Spaces) -> None:
    obs, action = observation_field(known.observation), action_field(known.action)
    per_row = 2 * (2 * obs.num_bytes + action.num_bytes) + 16  # as float64, which an environment may use
    check_memory(2 * steps * per_row, f"a recording of {steps:,} steps", "the number of steps")


# --- Recording to a file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Player:
    """A policy, its name in messages and in the record of what was recorded, and its part of the recording."""

    name: str
    act: Act
    share: float = 1.0
    begin: Callable[[int], None] | None = None  # called with an episode's seed: what the policy draws begins there


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
        """The steps or episodes of each player, by shares; together exactly those asked for."""
        shares = np.cumsum([player.share for player in self.players])
        bounds = np.rint(shares / shares[-1] * (self.steps or self.episodes)).astype(int)
        return [int(amount) for amount in np.diff(bounds, prepend=0)]

    def identity(self) -> dict[str, Any]:
        """What must be the same for an interrupted recording to go on."""
        players = [[player.name, player.share] for player in self.players]
        numbers = {"env_id": self.env_id, "seed": self.seed, "steps": self.steps, "episodes": self.episodes}
        return {**numbers, "players": players, **self.details}


class Recorder:
    """Plays a plan's episodes and keeps them in `<out>.partial` until the dataset is whole.

    Episodes are determined one by one, by the seed and their number: what is recorded after an interruption is what
    would have been recorded without.
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

    @property
    def amount(self) -> int:
        """Steps or episodes recorded so far, whichever the plan counts."""
        return sum(self._done)

    @property
    def total(self) -> int:
        return sum(self.plan.amounts)

    def run(
        self, *, should_stop: Callable[[], bool] = lambda: False, on_episode: Callable[[], None] = lambda: None
    ) -> bool:
        """Record what is missing and write the dataset. False: stopped before; a second run goes on from there."""
        with SyncEnvs(self._factory) as envs:
            known = Spaces(envs.observation_space, envs.action_space)
            if self.plan.steps is not None:
                _check_size(self.plan.steps, known)
            self._continue()
            try:
                complete = self._play(envs, should_stop, on_episode)
            except Interrupted:
                complete = False
            finally:
                self._flush(known)
        if complete:
            columns = joined([read_transitions(self._piece(number)).columns() for number in range(self._pieces)])
            recorded = Transitions(source=str(self.out), spaces=known, env_id=self.plan.env_id, **columns)
            whole = self._folder / self.out.name  # there, so that a kill leaves nothing elsewhere
            if not whole.exists():
                write_transitions(recorded, whole)
            whole.replace(self.out)
            sync_folder(self.out.parent)
            shutil.rmtree(self._folder)
        return complete

    def _play(self, envs: SyncEnvs, should_stop: Callable[[], bool], on_episode: Callable[[], None]) -> bool:
        known = Spaces(envs.observation_space, envs.action_space)
        streams, by_steps, flushed_at = Streams(self.plan.seed), self.plan.steps is not None, time.monotonic()
        for index, (player, amount) in enumerate(zip(self.plan.players, self.plan.amounts, strict=True)):
            while self._done[index] < amount:
                if should_stop():
                    return False
                limit = amount - self._done[index] if by_steps else MAX_EPISODE_STEPS
                if player.begin is not None:
                    player.begin(streams.integer("action", self.episodes))
                episode = play_episode(envs, player.act, streams, self.episodes, limit, _stop_at_once(should_stop))
                length = len(episode["rewards"])
                self._pending.append(episode)
                self._done[index] += length if by_steps else 1
                self.rows, self.episodes = self.rows + length, self.episodes + 1
                self.returns.append(float(episode["rewards"].sum()))
                on_episode()
                waiting = sum(len(piece["rewards"]) for piece in self._pending)
                if waiting >= _PIECE_ROWS or time.monotonic() - flushed_at >= _PIECE_SECONDS:
                    self._flush(known)
                    flushed_at = time.monotonic()
        return True

    def _continue(self) -> None:
        """Take up what an interrupted recording left."""
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
            raise DatasetError(f"{state_file} is damaged: {problem}; remove {self._folder} to record anew") from None
        if before != identity:
            changed = [key for key in identity if before.get(key) != identity[key]]
            told = ", ".join(f"{key} {before.get(key)!r}, now {identity[key]!r}" for key in changed)
            raise ConfigError(
                f"{self._folder} holds a recording with other settings ({told}); remove it to record anew"
            )
        log.info("going on after %s steps of %s episodes in %s", f"{self.rows:,}", f"{self.episodes:,}", self._folder)

    def _flush(self, known: Spaces) -> None:
        """Write the finished episodes that are not on the disk yet; then, in one step, that they are."""
        if not self._pending:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        piece = self._piece(self._pieces)
        piece.unlink(missing_ok=True)  # of a recording that was killed between the two writes
        write_transitions(Transitions(source=str(piece), spaces=known, env_id="", **joined(self._pending)), piece)
        self._pieces, self._pending = self._pieces + 1, []
        counts = {"done": self._done, "rows": self.rows, "episodes": self.episodes, "pieces": self._pieces}
        write_atomic(self._folder / _STATE, json.dumps({"plan": self.plan.identity(), **counts}))

    def _piece(self, number: int) -> Path:
        return self._folder / f"piece_{number:05d}.npz"


class Interrupted(Exception):  # noqa: N818  a request of the user's, not an error
    """The user asked to stop in the midst of an episode, which is then played again."""


def _stop_at_once(should_stop: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        if should_stop():
            raise Interrupted

    return check
