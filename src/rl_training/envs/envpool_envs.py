"""Environments of EnvPool: a whole group in one call, stepped by C++ threads.

Only ids whose EnvPool version is the same environment as Gymnasium's are accepted; docs/environments.md describes how
they were compared. EnvPool resets an env by itself in the step after its episode ended, and that step is no
transition; here ended envs are always reset before, so that such a step never happens. EnvPool cannot seed an episode:
its generators are seeded once, when the pool is created.
"""

import importlib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from rl_training.envs.array_space import ArraySpace
from rl_training.envs.atari import AtariSettings
from rl_training.envs.episode_tracker import EpisodeTracker
from rl_training.envs.slot import Env, EnvState, ReplayDivergedError, check_env
from rl_training.envs.vector import StepResult
from rl_training.errors import ConfigError, EnvError

CLASSIC_CONTROL = ("CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1")
MUJOCO_V4 = (
    "Ant-v4",
    "HalfCheetah-v4",
    "Hopper-v4",
    "InvertedDoublePendulum-v4",
    "InvertedPendulum-v4",
    "Reacher-v4",
    "Swimmer-v4",
    "Walker2d-v4",
)
MUJOCO_V5 = (
    *(env_id.replace("-v4", "-v5") for env_id in MUJOCO_V4),
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "Pusher-v5",
)
MUJOCO_SETTINGS = (
    "contact_cost_weight",
    "ctrl_cost_weight",
    "exclude_current_positions_from_observation",
    "forward_reward_weight",
    "frame_skip",
    "healthy_reward",
    "reset_noise_scale",
    "terminate_when_unhealthy",
)
DIFFERENT = {
    "Pendulum-v1": "its angle changes by the speed before it is limited to 8, Gymnasium's by the speed after",
    "Humanoid-v4": "its contact forces differ",
    "HumanoidStandup-v4": "its contact forces differ",
}
# The first has sticky actions by default; docs/environments.md describes how its resets differ from `AtariFrames`.
ATARI_ID = re.compile(r"ALE/(?P<sticky>\w+)-v5|(?P<plain>\w+)NoFrameskip-v4")
ATARI_SETTINGS = tuple(field.name for field in fields(AtariSettings))
NO_LIMIT = 2**31 - 2  # of steps; one less than the largest that EnvPool accepts


class RegisteredFactory(Protocol):
    """Builds the Gymnasium env of an id; `factory.RegisteredEnv` is one."""

    @property
    def env_id(self) -> str: ...
    @property
    def env_kwargs(self) -> Mapping[str, Any]: ...
    def __call__(self) -> Env: ...


@dataclass(frozen=True, slots=True)
class Task:
    """The EnvPool task that replaces a Gymnasium env."""

    name: str  # EnvPool's id
    options: Mapping[str, Any]
    parallel: bool  # whether a step takes long enough for threads to help
    marks_life_loss: bool = False


def find_task(env_id: str, env_kwargs: Mapping[str, Any]) -> Task:
    """Return EnvPool's version of a Gymnasium env; reject envs that it lacks or that differ, and other settings."""
    if env_id in CLASSIC_CONTROL:
        return Task(env_id, _supported(env_id, env_kwargs, ()), parallel=False)
    if env_id in MUJOCO_V4 or env_id in MUJOCO_V5:
        return Task(env_id, _supported(env_id, env_kwargs, MUJOCO_SETTINGS), parallel=True)
    if match := ATARI_ID.fullmatch(env_id):
        return _atari_task(env_id, match, env_kwargs)
    if env_id in DIFFERENT:
        reject(f"its {env_id} is another environment than Gymnasium's: {DIFFERENT[env_id]}")
    reject(
        f"it has no env_id {env_id!r}; it has {', '.join((*CLASSIC_CONTROL, *MUJOCO_V5, *MUJOCO_V4))} "
        "and Atari's ALE/<Game>-v5 and <Game>NoFrameskip-v4"
    )


def _atari_task(env_id: str, match: re.Match[str], env_kwargs: Mapping[str, Any]) -> Task:
    game, sticky = match["sticky"] or match["plain"], 0.25 if match["sticky"] else 0.0
    known = (*ATARI_SETTINGS, "full_action_space", "repeat_action_probability")
    given = _supported(env_id, {k: v for k, v in env_kwargs.items() if (k, v) != ("preprocess", True)}, known)
    settings = AtariSettings(**{name: given[name] for name in ATARI_SETTINGS if name in given})
    if settings.noop_max < 1:
        reject(f"for {env_id} env_kwargs.noop_max must be at least 1, got {settings.noop_max}")
    options = {
        "noop_max": settings.noop_max,
        "frame_skip": settings.frame_skip,
        "img_height": settings.screen_size,
        "img_width": settings.screen_size,
        "gray_scale": settings.grayscale,
        "stack_num": settings.frame_stack,
        "use_fire_reset": settings.fire_reset,
        "full_action_space": given.get("full_action_space", False),
        "repeat_action_probability": given.get("repeat_action_probability", sticky),
    }
    return Task(f"{game}-v5", options, parallel=True, marks_life_loss=settings.life_loss_terminates)


def reject(why: str) -> NoReturn:
    raise ConfigError(f"execution_backend envpool cannot be used: {why}; use local_sync or local_async")


def _supported(env_id: str, env_kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the settings, all of which EnvPool must know by the same name; `EnvPoolEnvs` applies the time limit."""
    given = {name: value for name, value in env_kwargs.items() if name != "max_episode_steps"}
    if unknown := [name for name in given if name not in names]:
        reject(
            f"of the env_kwargs of {env_id} it does not support {', '.join(unknown)}; it supports "
            f"{', '.join(('max_episode_steps', *names))}"
        )
    return given


def import_envpool() -> ModuleType:
    if importlib.util.find_spec("envpool") is None:
        raise ConfigError(
            "execution_backend envpool needs packages that are not installed: pip install 'rl-training[envpool]' "
            "(Python 3.11 or newer)"
        )
    return importlib.import_module("envpool")


class EnvPoolEnvs:
    """Environments of one pool.

    The pool is created at the first reset. The first seed there seeds all its generators; later seeds only appear in
    messages. A resumed run starts with a later episode, and so with another seed: it does not repeat the start states.
    """

    cannot_repeat = "EnvPool cannot repeat an episode"

    def __init__(self, factory: RegisteredFactory, num_envs: int = 1, *, crash_dir: Path | None = None) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        task = find_task(factory.env_id, factory.env_kwargs)
        self._envpool = import_envpool()
        self.num_envs = num_envs
        env = check_env(factory())
        self.observation_space: gym.Space[Any] = env.observation_space
        self.action_space: gym.Space[Any] = env.action_space
        limit = env.spec.max_episode_steps if env.spec is not None else None
        env.close()
        self._limit = NO_LIMIT if limit is None else limit
        self._task = task.name
        self._options = {
            **task.options,
            "num_envs": num_envs,
            "num_threads": min(num_envs, available_cores()) if task.parallel else 1,
            # EnvPool would mark an episode that terminates exactly at the limit as truncated.
            "max_episode_steps": self._limit + 1,
        }
        self._pool: Any = None
        self._episodes = EpisodeTracker(num_envs, crash_dir)
        self._all = np.arange(num_envs, dtype=np.int32)
        self._observations = ArraySpace.of(self.observation_space, "observation")
        self._actions = ArraySpace.of(self.action_space, "action")
        spec = self._make_spec(factory.env_id)
        self._pool_action_dtype = np.dtype(spec.action_array_spec["action"].dtype)
        place = {name: number for number, name in enumerate(spec._state_keys)}
        self._pick = itemgetter(*(place[name] for name in ("obs", "reward", "done", "elapsed_step")))
        self._lives_place = place["info:lives"] if task.marks_life_loss else None
        self._lives = np.zeros(num_envs, np.int32)

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        self._episodes.check_open()
        if len(set(indices)) < len(indices) or not all(0 <= index < self.num_envs for index in indices):
            raise ValueError(f"indices must be different envs below {self.num_envs}, got {list(indices)}")
        if len(indices) == 0:
            return np.empty((0, *self._observations.shape), self._observations.dtype), []
        for row, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            self._episodes.start(index, seed, None if episodes is None else episodes[row])
        if self._pool is None:
            self._pool = self._make_pool(seeds[0])
        pool = self._pool
        try:
            pool._reset(np.array(indices, np.int32))
            state = pool._recv()
        except BaseException:
            self.close()  # an unread reply would be read as the next one
            raise
        obs = self._cast_obs(self._pick(state)[0])
        self._episodes.check_finite(self._observations, obs, indices)
        for index in indices:
            self._episodes.started(index)
        if self._lives_place is not None:
            self._lives[list(indices)] = state[self._lives_place]
        return obs, [{} for _ in indices]

    def step(self, actions: np.ndarray) -> StepResult:
        episodes = self._episodes
        if episodes.must_reset:
            episodes.raise_reset_needed()
        actions = self._actions.cast_actions(actions, self.num_envs).astype(self._pool_action_dtype, copy=False)
        pool = self._pool
        try:
            # The calls inside `pool.step`, which also sorts the reply into dicts: a third longer for 8 CartPoles.
            pool._send([self._all, self._all, actions])
            state = pool._recv()
        except BaseException:
            self.close()
            raise
        obs, rewards, terminated, elapsed = self._pick(state)
        obs = self._cast_obs(obs)
        episodes.check_finite(self._observations, obs)
        if not np.isfinite(rewards).all():
            bad = int(np.isfinite(rewards).argmin())
            raise episodes.error(bad, f"returned the reward {rewards[bad]}, which is not finite,")
        truncated = elapsed >= self._limit
        ended: list[int] = (terminated | truncated).nonzero()[0].tolist()
        episodes.num_steps += 1
        episodes.must_reset.update(ended)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self._lives_place is not None:
            lives_before, self._lives = self._lives, state[self._lives_place]
            for index in ((self._lives > 0) & (self._lives < lives_before)).nonzero()[0]:
                infos[index]["life_lost"] = True
        return StepResult(obs, rewards.astype(np.float64), terminated, truncated, infos, ended)

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        self._episodes.check_open()
        raise ReplayDivergedError(f"env {index} cannot be replayed: EnvPool does not seed single episodes")

    def get_state(self, index: int) -> EnvState | None:
        self._episodes.check_open()
        return None

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        self._episodes.check_open()
        raise EnvError(f"env {index} has no get_state and set_state")

    def close(self) -> None:
        self._episodes.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None  # its threads end with the last reference

    def __enter__(self) -> "EnvPoolEnvs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cast_obs(self, obs: np.ndarray) -> np.ndarray:
        """Return the rows in the dtype of the space. EnvPool returns new arrays each time: they need no copy."""
        return obs.astype(self._observations.dtype, copy=False)

    def _make_pool(self, seed: int) -> Any:
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1  # EnvPool accepts 31 bits
        return self._envpool.make_gymnasium(self._task, env_seed=seeds.tolist(), **self._options)

    def _make_spec(self, env_id: str) -> Any:
        """Return EnvPool's description of the env; raise if its spaces differ from those of Gymnasium's version."""
        if self._task not in self._envpool.list_all_envs():
            reject(f"it has no game for env_id {env_id!r}")
        spec = self._envpool.make_spec(self._task, **self._options)
        obs, action, space = spec.state_array_spec["obs"], spec.action_array_spec["action"], self.action_space
        expected = [self._observations.shape, self._observations.dtype.kind, self._actions.shape]
        found = [tuple(obs.shape), np.dtype(obs.dtype).kind, tuple(action.shape[1:])]  # [0]: players, here always one
        if isinstance(space, Discrete):
            bounds_agree = (action.minimum, action.maximum) == (0, space.n - 1) and space.start == 0
        else:
            low, high = np.asarray(action.minimum, space.dtype), np.asarray(action.maximum, space.dtype)
            bounds_agree = isinstance(space, Box) and bool(np.all(space.low == low) and np.all(space.high == high))
        if found != expected or not bounds_agree:
            reject(
                f"its {env_id} has observations {obs} and actions {action}, but Gymnasium's {self.observation_space} "
                f"and {space}"
            )
        return spec


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
