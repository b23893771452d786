"""Evaluate a policy: whole episodes, its own environments, a fixed list of reset seeds, no exploration."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rl_training.core.action_masks import MaskReader
from rl_training.core.spaces import observation_field, to_env_actions
from rl_training.core.types import Algorithm, Carry, act_on
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import EnvError

MAX_EPISODE_STEPS = 27_000  # an env without a time limit must not hold up a run for ever; Atari's usual cap

log = logging.getLogger("rl_training.evaluation")


@dataclass(frozen=True, slots=True)
class EvalEpisode:
    """One evaluation episode."""

    episode: int
    seed: int
    ret: float
    length: int

    def record(self) -> dict[str, Any]:
        return {"episode": self.episode, "seed": self.seed, "return": self.ret, "length": self.length}


class Evaluator:
    """Plays evaluation episodes in one environment of its own, made at the first use."""

    def __init__(self, factory: EnvFactory) -> None:
        self._factory = factory
        self._envs: SyncEnvs | None = None

    def evaluate(
        self,
        algorithm: Algorithm,
        seeds: Sequence[int],
        *,
        step: int = 0,
        on_episode: Callable[[EvalEpisode], None] = lambda episode: None,
        on_step: Callable[[SyncEnvs], None] = lambda envs: None,
    ) -> list[EvalEpisode]:
        """Play one episode per seed. `step`: the run's env step, for algorithms whose acting depends on it."""
        if self._envs is None:
            self._envs = SyncEnvs(self._factory, 1)
        episodes = []
        for number, seed in enumerate(seeds):
            episode = self._play(self._envs, algorithm, number, seed, step, on_step)
            on_episode(episode)
            episodes.append(episode)
        return episodes

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    @staticmethod
    def _play(
        envs: SyncEnvs, algorithm: Algorithm, number: int, seed: int, step: int, on_step: Callable[[SyncEnvs], None]
    ) -> EvalEpisode:
        to_env = to_env_actions(envs.action_space)
        dtype = observation_field(envs.observation_space).dtype
        obs, infos = envs.reset([0], [seed], [number])
        reader = MaskReader(envs.action_space) if "action_mask" in infos[0] else None
        ret, length, carry = 0.0, 0, cast(Carry | None, None)
        while length < MAX_EPISODE_STEPS:
            on_step(envs)
            try:
                action_mask = None if reader is None else reader.read(infos[0])[None]
            except ValueError as problem:
                place = f"step {length}" if length else "the reset"
                raise EnvError(
                    f"env 0 gave {problem} at {place} of evaluation episode {number} (seed {seed})"
                ) from None
            chosen = act_on(algorithm, obs.astype(dtype, copy=False), carry, step=step, action_mask=action_mask)
            result, carry = envs.step(to_env(chosen.actions)), chosen.carry
            obs, infos = result.obs, result.infos
            ret += float(result.rewards[0])
            length += 1
            if result.terminated[0] or result.truncated[0]:
                return EvalEpisode(number, seed, ret, length)
        log.warning("evaluation episode %d (seed %d) was cut at %d steps", number, seed, MAX_EPISODE_STEPS)
        return EvalEpisode(number, seed, ret, length)


def mean_return(episodes: Sequence[EvalEpisode]) -> float:
    return float(np.mean([episode.ret for episode in episodes]))
