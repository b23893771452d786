"""Environments that are learned in seconds and whose optimal values are known, for tests and documentation.

Registered as `rl_training/<name>-v0` when `rl_training.envs.factory` is imported: Chain, Identity, TwoArmedBandit,
Lottery, TinyImage, Catch, TinyDict, Masked and Misbehaving.
"""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

StepTuple = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
ResetTuple = tuple[np.ndarray, dict[str, Any]]


class Chain(gym.Env[np.ndarray, np.int64]):
    """Walk along `num_states` states to the right end: reward 1 on arriving there, which terminates.

    Observation: the state, one-hot. Action 0 moves left (and stays at the left end), 1 moves right. Each
    episode starts at the left end, or anywhere but the right end with `random_start`.
    Optimal: always right; V*(s) = gamma ** (num_states - 2 - s), see `optimal_q`. Best return: 1.
    """

    def __init__(self, num_states: int = 5, random_start: bool = False) -> None:
        if num_states < 2:
            raise ValueError(f"num_states must be at least 2, got {num_states}")
        self.observation_space = Box(0.0, 1.0, (num_states,), np.float32)
        self.action_space = Discrete(2)
        self._num_states, self._random_start = num_states, random_start
        self._state = 0

    @staticmethod
    def optimal_q(gamma: float, num_states: int = 5) -> np.ndarray:
        """Return Q*, (num_states, 2); the row of the right end, where no action is taken, is zero."""
        distance = np.arange(num_states - 2, -1, -1)  # steps from state s to the state before the end
        values = gamma ** distance.astype(np.float64)
        left_neighbours = np.maximum(np.arange(num_states - 1) - 1, 0)
        optimal = np.zeros((num_states, 2))
        optimal[:-1, 0] = gamma * values[left_neighbours]
        optimal[:-1, 1] = values
        return optimal

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(self._num_states - 1)) if self._random_start else 0
        return self._observe(), {}

    def step(self, action: np.int64) -> StepTuple:
        self._state = max(self._state + (1 if action == 1 else -1), 0)
        arrived = self._state == self._num_states - 1
        return self._observe(), float(arrived), arrived, False, {}

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self._num_states, np.float32)
        obs[self._state] = 1.0
        return obs


ActionsOfIdentity = Literal["discrete", "box", "multidiscrete", "multibinary"]


class Identity(gym.Env[np.ndarray, Any]):
    """Answer each observation with itself; every episode is truncated after `length` steps.

    `actions` is the kind of answer; each step draws a new observation, independent of the action.
    discrete: one of `size` symbols, seen one-hot; reward 1 for the same, else 0. Best return: `length`.
    multidiscrete: two such symbols; the reward is the share of right ones. Best return: `length`.
    multibinary: `size` bits; the reward is the share of right ones. Best return: `length`.
    box (or `continuous`): a vector in [-1, 1]^size; the reward is minus the squared distance. Best return: 0.
    Q*(s, a) is the reward of a in s, plus gamma / (1 - gamma) unless the actions are a Box.
    """

    def __init__(
        self, size: int = 3, length: int = 10, continuous: bool = False, actions: ActionsOfIdentity = "discrete"
    ) -> None:
        self._actions: ActionsOfIdentity = "box" if continuous else actions
        spaces: dict[str, gym.Space[Any]] = {
            "discrete": Discrete(size),
            "box": Box(-1.0, 1.0, (size,), np.float32),
            "multidiscrete": MultiDiscrete([size, size]),
            "multibinary": MultiBinary(size),
        }
        if self._actions not in spaces:
            raise ValueError(f"actions must be one of {', '.join(spaces)}, got {actions!r}")
        self.action_space = spaces[self._actions]
        low = -1.0 if self._actions == "box" else 0.0
        self._width = 2 * size if self._actions == "multidiscrete" else size
        self.observation_space = Box(low, 1.0, (self._width,), np.float32)
        self._size, self._length = size, length
        self._obs: np.ndarray = np.zeros(self._width, np.float32)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> StepTuple:
        reward = self._reward(action)
        self._num_steps += 1
        return self._draw(), reward, False, self._num_steps >= self._length, {}

    def _reward(self, action: Any) -> float:
        match self._actions:
            case "box":
                return -float(np.square(np.asarray(action, np.float64) - self._obs).sum())
            case "multibinary":
                return float((np.asarray(action) == self._obs).mean())
            case _:
                symbols = np.atleast_1d(action)
                return float(self._obs.reshape(len(symbols), self._size)[range(len(symbols)), symbols].mean())

    def _draw(self) -> np.ndarray:
        if self._actions == "box":
            self._obs = self.np_random.uniform(-1.0, 1.0, self._width).astype(np.float32)
        elif self._actions == "multibinary":
            self._obs = self.np_random.integers(2, size=self._width).astype(np.float32)
        else:
            self._obs = np.zeros(self._width, np.float32)
            for start in range(0, self._width, self._size):
                self._obs[start + self.np_random.integers(self._size)] = 1.0
        return np.array(self._obs)


class TwoArmedBandit(gym.Env[np.ndarray, np.int64]):
    """Pull one arm and terminate: the reward is the arm's mean plus Gaussian noise of deviation `noise`.

    The observation is always [1]. Q*(a) = means[a] for any gamma. Best mean return: max(means).
    """

    def __init__(self, means: Sequence[float] = (0.2, 0.8), noise: float = 0.1) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(len(means))
        self._means, self._noise = tuple(means), noise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> StepTuple:
        reward = self._means[action] + self._noise * self.np_random.standard_normal()
        return np.ones(1, np.float32), float(reward), True, False, {}


class Lottery(gym.Env[np.ndarray, np.int64]):
    """Draw a ticket twice, then terminate; not only the mean but the distribution of the return is known.

    Observation: which draw is next, one-hot. Action a draws a reward uniform in [0, prizes[a]); with `coins` it is 0 or
    prizes[a], each half of the time. The best action is the one with the highest prize, at both draws.
    Returns: at the second draw the reward itself; at the first, with action a, uniform in [0, prizes[a]) plus an
    independent one in [0, gamma * max(prizes)), see `quantiles`. Best mean return: max(prizes).
    """

    def __init__(self, prizes: Sequence[float] = (1.0, 2.0), coins: bool = False) -> None:
        self.observation_space = Box(0.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(len(prizes))
        self._prizes, self._coins = tuple(prizes), coins
        self._draw = 0

    @staticmethod
    def quantiles(
        taus: np.ndarray, draw: int, action: int, gamma: float, prizes: Sequence[float] = (1.0, 2.0)
    ) -> np.ndarray:
        """Return the quantiles of the return of the optimal policy after `action` at draw 0 or 1, without `coins`."""
        taus = np.asarray(taus, np.float64)
        if draw == 1:
            return taus * prizes[action]
        short, long = sorted((prizes[action], gamma * max(prizes)))
        # The density of the sum is a trapezium: it rises over `short`, stays, and falls over `short`.
        edge = short / (2.0 * long)  # the mass below `short`
        rising = np.sqrt(2.0 * short * long * taus)
        falling = short + long - np.sqrt(2.0 * short * long * (1.0 - taus))
        return np.where(taus < edge, rising, np.where(taus > 1.0 - edge, falling, long * taus + short / 2.0))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._draw = 0
        return np.eye(2, dtype=np.float32)[0], {}

    def step(self, action: np.int64) -> StepTuple:
        share = float(self.np_random.integers(2)) if self._coins else self.np_random.random()
        self._draw += 1
        ended = self._draw == 2
        return np.eye(2, dtype=np.float32)[1], share * self._prizes[action], ended, False, {}


class TinyImage(gym.Env[np.ndarray, np.int64]):
    """Name the bright quadrant of a (size, size, 1) uint8 image; truncated after `length` steps.

    Actions: 0 top left, 1 top right, 2 bottom left, 3 bottom right. The bright quadrant is 255, the rest is
    noise below 64, both drawn again each step; reward 1 for the right quadrant, else 0.
    Q*(s, a) = [a is right] + gamma / (1 - gamma). Best return: `length`.
    """

    def __init__(self, size: int = 12, length: int = 10) -> None:
        self.observation_space = Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = Discrete(4)
        self._size, self._length = size, length
        self._quadrant, self._num_steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> StepTuple:
        reward = float(action == self._quadrant)
        self._num_steps += 1
        return self._draw(), reward, False, self._num_steps >= self._length, {}

    def _draw(self) -> np.ndarray:
        self._quadrant = int(self.np_random.integers(4))
        image = self.np_random.integers(64, size=(self._size, self._size, 1), dtype=np.uint8)
        half = self._size // 2
        row, column = half * (self._quadrant // 2), half * (self._quadrant % 2)
        image[row : row + half, column : column + half] = 255
        return image


class Catch(gym.Env[np.ndarray, np.int64]):
    """Catch a ball that falls from the top of a (size, size, 1) uint8 image of 8x8 cells; the ball fills one cell.

    The ball starts in any column of the first row and falls one row per step; the paddle, one cell of the last row,
    starts in any column. Actions: 0 left, 1 stay, 2 right. When the ball arrives, after 7 steps, the episode terminates
    with reward 1 if the paddle is below it, else 0: a mean return is the share of balls caught. Best return: 1, as
    every column is within reach; V*(s) = gamma ** (steps left - 1) while the ball can be caught.
    """

    cells = 8

    def __init__(self, size: int = 16) -> None:
        if size < self.cells or size % self.cells:
            raise ValueError(f"size must be a multiple of {self.cells}, got {size}")
        self.observation_space = Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = Discrete(3)
        self._pixels = size // self.cells
        self._row, self._column, self._paddle = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._row = 0
        self._column, self._paddle = (int(drawn) for drawn in self.np_random.integers(self.cells, size=2))
        return self._draw(), {}

    def step(self, action: np.int64) -> StepTuple:
        self._row += 1
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.cells - 1)
        arrived = self._row == self.cells - 1
        return self._draw(), float(arrived and self._paddle == self._column), arrived, False, {}

    def _draw(self) -> np.ndarray:
        board = np.zeros((self.cells, self.cells), np.uint8)
        board[self._row, self._column] = board[-1, self._paddle] = 255
        return board.repeat(self._pixels, 0).repeat(self._pixels, 1)[..., None]


class ContinuousCatch(Catch):
    """Catch with a number in [-1, 1] as the action: below -1/3 left, above 1/3 right, else stay."""

    def __init__(self, size: int = 16) -> None:
        super().__init__(size)
        self.action_space: gym.Space[Any] = Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> StepTuple:
        return super().step(np.int64(np.digitize(float(action[0]), (-1.0 / 3.0, 1.0 / 3.0))))


class TinyDict(gym.Env[Any, np.int64]):
    """Add the numbers that an image and a vector show, modulo 3; truncated after `length` steps.

    `image`: (8, 8, 1) uint8, a bright quadrant (0 top left, 1 top right, 2 bottom left) over noise below 64. `vector`:
    three numbers below 0.5, except for a 1 at the position of the second summand. Reward 1 for the sum modulo 3, else
    0. Either part alone leaves all three answers equally likely. Q*(s, a) = [a is right] + gamma / (1 - gamma). Best
    return: `length`.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space = Dict(
            {"image": Box(0, 255, (8, 8, 1), np.uint8), "vector": Box(0.0, 1.0, (3,), np.float32)}
        )
        self.action_space = Discrete(3)
        self._length = length
        self._answer, self._num_steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> Any:
        reward = float(action == self._answer)
        self._num_steps += 1
        return self._draw(), reward, False, self._num_steps >= self._length, {}

    def _draw(self) -> dict[str, np.ndarray]:
        quadrant, place = (int(drawn) for drawn in self.np_random.integers(3, size=2))
        self._answer = (quadrant + place) % 3
        image = self.np_random.integers(64, size=(8, 8, 1), dtype=np.uint8)
        row, column = 4 * (quadrant // 2), 4 * (quadrant % 2)
        image[row : row + 4, column : column + 4] = 255
        vector = self.np_random.uniform(0.0, 0.5, 3).astype(np.float32)
        vector[place] = 1.0
        return {"image": image, "vector": vector}


class Masked(gym.Env[Any, Any]):
    """Choose the highest of the valid actions; `info["action_mask"]`, drawn again each step, marks the valid ones.

    Observation: a rank for each of `num_actions` actions, 0 to 1 in random order. At least one action is valid and at
    least one is not. Reward 1 for the valid action of the highest rank, 0 for another valid one. An invalid action ends
    the episode with reward -1 and `info["invalid_action"]`; else it is truncated after `length` steps.
    `multi`: two such choices at once; the reward is the share of right ones, and both must be valid.
    `mask_in_obs`: the mask is in a Dict observation of `observation` and `action_mask`, not in the info.
    `all_false` returns a mask without valid actions at the reset, `all_false_at` at that step, which no env may do.
    Best return: `length`; the observation alone does not show which action is right.
    """

    def __init__(
        self,
        num_actions: int = 4,
        length: int = 10,
        *,
        mask_in_obs: bool = False,
        multi: bool = False,
        all_false: bool = False,
        all_false_at: int | None = None,
    ) -> None:
        if num_actions < 2:
            raise ValueError(f"num_actions must be at least 2, got {num_actions}")
        self._shape = (2 if multi else 1, num_actions)  # of ranks and mask: a row per choice
        self.action_space = MultiDiscrete([num_actions] * 2) if multi else Discrete(num_actions)
        width = self._shape[0] * num_actions
        ranks = Box(0.0, 1.0, (width,), np.float32)
        self.observation_space = (
            Dict({"observation": ranks, "action_mask": MultiBinary(width)}) if mask_in_obs else ranks
        )
        self._length, self._mask_in_obs = length, mask_in_obs
        self._all_false_at = 0 if all_false else all_false_at
        self._ranks = np.zeros(self._shape, np.float32)
        self._mask = np.ones(self._shape, np.bool_)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._draw()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = (range(self._shape[0]), np.atleast_1d(action))
        invalid = not self._mask[chosen].all()
        best = np.where(self._mask, self._ranks, -1.0).argmax(1)
        reward = -1.0 if invalid else float((chosen[1] == best).mean())
        self._num_steps += 1
        obs, info = self._draw()
        if invalid:
            info["invalid_action"] = True
        return obs, reward, invalid, self._num_steps >= self._length, info

    def _draw(self) -> tuple[Any, dict[str, Any]]:
        choices, actions = self._shape
        order = self.np_random.permuted(np.tile(np.arange(actions), (choices, 1)), axis=1)
        self._ranks = (order / (actions - 1)).astype(np.float32)
        # A random number of actions in random order: any subset except the empty one and all.
        places = self.np_random.permuted(np.tile(np.arange(actions), (choices, 1)), axis=1)
        self._mask = places < self.np_random.integers(1, actions, size=(choices, 1))
        if self._num_steps == self._all_false_at:
            self._mask[:] = False
        obs, mask = self._ranks.reshape(-1), self._mask.reshape(-1)
        if self._mask_in_obs:
            return {"observation": obs, "action_mask": mask.astype(np.int8)}, {}
        return obs, {"action_mask": mask.copy()}


Fault = Literal["none", "raise", "hang", "exit", "kill", "segfault", "nan_obs", "nan_reward", "shape", "dtype"]


class Misbehaving(gym.Env[np.ndarray, np.int64]):
    """Behave until step `step` of episode `episode`, then show `fault`; for tests of what happens then.

    Steps count from 1, with 0 for the reset; episodes from 0, by the resets of this object. The observation
    is (step, number drawn at the reset, 1); the reward is 1; episodes are truncated after `length` steps.
    """

    def __init__(self, fault: Fault = "none", step: int = 3, episode: int = 0, length: int = 10) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(2)
        self._fault, self._fault_step, self._fault_episode = fault, step, episode
        self._length = length
        self._episode, self._num_steps, self._drawn = -1, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        super().reset(seed=seed)
        self._episode, self._num_steps, self._drawn = self._episode + 1, 0, self.np_random.random()
        obs, _ = self._maybe_fault()
        return obs, {}

    def step(self, action: np.int64) -> StepTuple:
        self._num_steps += 1
        obs, reward = self._maybe_fault()
        return obs, reward, False, self._num_steps >= self._length, {}

    def _maybe_fault(self) -> tuple[np.ndarray, float]:
        obs = np.array([self._num_steps, self._drawn, 1], np.float32)
        if (self._episode, self._num_steps) != (self._fault_episode, self._fault_step):
            return obs, 1.0
        match self._fault:
            case "raise":
                raise ValueError("misbehaving on purpose")
            case "hang":
                time.sleep(3600)
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "nan_obs":
                return np.full(3, np.nan, np.float32), 1.0
            case "nan_reward":
                return obs, float("nan")
            case "shape":
                return obs[:1], 1.0
            case "dtype":
                return obs.astype(np.int64), 1.0
            case "none":
                pass
        return obs, 1.0
