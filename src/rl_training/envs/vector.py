"""A group of single environments, none of which resets by itself.

The collector decides when an environment is reset and with which seed; `step` therefore always gives the
true successor of a state, also at the end of an episode. `SyncEnvs` steps the environments one after the
other in this process, `workers.AsyncEnvs` in one process each, with the same results bit for bit.
"""

import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation, OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.core.frame_space import FrameStackSpace
from rl_training.envs.dict_obs import PackedDictObs
from rl_training.errors import EnvError, SpaceError

Obs = np.ndarray  # one env's observation
Env = gym.Env[Any, Any]
EnvState = dict[str, np.ndarray]

# Keys that we add to an env's own state: what its time limits have counted, and how far its episode is.
ELAPSED_STEPS_KEY = "rl_training/elapsed_steps"
NUM_STEPS_KEY = "rl_training/num_steps"


# Wrappers that remember nothing of an episode but what we put back ourselves.
FORGETFUL = (TimeLimit, OrderEnforcing, PassiveEnvChecker, PackedDictObs)


class ReplayDivergedError(EnvError):
    """A replayed episode ended before its last action: the environment does not repeat itself."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of every env gave; the arrays belong to the caller and are never overwritten.

    `obs`: (num_envs, *obs_shape) in the observation space's dtype; `rewards`: (num_envs,) float64;
    `terminated`, `truncated`: (num_envs,) bool; `ended`: the indices of the envs where either holds.
    """

    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[dict[str, Any]]
    ended: list[int]


class EnvGroup(Protocol):
    """What the collector needs of environments; spaces are those of a single env."""

    num_envs: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Reset just these envs and give their observations, (len(indices), *obs_shape).

        `episodes` are the numbers that error messages name; without them each env counts its resets from 0.
        """

    def step(self, actions: np.ndarray) -> StepResult:
        """Step every env once; an env whose episode has ended must have been reset."""

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        """Reset one env with `seed`, repeat `actions`, (steps, *action_shape), and give the last observation.

        Raises `ReplayDivergedError` if the episode ends before the last action.
        """

    def get_state(self, index: int) -> EnvState | None:
        """Give the env's own state, or None where it does not offer `get_state` and `set_state`."""

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        """Put back a state from `get_state`, in an env that was reset; give the observation if the env gives one."""

    def close(self) -> None:
        """Close every env; calling it again does nothing."""


@dataclass(frozen=True, slots=True)
class ArraySpace:
    """The array that one element of a gymnasium space is stored in."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    text: str  # the space as it prints, for messages

    @classmethod
    def of(cls, space: gym.Space[Any], role: str) -> "ArraySpace":
        shape, dtype = space.shape, space.dtype
        if shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
            raise SpaceError(f"the {role} space must be one array of numbers, but it is {space}")
        return cls(shape=tuple(shape), dtype=np.dtype(dtype), text=str(space))

    def check(self, obs: object) -> None:
        """Refuse an observation that the space does not declare: another shape, or floats for integers."""
        found = np.asarray(obs)
        if found.shape != self.shape:
            raise EnvError(self.wrong_shape(found.shape))
        if found.dtype.kind != self.dtype.kind and not {found.dtype.kind, self.dtype.kind} <= {"i", "u"}:
            raise EnvError(
                f"returned an observation of dtype {found.dtype}, but its observation space {self.text} "
                f"declares {self.dtype}"
            )

    def wrong_shape(self, found: tuple[int, ...]) -> str:
        return (
            f"returned an observation of shape {found}, but its observation space {self.text} declares "
            f"shape {self.shape}"
        )

    def cast_actions(self, actions: np.ndarray, count: int) -> np.ndarray:
        """Copy `actions`, (count, *shape), into the space's dtype: an env may keep the row it is given."""
        if actions.shape != (count, *self.shape):
            raise ValueError(f"actions must have shape {(count, *self.shape)}, got {actions.shape}")
        return actions.astype(self.dtype, casting="same_kind")


def check_env(env: object) -> Env:
    """Refuse what a factory must not return; make one array of a Dict observation; recognise stacked frames."""
    if isinstance(env, gym.vector.VectorEnv):
        raise EnvError(
            f"came from a factory that returned the vector environment {env!r}; it must return a single "
            "environment, and num_envs says how many there are,"
        )
    if not isinstance(env, gym.Env):
        raise EnvError(f"came from a factory that returned {type(env).__name__} {env!r}, not a gymnasium.Env,")
    if not isinstance(env.observation_space, gym.spaces.Dict):
        _declare_stacked_frames(env)
        return env
    try:
        return PackedDictObs(env)
    except SpaceError:
        env.close()
        raise


def _declare_stacked_frames(env: Env) -> None:
    """Say of grey frames that Gymnasium's own wrapper stacks that they are a stack."""
    space, wrapper = env.observation_space, env
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3 or space.low.any():
        return
    shape, high = space.shape, int(space.high.max())
    # Wrappers around it that keep its space keep its observations, too; if one does not, nothing but memory is lost.
    while isinstance(wrapper, gym.Wrapper) and wrapper.observation_space is space:
        if isinstance(wrapper, FrameStackObservation):
            env.observation_space = FrameStackSpace(wrapper.stack_size, shape, high=high)
            return
        wrapper = wrapper.env


# ---------------------------------------------------------------------------------------------- one environment


class EnvSlot:
    """One environment of a group, with the checks on what it returns. Used here and inside the workers."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self._made = env.env if isinstance(env, PackedDictObs) else env  # as the factory made it
        self.observations = ArraySpace.of(env.observation_space, "observation")
        self.actions = ArraySpace.of(env.action_space, "action")

    def check_spaces(self, observations: ArraySpace, actions: ArraySpace) -> None:
        """Refuse an env whose spaces are not those of the group."""
        if (self.observations, self.actions) != (observations, actions):
            raise EnvError(
                f"has the spaces {self.observations.text} and {self.actions.text}, but the group has "
                f"{observations.text} and {actions.text}; the env factory must always make the same kind"
            )

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed)
        self.observations.check(obs)
        return obs, info

    def replay(
        self, seed: int, actions: np.ndarray, report_progress: Callable[[], None] | None = None
    ) -> tuple[np.ndarray, bool]:
        """Give the observation after `actions` and whether the last of them ended the episode."""
        obs, _ = self.reset(seed)
        ended = False
        if len(actions) > 0:  # no action yet: then there is no row to tell their shape by
            actions = self.actions.cast_actions(actions, len(actions))
        for number, action in enumerate(actions, start=1):
            obs, _, terminated, truncated, _ = self.env.step(action)
            ended = bool(terminated or truncated)
            if ended and number < len(actions):
                raise ReplayDivergedError(f"ended its episode at step {number} of {len(actions)} replayed steps")
            if report_progress is not None:
                report_progress()
        self.observations.check(obs)
        return np.array(obs, dtype=self.observations.dtype), ended

    def get_state(self) -> EnvState | None:
        holder = self._state_holder()
        if holder is None:
            return None
        state = holder.get_state()
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            return None  # another meaning of get_state than ours
        arrays = {key: np.array(value) for key, value in state.items()}
        if any(array.dtype.kind not in "biufc" for array in arrays.values()):
            return None
        elapsed = [limit._elapsed_steps or 0 for limit in self._time_limits()]
        return arrays if holder is self._made else arrays | {ELAPSED_STEPS_KEY: np.array(elapsed, dtype=np.int64)}

    def set_state(self, state: EnvState) -> np.ndarray | None:
        holder = self._state_holder()
        if holder is None:
            raise EnvError("has no get_state and set_state")
        own = {key: value.copy() for key, value in state.items() if key not in (ELAPSED_STEPS_KEY, NUM_STEPS_KEY)}
        obs = holder.set_state(own)
        if holder is not self._made:
            for limit, elapsed in zip(self._time_limits(), state[ELAPSED_STEPS_KEY], strict=True):
                limit._elapsed_steps = int(elapsed)
        if obs is None:
            return None
        if isinstance(self.env, PackedDictObs):
            obs = self.env.pack(obs)
        self.observations.check(obs)
        return np.array(obs, dtype=self.observations.dtype)

    def _state_holder(self) -> Any:
        """The outermost env if it offers its state, else the innermost, else None.

        Below wrappers the state is enough only if they remember nothing that we do not put back ourselves:
        a frame stack, say, would silently keep the frames of another episode.
        """
        forgetful = all(isinstance(wrapper, FORGETFUL) for wrapper in self._wrappers())
        candidates = [self._made, self._made.unwrapped] if forgetful else [self._made]
        for env in candidates:
            if callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None)):
                return env
        return None

    def _wrappers(self) -> Iterator[gym.Wrapper[Any, Any, Any, Any]]:
        env: Env = self.env
        while isinstance(env, gym.Wrapper):
            yield env
            env = env.env

    def _time_limits(self) -> list[Any]:
        return [wrapper for wrapper in self._wrappers() if isinstance(wrapper, TimeLimit)]


# --------------------------------------------------------------------------- which episode each env is in, errors


class Episodes:
    """Which episode each env of a group is in: what error messages name, and who must be reset before a step."""

    def __init__(self, num_envs: int, crash_dir: Path | None) -> None:
        self.crash_dir = crash_dir
        self.must_reset = set(range(num_envs))
        self.failure = ""  # the first error, if there was one
        self.closed = False
        self.num_steps = 0  # of the whole group; an env's own step is the difference to its episode's start
        self._starts = [0] * num_envs
        self._seeds = [0] * num_envs
        self._numbers = [-1] * num_envs
        self._places = ["the reset"] * num_envs  # empty while the episode runs

    def start(self, index: int, seed: int, number: int | None = None, place: str = "the reset") -> None:
        self._seeds[index] = seed
        self._numbers[index] = self._numbers[index] + 1 if number is None else number
        self._starts[index] = self.num_steps
        self._places[index] = place
        self.must_reset.add(index)

    def started(self, index: int, num_steps: int = 0, ended: bool = False) -> None:
        """Note that the episode of `index` runs, and has run for `num_steps` steps already."""
        self._starts[index] = self.num_steps - num_steps
        self._places[index] = ""
        if not ended:
            self.must_reset.discard(index)

    def with_num_steps(self, index: int, state: EnvState | None) -> EnvState | None:
        """Add to an env's state how many steps its episode has."""
        return None if state is None else state | {NUM_STEPS_KEY: np.array(self.num_steps - self._starts[index])}

    def close(self) -> None:
        self.closed = True
        self.must_reset = set(range(len(self._starts)))  # so that `step` has one condition to look at

    def refuse_if_closed(self) -> None:
        if self.closed and self.failure:
            raise EnvError(f"the environments are closed, because {self.failure}")
        if self.closed:
            raise RuntimeError("the environments are closed")

    def refuse_step(self) -> None:
        self.refuse_if_closed()
        raise RuntimeError(f"envs {sorted(self.must_reset)} must be reset before the next step: their episode ended")

    def where(self, index: int) -> str:
        """Say where env `index` is: at the step that is being taken, counted from 1, or at a reset."""
        if self._numbers[index] < 0:
            return "before its first episode"
        place = self._places[index] or f"step {self.num_steps - self._starts[index] + 1}"
        return f"at {place} of episode {self._numbers[index]} (seed {self._seeds[index]})"

    def error(self, index: int, what: str, traceback_text: str = "", kind: type[EnvError] = EnvError) -> EnvError:
        """Make the error that says what env `index` did and where, and leave the traceback in the crash folder."""
        message = f"env {index} {what} {self.where(index)}"
        if self.crash_dir is not None and kind is not ReplayDivergedError:
            path = self.crash_dir / f"env_{index}.txt"
            try:
                self.crash_dir.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{message}\n\n{traceback_text or 'The environment left no traceback.'}\n", "utf-8")
            except OSError as problem:
                return kind(f"{message}; its traceback could not be written to {path}: {problem}")
            message += f"; see {path}"
        self.failure = self.failure or message
        return kind(message)

    def error_from(self, index: int, cause: Exception) -> EnvError:
        kind = type(cause) if isinstance(cause, EnvError) else EnvError
        return self.error(index, describe(cause), format_traceback(cause), kind)


def describe(cause: Exception) -> str:
    """Say what an env did; an `EnvError` from our own checks already reads so."""
    return str(cause) if isinstance(cause, EnvError) else f"raised {type(cause).__name__}: {cause}"


def format_traceback(cause: BaseException) -> str:
    return "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))


def describe_exit(exit_code: int | None) -> str:
    """Say how a process ended; a negative exit code is the signal that ended it."""
    if exit_code is None:
        return "closed its connection"
    if exit_code >= 0:
        return f"ended its process with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}, exit code {exit_code},"


# ------------------------------------------------------------------------------------------------ in this process


class SyncEnvs:
    """Environments stepped one after the other in this process."""

    def __init__(self, factory: Callable[[], Env], num_envs: int = 1, *, crash_dir: Path | None = None) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs = num_envs
        self._episodes = Episodes(num_envs, crash_dir)
        self._slots: list[EnvSlot] = []
        for index in range(num_envs):
            try:
                self._slots.append(EnvSlot(check_env(factory())))
                self._slots[index].check_spaces(self._slots[0].observations, self._slots[0].actions)
            except SpaceError:
                self.close()
                raise
            except Exception as cause:
                self.close()
                raise self._episodes.error_from(index, cause) from cause
        self.observation_space = self._slots[0].env.observation_space
        self.action_space = self._slots[0].env.action_space
        self._observations, self._actions = self._slots[0].observations, self._slots[0].actions
        self._obs_shape, self._obs_dtype = self._observations.shape, self._observations.dtype
        self._batch_shape = (num_envs, *self._obs_shape)

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        self._episodes.refuse_if_closed()
        observations = np.empty((len(indices), *self._obs_shape), self._obs_dtype)
        infos = []
        for row, (index, seed) in enumerate(zip(indices, seeds, strict=True)):
            self._episodes.start(index, seed, None if episodes is None else episodes[row])
            try:
                observations[row], info = self._slots[index].reset(seed)
            except Exception as cause:
                raise self._episodes.error_from(index, cause) from cause
            self._episodes.started(index)
            infos.append(info)
        return observations, infos

    def step(self, actions: np.ndarray) -> StepResult:
        episodes = self._episodes
        if episodes.must_reset:
            episodes.refuse_step()
        num_envs, obs_shape = self.num_envs, self._obs_shape
        actions = self._actions.cast_actions(actions, num_envs)
        observations = np.empty(self._batch_shape, self._obs_dtype)
        rewards = np.empty(num_envs)
        terminations = np.empty(num_envs, np.bool_)
        truncations = np.empty(num_envs, np.bool_)
        infos = []
        ended = []
        index = 0
        try:
            for index, slot in enumerate(self._slots):
                # A row of a Discrete action is a numpy integer: CartPole's `contains` takes it faster than an int.
                obs, reward, terminated, truncated, info = slot.env.step(actions[index])
                # Without this a (1,) observation would be broadcast silently.
                if (obs.shape if type(obs) is np.ndarray else np.shape(obs)) != obs_shape:
                    raise EnvError(self._observations.wrong_shape(np.shape(obs)))
                observations[index] = obs
                rewards[index] = reward
                terminations[index] = terminated
                truncations[index] = truncated
                if terminated or truncated:
                    ended.append(index)
                infos.append(info)
        except Exception as cause:
            raise episodes.error_from(index, cause) from cause
        episodes.num_steps += 1
        episodes.must_reset.update(ended)
        return StepResult(observations, rewards, terminations, truncations, infos, ended)

    def replay(self, index: int, seed: int, actions: np.ndarray, episode: int | None = None) -> np.ndarray:
        self._episodes.refuse_if_closed()
        self._episodes.start(index, seed, episode, "the replay")
        try:
            obs, ended = self._slots[index].replay(seed, actions)
        except Exception as cause:
            raise self._episodes.error_from(index, cause) from cause
        self._episodes.started(index, len(actions), ended)
        return obs

    def get_state(self, index: int) -> EnvState | None:
        self._episodes.refuse_if_closed()
        try:
            return self._episodes.with_num_steps(index, self._slots[index].get_state())
        except Exception as cause:
            raise self._episodes.error_from(index, cause) from cause

    def set_state(self, index: int, state: EnvState) -> np.ndarray | None:
        self._episodes.refuse_if_closed()
        try:
            obs = self._slots[index].set_state(state)
        except Exception as cause:
            raise self._episodes.error_from(index, cause) from cause
        self._episodes.started(index, int(state[NUM_STEPS_KEY]))
        return obs

    def close(self) -> None:
        slots, self._slots = self._slots, []
        self._episodes.close()
        for slot in slots:
            slot.env.close()

    def __enter__(self) -> "SyncEnvs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
