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
        self._drawn: np.ndarray | None = None  # the actions of a step that envs have not finished; else None

    def start(self) -> None:
        """Begin episode 0 of every env."""
        begun = [self._begin(index, 0) for index in range(self.envs.num_envs)]
        self._open = [episode for episode, _ in begun]
        self._obs = np.stack([obs for _, obs in begun])

    def step(self, algorithm: Algorithm, *, step: int) -> dict[str, np.ndarray]:
        """Take one step in every env; give the transitions, one row per env. `step`: env steps taken before.

        If an env fails, the collector stays before this step, and keeps the actions drawn for it: a resumed run takes
        the same step again.
        """
        obs = self._stored(self._obs)
        if self._drawn is None:
            self._drawn = algorithm.act(obs, step=step, explore=True).actions
        actions = self._drawn
        env_actions = actions + self._action_offset if self._action_offset else actions
        result = self.envs.step(env_actions)
        self._refuse_non_finite(result.obs, result.rewards)
        obs_after, begun = result.obs, {}
        if result.ended:
            obs_after = result.obs.copy()  # `next_obs` keeps the true final observations
            for index in result.ended:
                begun[index], obs_after[index] = self._begin(index, self._open[index].number + 1)
        # No env can fail from here on.
        for index, episode in enumerate(self._open):
            episode.actions.append(env_actions[index])
            episode.ret += float(result.rewards[index])
        for index, episode in begun.items():
            self._finish(index, step + self.envs.num_envs)
            self._open[index] = episode
        self._obs, self._drawn = obs_after, None
        return {
            "obs": obs,
            "actions": actions,
            "rewards": result.rewards,
            "next_obs": self._stored(result.obs),
            "terminated": result.terminated,
            "truncated": result.truncated,
        }

    def state_dict(self) -> StateDict:
        """Per env: the recipe of its open episode and the observation it must lead to."""
        return {
            "obs": self._obs,
            "numbers": [episode.number for episode in self._open],
            "seeds": [episode.seed for episode in self._open],
            "returns": [episode.ret for episode in self._open],
            "actions": {str(i): np.asarray(episode.actions) for i, episode in enumerate(self._open)},
            "states": {str(i): self._env_state(i) for i in range(len(self._open))},
            "drawn": self._drawn,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring every env back; one that does not repeat itself begins its next episode instead."""
        self._obs = np.asarray(state["obs"]).copy()
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
                self._open[index], self._obs[index] = self._begin(index, episode.number + 1)
        if state["drawn"] is not None and not self.inexact_restores:
            self._drawn = np.asarray(state["drawn"])

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

    def _begin(self, index: int, number: int) -> tuple[_OpenEpisode, np.ndarray]:
        seed = self._streams.episode_seed(index, number)
        obs, _ = self.envs.reset([index], [seed], [number])
        if self._check_obs and not np.isfinite(obs).all():
            raise _not_finite(index, f"the observation {obs[0]}", f"the reset of episode {number} (seed {seed})")
        return _OpenEpisode(number, seed), obs[0]

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
                where = f"step {len(episode.actions) + 1} of episode {episode.number} (seed {episode.seed})"
                raise _not_finite(index, what, where)


def _not_finite(index: int, what: str, where: str) -> EnvError:
    return EnvError(f"env {index} gave {what} at {where}; observations and rewards must be finite")
