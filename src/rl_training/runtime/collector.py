"""The collector steps the environments: the only caller of `env.step` during training.

It owns what an episode is: seeds, resets, returns, and the recipe from which a resumed run brings every env back.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rl_training.core.action_masks import MaskReader
from rl_training.core.seeding import Streams
from rl_training.core.spaces import observation_field, to_env_actions
from rl_training.core.types import ActResult, Algorithm, Carry, StateDict, act_on, reset_carry
from rl_training.envs.resumable import EpisodeRecipe, restore_env
from rl_training.envs.vector import EnvGroup, StepResult
from rl_training.errors import EnvError


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
    """The episode an env is in: with the seed, its actions bring the env back."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.seed = seed
        self.ret = 0.0
        self.actions: list[Any] = []


class Collector:
    """Brings transitions from a group of environments, each the true successor of its state."""

    def __init__(
        self,
        envs: EnvGroup,
        streams: Streams,
        *,
        replayable: bool = True,
        clip_rewards: bool = False,
        action_masks: bool = False,
    ) -> None:
        """`clip_rewards`: transitions hold the sign of the reward. `action_masks`: each info brings `action_mask`."""
        self.envs = envs
        self.replayable = replayable  # whether reset(seed) and the same actions repeat an episode bit for bit
        self.finished: list[Episode] = []  # since the last look; whoever reads them clears the list
        self.inexact_restores: list[int] = []  # envs that a resume could only bring back at an episode's start
        self._streams = streams
        self._clip_rewards = clip_rewards
        self._to_env = to_env_actions(envs.action_space)
        self._mask_reader = MaskReader(envs.action_space) if action_masks else None
        self._masks: np.ndarray | None = None  # of the current observations, (envs, choices)
        self._dtype = observation_field(envs.observation_space).dtype
        self._check_obs = np.issubdtype(self._dtype, np.floating)
        self._open = [_OpenEpisode(-1, 0) for _ in range(envs.num_envs)]
        self._obs: np.ndarray = np.empty(0)
        self._carry: Carry | None = None  # what a recurrent algorithm remembers of the open episodes
        self._drawn: ActResult | None = None  # what was chosen for a step that envs have not finished; else None

    def start(self) -> None:
        """Begin episode 0 of every env."""
        indices = range(self.envs.num_envs)
        self._open, self._obs, self._masks = self._begin(indices, [0] * len(indices))

    def step(self, algorithm: Algorithm, *, step: int) -> dict[str, np.ndarray]:
        """Take one step in every env; give the transitions, one row per env. `step`: env steps taken before.

        If an env fails, the collector stays before this step, and keeps the actions drawn for it: a resumed run takes
        the same step again.
        """
        obs, masks = self._stored(self._obs), self._masks
        if self._drawn is None:
            self._drawn = act_on(algorithm, obs, self._carry, step=step, explore=True, action_mask=masks)
        actions, carry = self._drawn.actions, self._drawn.carry
        env_actions = self._to_env(actions)
        result = self.envs.step(env_actions)
        self._refuse_non_finite(result.obs, result.rewards)
        ended = result.ended
        next_masks = self._masks_of(result.infos, range(self.envs.num_envs), ended)
        obs_after, masks_after = result.obs, next_masks
        begun: list[_OpenEpisode] = []
        if ended:
            obs_after = result.obs.copy()  # `next_obs` keeps the true final observations
            numbers = [self._open[index].number + 1 for index in ended]
            begun, obs_after[ended], first_masks = self._begin(ended, numbers)
            if next_masks is not None:
                masks_after = next_masks.copy()
                masks_after[ended] = first_masks
        # No env can fail from here on.
        for index, episode in enumerate(self._open):
            episode.actions.append(env_actions[index])
            episode.ret += float(result.rewards[index])
        for index, episode in zip(ended, begun, strict=True):
            self._finish(index, step + self.envs.num_envs)
            self._open[index] = episode
        self._obs, self._masks, self._drawn = obs_after, masks_after, None
        self._carry = reset_carry(carry, ended)
        transitions = {
            "obs": obs,
            "actions": actions,
            "rewards": np.sign(result.rewards) if self._clip_rewards else result.rewards,
            "next_obs": self._stored(result.obs),
            "terminated": self._ended_for_learning(result),
            "truncated": result.truncated,
        }
        if masks is None or next_masks is None:
            return transitions
        return {**transitions, "action_mask": masks, "next_action_mask": next_masks}

    def state_dict(self) -> StateDict:
        """Per env: the recipe of its open episode and the observation it must lead to."""
        return {
            "obs": self._obs,
            "numbers": [episode.number for episode in self._open],
            "seeds": [episode.seed for episode in self._open],
            "returns": [episode.ret for episode in self._open],
            "actions": {str(i): np.asarray(episode.actions) for i, episode in enumerate(self._open)},
            "states": {str(i): self._env_state(i) for i in range(len(self._open))},
            "drawn": self._drawn and self._drawn.actions,
            "drawn_carry": self._drawn and self._drawn.carry,
            "carry": self._carry,
            "action_masks": self._masks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring every env back; one that does not repeat itself begins its next episode instead."""
        self._obs = np.asarray(state["obs"]).copy()
        if self._mask_reader:
            self._masks = np.asarray(state["action_masks"]).copy()
        for index, episode in enumerate(self._open):
            episode.number = int(state["numbers"][index])
            episode.seed = int(state["seeds"][index])
            episode.ret = float(state["returns"][index])
            actions = np.asarray(state["actions"][str(index)])
            episode.actions = list(actions)
            env_state = {name: np.asarray(value) for name, value in state["states"][str(index)].items()}
            recipe = EpisodeRecipe(episode.seed, actions, env_state or None)
            can_restore = self.replayable or recipe.state is not None
            if not (can_restore and restore_env(self.envs, index, recipe, self._obs[index], episode.number)):
                self.inexact_restores.append(index)
                (self._open[index],), self._obs[[index]], masks = self._begin([index], [episode.number + 1])
                if self._masks is not None:
                    self._masks[[index]] = masks
        self._carry = reset_carry(_arrays(state.get("carry")), self.inexact_restores)
        if state["drawn"] is not None and not self.inexact_restores:
            self._drawn = ActResult(np.asarray(state["drawn"]), _arrays(state.get("drawn_carry")))

    @property
    def exact(self) -> bool:
        """Whether a resumed run can bring every env back: by replay, or by the env's own state."""
        return self.replayable or self.envs.get_state(0) is not None

    @property
    def exactness(self) -> str:
        """Say for the run's metadata where a resumed run goes on."""
        if self.inexact_restores:
            envs = ", ".join(map(str, self.inexact_restores))
            return f"resumed at an episode boundary in envs {envs}: they could not be brought back into their episode"
        if not self.exact:
            return "at an episode boundary: this environment does not repeat itself from its seed and actions"
        return "exact"

    def close(self) -> None:
        self.envs.close()

    def _env_state(self, index: int) -> dict[str, np.ndarray]:
        """The env's own state where it offers one; in a step that failed the recipe must do."""
        return self.envs.get_state(index) or {} if self._drawn is None else {}

    def _begin(
        self, indices: Sequence[int], numbers: Sequence[int]
    ) -> tuple[list[_OpenEpisode], np.ndarray, np.ndarray | None]:
        """Reset these envs into episodes of these numbers; give episodes, observations and action masks."""
        seeds = [self._streams.episode_seed(index, number) for index, number in zip(indices, numbers, strict=True)]
        obs, infos = self.envs.reset(indices, seeds, numbers)
        begun = [_OpenEpisode(number, seed) for number, seed in zip(numbers, seeds, strict=True)]
        if self._check_obs and not np.isfinite(obs).all():
            row = int(np.flatnonzero(~np.isfinite(obs).reshape(len(obs), -1).all(1))[0])
            raise _not_finite(indices[row], f"the observation {obs[row]}", _reset_place(begun[row]))
        return begun, obs, self._masks_of(infos, indices, (), begun)

    def _masks_of(
        self,
        infos: Sequence[Mapping[str, Any]],
        indices: Sequence[int],
        ended: Sequence[int],
        begun: Sequence[_OpenEpisode] = (),
    ) -> np.ndarray | None:
        """Give the action masks in the infos, (envs, choices), if the envs give any; refuse those that will not do.

        No action follows on the last observation of an `ended` episode: its mask may be anything, and where it will not
        do, all are valid. It tells which values a target at a time limit looks at. `begun`: episodes at their reset;
        else the open ones, at a step.
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
                where = _reset_place(begun[row]) if begun else _step_place(self._open[index])
                raise EnvError(f"env {index} gave {problem} at {where}") from None
        return masks

    @staticmethod
    def _ended_for_learning(result: StepResult) -> np.ndarray:
        """Count a lost life as a termination where the env says so, although its episode goes on."""
        lost = [index for index, info in enumerate(result.infos) if info and info.get("life_lost")]
        if not lost:
            return result.terminated
        terminated: np.ndarray = result.terminated.copy()
        terminated[lost] = True
        return terminated

    def _finish(self, index: int, step: int) -> None:
        episode = self._open[index]
        self.finished.append(
            Episode(step, index, episode.number, episode.seed, episode.ret, length=len(episode.actions))
        )

    def _stored(self, obs: np.ndarray) -> np.ndarray:
        return obs if obs.dtype == self._dtype else obs.astype(self._dtype)

    def _refuse_non_finite(self, obs: np.ndarray, rewards: np.ndarray) -> None:
        # The sum is finite whenever all entries are (short of overflow, which the exact look below clears).
        if math.isfinite(np.add.reduce(rewards)) and not (
            self._check_obs and not math.isfinite(np.add.reduce(obs, axis=None))
        ):
            return
        for index, reward in enumerate(rewards):
            bad_obs = self._check_obs and not np.isfinite(obs[index]).all()
            if bad_obs or not math.isfinite(reward):
                episode = self._open[index]
                what = f"the observation {obs[index]}" if bad_obs else f"the reward {reward}"
                raise _not_finite(index, what, _step_place(episode))


class NoCollector:
    """In a run that takes no env steps: nothing to begin, to keep or to bring back."""

    replayable, exactness = True, "exact"

    def __init__(self) -> None:
        self.finished: list[Episode] = []
        self.inexact_restores: list[int] = []

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def _arrays(carry: Mapping[str, Any] | None) -> Carry | None:
    return {name: np.asarray(values) for name, values in carry.items()} if carry else None


def _step_place(episode: _OpenEpisode) -> str:
    return f"step {len(episode.actions) + 1} of episode {episode.number} (seed {episode.seed})"


def _reset_place(episode: _OpenEpisode) -> str:
    return f"the reset of episode {episode.number} (seed {episode.seed})"


def _not_finite(index: int, what: str, where: str) -> EnvError:
    return EnvError(f"env {index} gave {what} at {where}; observations and rewards must be finite")
