"""The collector steps the environments: the only caller of `env.step` during training.

It owns what an episode is: seeds, resets, returns, and the recipe from which a resumed run brings every env back.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm, StateDict
from rl_training.data.schema import env_action_offset, observation_field
from rl_training.envs.resumable import EpisodeRecipe, restore_env
from rl_training.envs.vector import EnvGroup
from rl_training.errors import EnvError
from rl_training.experiment.seeding import Streams


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

    def __init__(self, envs: EnvGroup, streams: Streams, *, replayable: bool = True) -> None:
        self.envs = envs
        self.replayable = replayable  # whether reset(seed) and the same actions repeat an episode bit for bit
        self.finished: list[Episode] = []  # since the last look; whoever reads them clears the list
        self.inexact_restores: list[int] = []  # envs that a resume could only bring back at an episode's start
        self._streams = streams
        self._action_offset = env_action_offset(envs.action_space)
        self._dtype = observation_field(envs.observation_space).dtype
        self._check_obs = np.issubdtype(self._dtype, np.floating)
        self._open = [_OpenEpisode(-1, 0) for _ in range(envs.num_envs)]
        self._obs: np.ndarray = np.empty(0)
        self._mid_step = False  # True only while envs step: after a crash some have stepped and some have not

    def start(self) -> None:
        """Begin episode 0 of every env."""
        indices = range(self.envs.num_envs)
        self._obs = np.stack([self._begin(index, 0) for index in indices])

    def step(self, algorithm: Algorithm, *, step: int) -> dict[str, np.ndarray]:
        """Take one step in every env; give the transitions, one row per env. `step`: env steps taken before."""
        obs = self._stored(self._obs)
        actions = algorithm.act(obs, step=step, explore=True).actions
        env_actions = actions + self._action_offset if self._action_offset else actions
        self._mid_step = True
        result = self.envs.step(env_actions)
        self._refuse_non_finite(result.obs, result.rewards)
        self._mid_step = False
        transitions = {
            "obs": obs,
            "actions": actions,
            "rewards": result.rewards,
            "next_obs": self._stored(result.obs),
            "terminated": result.terminated,
            "truncated": result.truncated,
        }
        self._obs = result.obs
        ended = result.terminated | result.truncated
        for index, episode in enumerate(self._open):
            episode.actions.append(env_actions[index])
            episode.ret += float(result.rewards[index])
        if ended.any():
            self._obs = result.obs.copy()  # `next_obs` keeps the true final observations
            for index in np.flatnonzero(ended).tolist():
                self._finish(index, step + self.envs.num_envs)
                self._obs[index] = self._begin(index, self._open[index].number + 1)
        return transitions

    def state_dict(self) -> StateDict:
        """Per env: the recipe of its open episode and the observation it must lead to."""
        return {
            "obs": self._obs,
            "numbers": [episode.number for episode in self._open],
            "seeds": [episode.seed for episode in self._open],
            "returns": [episode.ret for episode in self._open],
            "actions": {str(i): np.asarray(episode.actions) for i, episode in enumerate(self._open)},
            "states": {str(i): self._env_state(i) for i in range(len(self._open))},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring every env back; one that does not repeat itself begins its next episode instead."""
        self._obs = np.array(state["obs"])
        for index, episode in enumerate(self._open):
            episode.number = int(state["numbers"][index])
            episode.seed = int(state["seeds"][index])
            episode.ret = float(state["returns"][index])
            actions = np.asarray(state["actions"][str(index)])
            episode.actions = list(actions)
            recipe = EpisodeRecipe(episode.seed, actions, state["states"][str(index)] or None)
            can_restore = self.replayable or recipe.state is not None
            if not (can_restore and restore_env(self.envs, index, recipe, self._obs[index], episode.number)):
                self.inexact_restores.append(index)
                self._obs[index] = self._begin(index, episode.number + 1)

    def close(self) -> None:
        self.envs.close()

    def _env_state(self, index: int) -> dict[str, np.ndarray]:
        """The env's own state where it offers one; after a crash the recipe must do."""
        return {} if self._mid_step else self.envs.get_state(index) or {}

    def _begin(self, index: int, number: int) -> np.ndarray:
        seed = self._streams.episode_seed(index, number)
        obs, _ = self.envs.reset([index], [seed], [number])
        self._open[index] = _OpenEpisode(number, seed)
        self._refuse_non_finite(obs, np.zeros(1), first_env=index)
        first: np.ndarray = obs[0]
        return first

    def _finish(self, index: int, step: int) -> None:
        episode = self._open[index]
        self.finished.append(
            Episode(step, index, episode.number, episode.seed, episode.ret, length=len(episode.actions))
        )

    def _stored(self, obs: np.ndarray) -> np.ndarray:
        return obs if obs.dtype == self._dtype else obs.astype(self._dtype)

    def _refuse_non_finite(self, obs: np.ndarray, rewards: np.ndarray, first_env: int = 0) -> None:
        # The sum is finite whenever all entries are (short of overflow, which the exact look below clears).
        if math.isfinite(rewards.sum()) and (not self._check_obs or math.isfinite(obs.sum())):
            return
        for row, reward in enumerate(rewards):
            index = first_env + row
            bad_obs = self._check_obs and not np.isfinite(obs[row]).all()
            if bad_obs or not math.isfinite(reward):
                episode = self._open[index]
                what = f"the observation {obs[row]}" if bad_obs else f"the reward {reward}"
                raise EnvError(
                    f"env {index} gave {what} at step {len(episode.actions) + 1} of episode {episode.number} "
                    f"(seed {episode.seed}); observations and rewards must be finite"
                )
