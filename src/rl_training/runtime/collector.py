"""The collector steps the environments: the only caller of `env.step` during training.

It manages episodes: seeds, resets, returns, and the recipe from which a resumed run restores every env.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.core.action_masks import MaskReader
from rl_training.core.seeding import Streams
from rl_training.core.spaces import action_bounds, action_field, observation_field, to_env_actions
from rl_training.core.state_checks import stored_array, stored_carry, stored_count, stored_number
from rl_training.core.types import (
    ActResult,
    Algorithm,
    Carry,
    Exploring,
    PendingActions,
    StateDict,
    act_on,
    checked_actions,
    reset_carry,
)
from rl_training.envs.resumable import EpisodeRecipe, restore_envs
from rl_training.envs.vector import EnvGroup, StepResult
from rl_training.errors import CheckpointError, EnvError

REPEATED_EPISODES = frozenset({1, 10, 100, 1_000, 10_000})  # of env 0, which are played again when they end


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished training episode; `step` is the run's env step at which it ended."""

    step: int
    env: int
    episode: int
    seed: int
    ret: float
    length: int

    def record(self) -> dict[str, Any]:
        values = asdict(self)
        values["return"] = values.pop("ret")
        return values


class _OpenEpisode:
    """The current episode of an env; its seed and its actions restore the env."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.seed = seed
        self.ret = 0.0
        self.actions: list[Any] = []


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A finished episode as it was played, to be played again."""

    number: int
    recipe: EpisodeRecipe
    obs: np.ndarray  # the last one
    ret: float


class Collector:
    """Collects transitions from a group of environments; `next_obs` is always the true successor."""

    def __init__(
        self,
        envs: EnvGroup,
        streams: Streams,
        *,
        replayable: bool = True,
        clip_rewards: bool = False,
        action_masks: bool = False,
    ) -> None:
        """`clip_rewards`: transitions hold the sign of the reward. `action_masks`: each info holds `action_mask`."""
        self.envs = envs
        self.replayable = replayable  # whether reset(seed) and the same actions repeat an episode bit for bit
        self.evidence = "episodes are assumed to repeat"  # for the claim that a resume is exact
        self.played: list[PlayedEpisode] = []  # to be played again, until a callback reads them and clears the list
        self.finished: list[Episode] = []  # until a callback reads them and clears the list
        self.inexact_restores: list[int] = []  # envs that a resume could restore only at the start of an episode
        self._streams = streams
        self._clip_rewards = clip_rewards
        self._to_env = to_env_actions(envs.action_space)
        self._mask_reader = MaskReader(envs.action_space) if action_masks else None
        self._masks: np.ndarray | None = None  # of the current observations, (envs, choices)
        self._dtype = observation_field(envs.observation_space).dtype
        self._open = [_OpenEpisode(-1, 0) for _ in range(envs.num_envs)]
        self._obs: np.ndarray = np.empty(0)
        self._carry: Carry | None = None  # the state of a recurrent algorithm in the open episodes
        self._pending: ActResult | None = None  # actions of a step that the envs have not finished; else None

    def start(self) -> None:
        """Start episode 0 of every env."""
        indices = range(self.envs.num_envs)
        self._open, self._obs, self._masks = self._start_episodes(indices, [0] * len(indices))

    def choose(self, algorithm: Algorithm, *, step: int) -> ActResult:
        """Return the actions of the next step, which are chosen once."""
        if self._pending is None:
            obs = self._stored(self._obs)
            self._pending = act_on(algorithm, obs, self._carry, step=step, explore=True, action_mask=self._masks)
        return self._pending

    def begin_choice(self, algorithm: Exploring, *, step: int) -> PendingActions | None:
        """Begin to choose the actions of the next step; return what they still need, or None if they are chosen."""
        if self._pending is not None:
            return None
        begun = algorithm.begin_act(self._stored(self._obs), step=step, action_mask=self._masks, carry=self._carry)
        if isinstance(begun, PendingActions):
            return begun
        self.end_choice(begun, step=step)
        return None

    def end_choice(self, chosen: ActResult, *, step: int) -> None:
        """Set the actions of the next step; raise `TrainingError` if one is not finite."""
        self._pending = checked_actions(chosen, step)

    def step(self, algorithm: Algorithm, *, step: int) -> dict[str, np.ndarray]:
        """Take one step in every env and return the transitions, one row per env. `step`: env steps taken before.

        If an env fails, the collector stays before this step and keeps the chosen actions: a resumed run takes the
        same step again.
        """
        obs, masks = self._stored(self._obs), self._masks
        chosen = self.choose(algorithm, step=step)
        actions, carry = chosen.actions, chosen.carry
        memory = {} if carry is None else self._before_step(carry)
        env_actions = self._to_env(actions)
        result = self.envs.step(env_actions)
        ended = result.ended
        next_masks = self._read_masks(result.infos, range(self.envs.num_envs), ended)
        obs_after, masks_after = result.obs, next_masks
        started: list[_OpenEpisode] = []
        if ended:
            obs_after = result.obs.copy()  # `next_obs` keeps the true final observations
            numbers = [self._open[index].number + 1 for index in ended]
            started, obs_after[ended], first_masks = self._start_episodes(ended, numbers)
            if next_masks is not None:
                masks_after = next_masks.copy()
                masks_after[ended] = first_masks
        # No env can fail from here on.
        for index, episode in enumerate(self._open):
            episode.actions.append(env_actions[index])
            episode.ret += float(result.rewards[index])
        for index, episode in zip(ended, started, strict=True):
            self._finish(index, step + self.envs.num_envs, result.obs[index])
            self._open[index] = episode
        self._obs, self._masks, self._pending = obs_after, masks_after, None
        self._carry = reset_carry(carry, ended)
        transitions = {
            "obs": obs,
            "actions": actions,
            "rewards": np.sign(result.rewards) if self._clip_rewards else result.rewards,
            "next_obs": self._stored(result.obs),
            "terminated": self._terminated_for_learning(result),
            "truncated": result.truncated,
            **memory,
        }
        if masks is None or next_masks is None:
            return transitions
        return {**transitions, "action_mask": masks, "next_action_mask": next_masks}

    def state_dict(self) -> StateDict:
        """Return, per env, the recipe of its open episode and the observation that it must lead to."""
        return {
            "obs": self._obs,
            "numbers": [episode.number for episode in self._open],
            "seeds": [episode.seed for episode in self._open],
            "returns": [episode.ret for episode in self._open],
            "actions": {str(i): np.asarray(episode.actions) for i, episode in enumerate(self._open)},
            "states": {str(i): self._env_state(i) for i in range(len(self._open))},
            "drawn": self._pending and self._pending.actions,
            "drawn_carry": self._pending and self._pending.carry,
            "carry": self._carry,
            "action_masks": self._masks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore every env; one that cannot be restored starts its next episode instead."""
        num_envs, space = self.envs.num_envs, self.envs.observation_space
        for name in ("numbers", "seeds", "returns"):
            if not isinstance(state[name], list) or len(state[name]) != num_envs:
                raise CheckpointError(f"the open episodes must have {num_envs} {name}, found {str(state[name])[:80]}")
        self._obs = stored_array(state["obs"], "the open episodes' obs", (num_envs, *(space.shape or ()))).copy()
        if self._mask_reader:
            size = self._mask_reader.size
            self._masks = stored_array(state["action_masks"], "the action masks", (num_envs, size), np.bool_).copy()
        recipes: list[EpisodeRecipe | None] = []
        for index, episode in enumerate(self._open):
            episode.number = stored_count(state["numbers"][index], "the number of an open episode")
            episode.seed = stored_count(state["seeds"][index], "the seed of an open episode")
            episode.ret = stored_number(state["returns"][index], "the return of an open episode")
            actions = self._stored_actions(state["actions"][str(index)])
            episode.actions = list(actions)
            env_state = {name: np.asarray(value) for name, value in state["states"][str(index)].items()}
            recipe = EpisodeRecipe(episode.seed, actions, env_state or None)
            recipes.append(recipe if self.replayable or recipe.state is not None else None)
        numbers = [episode.number for episode in self._open]
        restored = restore_envs(self.envs, recipes, self._obs, numbers)
        self.inexact_restores += [index for index, is_exact in enumerate(restored) if not is_exact]
        if inexact := self.inexact_restores:  # in one call: a vector environment may take all seeds or none
            started, self._obs[inexact], masks = self._start_episodes(inexact, [numbers[i] + 1 for i in inexact])
            for index, episode in zip(inexact, started, strict=True):
                self._open[index] = episode
            if self._masks is not None:
                self._masks[inexact] = masks
        self.evidence = "the open episodes were repeated"
        self.replayable = self.replayable and not self.inexact_restores
        self._carry = reset_carry(stored_carry(state.get("carry"), num_envs), self.inexact_restores)
        if state["drawn"] is not None and not self.inexact_restores:
            shape = (num_envs, *action_field(self.envs.action_space).shape)
            drawn = stored_array(state["drawn"], "the drawn actions", shape)
            self._pending = ActResult(drawn, stored_carry(state.get("drawn_carry"), num_envs))

    @property
    def exact(self) -> bool:
        """Whether a resumed run can restore every env: by replay, or by the state that the env returns."""
        return self.replayable or self.envs.get_state(0) is not None

    @property
    def exactness(self) -> str:
        """Where a resumed run continues, for the metadata of the run."""
        if self.inexact_restores:
            envs = ", ".join(map(str, self.inexact_restores))
            return f"resumed at an episode boundary in envs {envs}: they could not be restored within their episode"
        if not self.exact:
            return f"at an episode boundary: {self.evidence}"
        return f"exact: {self.evidence if self.replayable else 'the environment restores its own state'}"

    def close(self) -> None:
        self.envs.close()

    def _stored_actions(self, value: Any) -> np.ndarray:
        """Return the saved actions of an open episode: (steps, *action_shape), each one that the env accepts."""
        space, name = self.envs.action_space, "the actions of an open episode"
        none_yet = isinstance(value, Tensor | np.ndarray) and tuple(value.shape) == (0,)
        actions = stored_array(value, name, (None,) if none_yet else (None, *(space.shape or ())))
        if none_yet:
            return actions
        low, high = action_bounds(space)
        if (actions < low).any() or (actions > high).any():
            raise CheckpointError(f"{name} must be in {space}, found {actions.min()} to {actions.max()}")
        return actions

    def _before_step(self, after: Carry) -> dict[str, np.ndarray]:
        """Return what transitions of a recurrent algorithm hold in addition, with the parts of the next carry `after`.

        `starts`: whether a step is the first of its episode; `carry_<part>`: the carry before the step.
        """
        before = self._carry or {name: np.zeros_like(values) for name, values in after.items()}
        starts = np.array([not episode.actions for episode in self._open])
        return {"starts": starts, **{f"carry_{name}": values for name, values in before.items()}}

    def _env_state(self, index: int) -> dict[str, np.ndarray]:
        """Return the state of an env if it offers one; in a step that failed, only the recipe is valid."""
        return self.envs.get_state(index) or {} if self._pending is None else {}

    def _start_episodes(
        self, indices: Sequence[int], numbers: Sequence[int]
    ) -> tuple[list[_OpenEpisode], np.ndarray, np.ndarray | None]:
        """Reset these envs to start episodes with these numbers; return episodes, observations and action masks."""
        seeds = [self._streams.episode_seed(index, number) for index, number in zip(indices, numbers, strict=True)]
        obs, infos = self.envs.reset(indices, seeds, numbers)
        started = [_OpenEpisode(number, seed) for number, seed in zip(numbers, seeds, strict=True)]
        return started, obs, self._read_masks(infos, indices, (), started)

    def _read_masks(
        self,
        infos: Sequence[Mapping[str, Any]],
        indices: Sequence[int],
        ended: Sequence[int],
        started: Sequence[_OpenEpisode] = (),
    ) -> np.ndarray | None:
        """Return the action masks in the infos, (envs, choices), if the envs have any; raise `EnvError` for a bad one.

        No action follows the last observation of an `ended` episode: its mask may be anything, and if it cannot be
        read, all actions count as valid. It selects the values that a target at a time limit uses. `started`: episodes
        at their reset; otherwise the open ones, at a step.
        """
        reader = self._mask_reader
        if reader is None:
            return None
        masks = np.ones((len(infos), reader.size), np.bool_)
        for row, (index, info) in enumerate(zip(indices, infos, strict=True)):
            if index in ended:
                with contextlib.suppress(Exception):
                    masks[row] = reader.read(info)
                continue
            try:
                masks[row] = reader.read(info)
            except ValueError as problem:
                where = _reset_place(started[row]) if started else _step_place(self._open[index])
                raise EnvError(f"env {index} gave {problem} at {where}") from None
        return masks

    @staticmethod
    def _terminated_for_learning(result: StepResult) -> np.ndarray:
        """Count a lost life as a termination if the env reports it, although its episode continues."""
        lost = [index for index, info in enumerate(result.infos) if info and info.get("life_lost")]
        if not lost:
            return result.terminated
        terminated: np.ndarray = result.terminated.copy()
        terminated[lost] = True
        return terminated

    def _finish(self, index: int, step: int, last_obs: np.ndarray) -> None:
        episode = self._open[index]
        if index == 0 and episode.number in REPEATED_EPISODES and self.replayable:
            recipe = EpisodeRecipe(episode.seed, np.asarray(episode.actions))
            self.played.append(PlayedEpisode(episode.number, recipe, last_obs, episode.ret))
        self.finished.append(
            Episode(step, index, episode.number, episode.seed, episode.ret, length=len(episode.actions))
        )

    def _stored(self, obs: np.ndarray) -> np.ndarray:
        return obs if obs.dtype == self._dtype else obs.astype(self._dtype)


def _step_place(episode: _OpenEpisode) -> str:
    return f"step {len(episode.actions) + 1} of episode {episode.number} (seed {episode.seed})"


def _reset_place(episode: _OpenEpisode) -> str:
    return f"the reset of episode {episode.number} (seed {episode.seed})"
