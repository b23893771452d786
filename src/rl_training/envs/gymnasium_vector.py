"""Vector environments of Gymnasium (`gymnasium.vector.VectorEnv`) as a group for the collector.

The collector resets an environment whose episode has ended before the next step, with a seed. So the step in which a
vector environment would reset it by itself (`AutoresetMode.NEXT_STEP`), which is no transition, never happens. Where
it has done so within the last step (`SAME_STEP`), the last observation of the episode is read from the info.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rl_training.core.packed_space import Composite
from rl_training.envs.array_space import FLOAT32_MAX, ArraySpace, checked_flag, checked_reward
from rl_training.envs.dict_obs import PackedDictObs, sample_action
from rl_training.envs.episode_tracker import EpisodeTracker
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import Env, EnvState, ReplayDivergedError
from rl_training.envs.vector import StepResult, SyncEnvs
from rl_training.envs.vector_abilities import Abilities, find_abilities
from rl_training.envs.vector_factory import VectorFactory
from rl_training.envs.vector_row import AnyVectorEnv, autoreset_mode, info_of, row_of, split_final
from rl_training.errors import EnvError

log = logging.getLogger("rl_training")


def make_vector_envs(
    factory: VectorFactory, num_envs: int, *, crash_dir: Path | None = None
) -> "VectorEnvs | SyncEnvs":
    """Build the environments of a run, with a group of the same results where single rows cannot be reset."""
    if num_envs == 1:
        return SyncEnvs(factory, crash_dir=crash_dir)
    vector = factory.make(num_envs)
    try:
        mode, abilities = autoreset_mode(vector), find_abilities(vector)
    except BaseException:
        close_vector(vector)
        raise
    if abilities.resets or mode is AutoresetMode.SAME_STEP:
        return VectorEnvs(vector, abilities, crash_dir=crash_dir)
    close_vector(vector)
    log.warning(
        "%s cannot reset single environments: it ignores options['reset_mask'], and AutoresetMode is %s; each of the "
        "%d environments therefore gets a vector environment of its own, which is correct but not fast",
        type(vector.unwrapped).__name__,
        mode.name,
        num_envs,
    )
    return SyncEnvs(factory, num_envs, crash_dir=crash_dir)


def close_vector(vector: AnyVectorEnv) -> None:
    """Close a vector environment; an error there is only a warning, because nothing is lost by it."""
    try:
        # A worker that hangs, or that an interruption left with a reply, would be waited for.
        vector.close(**({"terminate": True} if isinstance(vector.unwrapped, AsyncVectorEnv) else {}))
    except Exception as cause:
        log.warning("close() of %s raised %s: %s", vector, type(cause).__name__, cause)


class VectorEnvs:
    """The rows of a vector environment."""

    def __init__(self, vector: AnyVectorEnv, abilities: Abilities, *, crash_dir: Path | None = None) -> None:
        self.num_envs: int = vector.num_envs
        self._vector, self._mode, self._can = vector, autoreset_mode(vector), abilities
        self._episodes = EpisodeTracker(self.num_envs, crash_dir)
        single: Env = _Spaces(vector)
        self._packed = PackedDictObs(single) if isinstance(single.observation_space, Composite) else None
        self.observation_space: gym.Space[Any] = (self._packed or single).observation_space
        self.action_space: gym.Space[Any] = single.action_space
        self._observations = ArraySpace.of(self.observation_space, "observation")
        self._actions = ArraySpace.of(self.action_space, "action")
        self._batch_shape = (self.num_envs, *self._observations.shape)
        self._first: dict[int, tuple[np.ndarray, dict[str, Any]]] = {}  # of rows that wait at their first observation
        self._was_reset = False
        missing = [] if abilities.seeds else ["give each environment a seed"]
        missing += [] if abilities.resets else ["reset one environment alone"]
        self.cannot_repeat = f"{vector} cannot {' or '.join(missing)}" if missing else ""

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        self._episodes.check_open()
        for row, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            self._episodes.start(index, seed, None if episodes is None else episodes[row])
        # Rows that have reset themselves go on from there, unless they can be reset with their own seeds.
        waiting = set(self._first).issuperset(indices) and not (self._can.resets and self._can.seeds and indices)
        if not waiting:
            self._first |= self._reset_rows(dict(zip(indices, seeds, strict=True)))
        rows = [self._first.pop(index) for index in indices]
        for index in indices:
            self._episodes.started(index)
        obs = np.stack([obs for obs, _ in rows]) if rows else np.empty((0, *self._batch_shape[1:]))
        return obs.astype(self._observations.dtype, copy=False), [info for _, info in rows]

    def _reset_rows(self, seeds: Mapping[int, int]) -> dict[int, tuple[np.ndarray, dict[str, Any]]]:
        """Reset these rows, or all if the vector was never reset; return first observations and infos by row."""
        whole = not self._was_reset or len(seeds) == self.num_envs
        if not whole and not self._can.resets:
            raise EnvError(f"{self._vector} cannot reset single environments within their episodes")
        mask = np.isin(np.arange(self.num_envs), list(seeds))
        options = None if whole else {"reset_mask": mask}
        first_seed = next(iter(seeds.values()))
        seed: Any = first_seed if not self._was_reset else None  # one for all, once
        if self._can.seeds:
            seed = [seeds.get(index, first_seed + index if whole else None) for index in range(self.num_envs)]
        with self._guarded(), ENV_CALLS:
            batch, infos = self._vector.reset(seed=seed, options=options)
        self._was_reset = True
        indices = range(self.num_envs) if whole else list(seeds)
        obs, rows = self._read(batch, infos, indices)
        return {index: (obs[row], rows[row]) for row, index in enumerate(indices)}

    def step(self, actions: np.ndarray) -> StepResult:
        episodes = self._episodes
        if episodes.must_reset:
            episodes.raise_reset_needed()
        num_envs = self.num_envs
        actions = self._actions.cast_actions(actions, num_envs).astype(self._vector.action_space.dtype, copy=False)
        with self._guarded(), ENV_CALLS:
            batch, rewards, terminated, truncated, infos = self._vector.step(actions)
        rewards = self._each(rewards, checked_reward, np.dtype(np.float64))
        terminated = self._each(terminated, lambda flag: checked_flag("terminated", flag), np.dtype(np.bool_))
        truncated = self._each(truncated, lambda flag: checked_flag("truncated", flag), np.dtype(np.bool_))
        ended: list[int] = np.flatnonzero(terminated | truncated).tolist()
        obs, rows = self._read(batch, infos, range(num_envs))
        if self._mode is AutoresetMode.SAME_STEP:
            for index in ended:
                with self._guarded(index):
                    final_obs, final_info, first_info = split_final(rows[index])
                    self._first[index] = obs[index].copy(), first_info
                    obs[index], rows[index] = self._converted(final_obs, final_info)
            episodes.check_finite(self._observations, obs)
        episodes.num_steps += 1
        episodes.must_reset.update(ended)
        return StepResult(obs, rewards, terminated, truncated, rows, ended)

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        self._episodes.check_open()
        raise ReplayDivergedError(f"env {index} cannot be replayed alone: all environments of {self._vector} step")

    def replay_together(
        self, seeds: Sequence[int], actions: Sequence[np.ndarray], episodes: Sequence[int]
    ) -> list[np.ndarray | None]:
        """Repeat one episode per env so that all reach their last action at the same step; return the observations.

        `actions`: (steps, *action_shape) per env. Envs that start later take random steps before. None: the episode
        ended before, or at, its last action, or the vector environment cannot do this.
        """
        if self.cannot_repeat:
            return [None] * self.num_envs
        longest = max(map(len, actions))
        starts = [longest - len(taken) for taken in actions]
        found: list[np.ndarray | None] = [None] * self.num_envs
        diverged: set[int] = set()
        ended = list(range(self.num_envs))
        infos: list[dict[str, Any]] = [{} for _ in ended]
        for step in range(longest + 1):
            starting = sorted({*ended, *(index for index, start in enumerate(starts) if start == step)})
            if starting:
                obs, first_infos = self.reset(
                    starting, [seeds[index] for index in starting], [episodes[index] for index in starting]
                )
                for row, index in enumerate(starting):
                    found[index], infos[index] = obs[row], first_infos[row]
            if step == longest:
                break
            chosen = [
                taken[step - start]
                if step >= start and index not in diverged
                else sample_action(self.action_space, infos[index])
                for index, (taken, start) in enumerate(zip(actions, starts, strict=True))
            ]
            result = self.step(np.stack(chosen))
            ended, infos, found = result.ended, result.infos, list(result.obs)
            diverged |= {index for index in ended if step >= starts[index]}
        return [None if index in diverged else obs for index, obs in enumerate(found)]

    def get_state(self, index: int) -> EnvState | None:
        self._episodes.check_open()
        return None

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        self._episodes.check_open()
        raise EnvError(f"env {index} has no get_state and set_state")

    def close(self) -> None:
        if not self._episodes.closed:
            self._episodes.close()
            close_vector(self._vector)

    def __enter__(self) -> "VectorEnvs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def _guarded(self, index: int | None = None) -> Iterator[None]:
        """Turn what is raised into an `EnvError` that says which env, or that the whole group, failed and where."""
        try:
            yield
        except BaseException as cause:
            if index is not None:
                raise self._episodes.error_from(index, cause) from cause
            error = self._episodes.group_error(cause)
            self.close()  # an unread reply of a worker would be read as the next one
            raise error from cause

    def _read(self, batch: Any, infos: Any, indices: Sequence[int]) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Return copies of the observations of these rows, checked, and their infos."""
        rows: list[dict[str, Any]] = [info_of(infos, index) if infos else {} for index in indices]
        is_plain = type(batch) is np.ndarray and batch.shape == self._batch_shape
        if self._packed is None and is_plain and batch.dtype == self._observations.safe_dtype:
            obs: np.ndarray = batch[list(indices)]
        else:
            obs = np.empty((len(rows), *self._observations.shape), self._observations.dtype)
            for row, index in enumerate(indices):
                with self._guarded(index):
                    obs[row], rows[row] = self._converted(row_of(batch, index), rows[row])
        self._episodes.check_finite(self._observations, obs, indices)
        return obs, rows

    def _converted(self, obs: Any, info: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        """Return an observation as the library stores it; a mask in it moves to the info."""
        if self._packed is not None:
            obs, info = self._packed.convert(obs, info)
        return self._observations.checked(obs), info

    def _each(self, values: Any, check: Callable[[Any], Any], dtype: np.dtype[Any]) -> np.ndarray:
        """Return one number per env as an array of its own; raise for what `check` rejects."""
        found = np.asarray(values)
        is_fine = found.dtype == np.bool_ if dtype == np.bool_ else found.dtype.kind == "f"
        if found.shape == (self.num_envs,) and is_fine and (dtype == np.bool_ or (abs(found) <= FLOAT32_MAX).all()):
            return found.astype(dtype)
        result = np.empty(self.num_envs, dtype)
        for index in range(self.num_envs):
            with self._guarded(index):
                result[index] = check(values[index])
        return result


class _Spaces(gym.Env[Any, Any]):
    """The spaces of one row."""

    def __init__(self, vector: AnyVectorEnv) -> None:
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
