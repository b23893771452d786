"""Environments with one fault each, for `python -m benchmarks fuzz`: wrong values, wrong spaces, wrong behaviour.

Importing this module registers `Faulty-v0`; its argument `fault` chooses one of `FAULTS`.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LENGTH = 12  # steps of an episode


class UnprintableError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no text for this error")


class UnusualExit(BaseException):
    """An exception that `except Exception` does not catch."""


def _raise(error: BaseException) -> Any:
    raise error


def _recurse(depth: int = 0) -> int:
    return _recurse(depth + 1) + 1


NAN = float("nan")
BOX = spaces.Box(-10.0, 10.0, (3,), np.float32)
OBS = np.zeros(3, np.float32)

# What `reset` or `step` return as the observation.
OBSERVATIONS: dict[str, Callable[[], Any]] = {
    "obs_nan": lambda: np.array([0.0, NAN, 0.0], np.float32),
    "obs_inf": lambda: np.array([0.0, np.inf, 0.0], np.float32),
    "obs_overflow": lambda: np.array([0.0, 1e300, 0.0], np.float64),
    "obs_none": lambda: None,
    "obs_text": lambda: "an observation",
    "obs_short": lambda: OBS[:2],
    "obs_long": lambda: np.zeros(4, np.float32),
    "obs_deep": lambda: np.zeros((3, 1), np.float32),
    "obs_complex": lambda: np.zeros(3, np.complex64),
    "obs_objects": lambda: np.array([object()] * 3),
    "obs_ragged": lambda: [[0.0], [0.0, 1.0], 0.0],
    "obs_dict": lambda: {"value": OBS},
    "obs_tuple": lambda: (OBS, OBS),
    "obs_empty": lambda: np.zeros(0, np.float32),
}
REWARDS: dict[str, Callable[[], Any]] = {
    "reward_nan": lambda: NAN,
    "reward_inf": lambda: -np.inf,
    "reward_overflow": lambda: 1e300,
    "reward_none": lambda: None,
    "reward_text": lambda: "1.0",
    "reward_vector": lambda: np.ones(2),
    "reward_complex": lambda: 1j,
    "reward_list": lambda: [1.0],
    "reward_object": lambda: object(),
}
FLAGS: dict[str, Callable[[], Any]] = {
    "flag_none": lambda: None,
    "flag_text": lambda: "False",
    "flag_nan": lambda: NAN,
    "flag_vector": lambda: np.array([True, False]),
    "flag_two": lambda: 2,
    "flag_object": lambda: object(),
}
INFOS: dict[str, Callable[[], Any]] = {"info_none": lambda: None, "info_list": lambda: [], "info_text": lambda: "info"}
ERRORS: dict[str, Callable[[], Any]] = {
    "raise": lambda: _raise(ValueError("on purpose")),
    "raise_unprintable": lambda: _raise(UnprintableError()),
    "raise_surrogate": lambda: _raise(ValueError("lone surrogate \ud800")),
    "raise_base": lambda: _raise(UnusualExit("on purpose")),
    "raise_memory": lambda: _raise(MemoryError()),
    "raise_stop": lambda: _raise(StopIteration()),
    "raise_generator": lambda: _raise(GeneratorExit()),
    "raise_os": lambda: _raise(FileNotFoundError(2, "no such asset", "asset.xml")),
    "raise_long": lambda: _raise(ValueError("x" * 200_000)),
    "recurse": _recurse,
    "exit_0": lambda: sys.exit(0),
    "exit_text": lambda: sys.exit("leaving"),
    "hang": lambda: time.sleep(3_600),
}
TUPLES: dict[str, Callable[[], Any]] = {
    "return_none": lambda: None,
    "return_obs": lambda: OBS,
    "return_short": lambda: (OBS,),
    "return_old_api": lambda: (OBS, 0.0, False, {}),
    "return_long": lambda: (OBS, 0.0, False, False, {}, None),
    "return_generator": lambda: (x for x in range(5)),
}
SPACES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "space_big_endian": lambda: (spaces.Box(-1.0, 1.0, (3,), np.dtype(">f4")), None),
    "space_float128": lambda: (spaces.Box(-1.0, 1.0, (3,), np.longdouble), None),
    "space_empty": lambda: (spaces.Box(-1.0, 1.0, (0,), np.float32), None),
    "space_scalar": lambda: (spaces.Box(-1.0, 1.0, (), np.float32), None),
    "space_text": lambda: (spaces.Text(5), None),
    "space_graph": lambda: (spaces.Graph(spaces.Box(-1, 1, (2,)), None), None),
    "space_sequence": lambda: (spaces.Sequence(spaces.Discrete(3)), None),
    "space_one_of": lambda: (spaces.OneOf([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]), None),
    "space_none": lambda: (None, None),
    "space_word": lambda: ("Box(3,)", None),
    "space_nested": lambda: (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])}), None),
    "actions_none": lambda: (BOX, None),
    "actions_word": lambda: (BOX, "Discrete(2)"),
    "actions_text": lambda: (BOX, spaces.Text(5)),
    "actions_dict": lambda: (BOX, spaces.Dict({"a": spaces.Discrete(2)})),
    "actions_infinite": lambda: (BOX, spaces.Box(-np.inf, np.inf, (1,), np.float32)),
    "actions_nan": lambda: (BOX, spaces.Box(np.array([np.nan]), np.array([1.0]), (1,), np.float64)),
    "actions_many": lambda: (BOX, spaces.Discrete(10**15)),
}
DURING_EPISODES = {**OBSERVATIONS, **REWARDS, **FLAGS, **INFOS, **ERRORS, **TUPLES}
FAULTS = [*DURING_EPISODES, *SPACES, "close_raises", "close_exits", "init_raises", "init_exits", "thread_left"]


class Faulty(gym.Env[Any, Any]):
    """Behave until step `step` of the first episode (0: its reset), then show `fault`."""

    def __init__(self, fault: str, step: int = 3) -> None:
        if fault.startswith("init_"):
            _raise(ValueError("on purpose") if fault == "init_raises" else SystemExit(0))
        self.observation_space: Any = BOX
        self.action_space: Any = spaces.Discrete(2)
        if fault in SPACES:
            self.observation_space, self.action_space = SPACES[fault]()
            if fault.startswith("space_"):
                self.action_space = spaces.Discrete(2)
        if fault == "thread_left":
            threading.Thread(target=time.sleep, args=(3_600,)).start()
        self._fault, self._fault_step = fault, step
        self._episode, self._num_steps = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._episode, self._num_steps = self._episode + 1, 0
        return self._shown((self._observe(), {}))

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        return self._shown((self._observe(), 1.0, False, self._num_steps >= LENGTH, {}))

    def close(self) -> None:
        if self._fault == "close_raises":
            raise ValueError("on purpose")
        if self._fault == "close_exits":
            sys.exit(0)

    def _observe(self) -> Any:
        if self._fault.startswith("space_") and isinstance(self.observation_space, gym.Space):
            return self.observation_space.sample()
        return np.array([self._num_steps, 0.0, 1.0], np.float32)

    def _shown(self, result: tuple[Any, ...]) -> Any:
        """Return the result of `reset` or `step`, with the fault in it when its time has come."""
        fault = self._fault
        if fault not in DURING_EPISODES or self._episode != 0 or self._num_steps != self._fault_step:
            return result
        value = DURING_EPISODES[fault]()
        if fault in TUPLES:
            return value
        obs, *others = result
        if fault in OBSERVATIONS:
            return value, *others
        if fault in INFOS:
            return *result[:-1], value
        if len(result) == 5:
            reward, terminated = (value, False) if fault in REWARDS else (1.0, value)
            return obs, reward, terminated, False, result[-1]
        return result


gym.register("Faulty-v0", entry_point="benchmarks.fuzz_envs:Faulty")
