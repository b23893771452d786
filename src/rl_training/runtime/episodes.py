"""Play one episode: what evaluations and recordings share."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rl_training.core.action_masks import MaskReader
from rl_training.core.spaces import observation_field, to_env_actions
from rl_training.core.types import Algorithm, Carry, act_on, reset_carry
from rl_training.envs.tensor_rows import TensorRows
from rl_training.envs.vector import EnvGroup, StepResult, SyncEnvs
from rl_training.errors import EnvError

MAX_EPISODE_STEPS = 27_000  # for an env without a time limit, which could play forever; Atari's usual limit

# From observations, (rows, *shape), and their action masks, (rows, choices), if there are any, to actions as an
# algorithm chooses them, (rows, *shape): choices count from 0, the values of a Box lie in [-1, 1].
Act: TypeAlias = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """One step of an episode; arrays have one row."""

    obs: np.ndarray  # before the step, as the env returned it
    actions: np.ndarray  # as the env received them
    result: StepResult
    play: "EpisodePlay"  # the episode so far, with this step
    cut: bool  # the last step that `max_steps` allows, and the env did not end the episode


def follow_episode(algorithm: Algorithm, *, step: int = 0, explore: bool = False) -> Act:
    """Return a function that acts in one episode; it keeps the carry of a recurrent algorithm between steps.

    `step`: the env step of the run, for algorithms whose actions depend on it.
    """
    carry: Carry | None = None

    def act(obs: np.ndarray, action_mask: np.ndarray | None) -> np.ndarray:
        nonlocal carry
        chosen = act_on(algorithm, obs, carry, step=step, explore=explore, action_mask=action_mask)
        carry = chosen.carry
        return chosen.actions

    return act


class JointActing:
    """Acts in the episodes of all rows in one call per step, which always has the same shape.

    A row without an episode keeps its last observation. Tensor environments have no action masks.
    """

    def __init__(self, algorithm: Algorithm, rows: TensorRows, *, step: int) -> None:
        """`step`: as for `follow_episode`."""
        field = observation_field(rows.observation_space)
        self._algorithm, self._step = algorithm, step
        self._obs = np.zeros((rows.num_envs, *field.shape), field.dtype)
        self._actions = np.empty(0)
        self._carry: Carry | None = None

    def follow(self, index: int) -> Act:
        """Return a function that returns what `choose` chose in an episode that starts in this row."""
        self._carry = reset_carry(self._carry, [index])
        return lambda obs, action_mask: self._actions[[index]]

    def choose(self, plays: Mapping[int, "EpisodePlay"]) -> None:
        """Choose the next actions of these episodes, by row."""
        for index, play in plays.items():
            self._obs[index] = play.obs[0]
        chosen = act_on(self._algorithm, self._obs, self._carry, step=self._step)
        self._actions, self._carry = chosen.actions, chosen.carry


class EpisodePlay:
    """One episode in one env of a group: what the env returned last, and the actions that follow."""

    def __init__(
        self,
        envs: EnvGroup | TensorRows,
        act: Act,
        obs: np.ndarray,
        info: Mapping[str, Any],
        *,
        index: int = 0,
        seed: int,
        number: int,
        name: str,
    ) -> None:
        """`obs`, (1, *shape), and `info`: of the reset. `number`, `name`: how error messages name the episode."""
        self.seed, self.number, self.num_steps, self.ret = seed, number, 0, 0.0
        self.rewards: list[float] = []
        self.first: tuple[np.ndarray, np.ndarray] | None = None  # observation and action, as the algorithm knows them
        self.obs, self._info = obs, info
        self._act, self._who, self._name = act, f"env {index}", f"{name} {number} (seed {seed})"
        self._reader = MaskReader(envs.action_space) if "action_mask" in info else None
        self._to_env, self._dtype = to_env_actions(envs.action_space), observation_field(envs.observation_space).dtype
        self._action_dtype = np.dtype(envs.action_space.dtype)

    def actions(self) -> np.ndarray:
        """Return the next action as the env receives it, (1, *shape)."""
        try:
            mask = None if self._reader is None else self._reader.read(self._info)[None]
        except ValueError as problem:
            place = f"step {self.num_steps}" if self.num_steps else "the reset"
            raise EnvError(f"{self._who} gave {problem} at {place} of {self._name}") from None
        obs = self.obs.astype(self._dtype, copy=False)
        chosen = self._act(obs, mask)
        if self.first is None:
            self.first = obs.copy(), chosen.copy()
        actions: np.ndarray = self._to_env(chosen).astype(self._action_dtype)  # a copy: `act` may reuse its array
        return actions

    @property
    def success(self) -> bool | None:
        """Whether the latest step reached the goal of the episode, as a goal environment reports; None: it does not."""
        reported = self._info.get("is_success", self._info.get("success"))  # Gymnasium-Robotics has both names
        return None if reported is None else bool(np.all(reported))

    def go_on(self, obs: np.ndarray, reward: float, info: Mapping[str, Any]) -> None:
        """Take what the env returned for the action."""
        self.obs, self._info = obs, info
        self.num_steps += 1
        self.rewards.append(reward)
        self.ret += reward


def play_episode(
    envs: SyncEnvs, act: Act, *, seed: int, number: int, max_steps: int = MAX_EPISODE_STEPS, name: str = "episode"
) -> Iterator[EpisodeStep]:
    """Reset the one env of `envs` with `seed` and yield its steps until the episode ends or is cut.

    `number`, `name`: how error messages name the episode.
    """
    obs, infos = envs.reset([0], [seed], [number])
    play = EpisodePlay(envs, act, obs, infos[0], seed=seed, number=number, name=name)
    while play.num_steps < max_steps:
        obs, actions = play.obs, play.actions()
        result = envs.step(actions)
        play.go_on(result.obs, float(result.rewards[0]), result.infos[0])
        yield EpisodeStep(obs, actions, result, play, cut=not result.ended and play.num_steps == max_steps)
        if result.ended:
            return
