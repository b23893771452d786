"""Evaluate a policy: whole episodes without exploration, in a separate environment, with fixed reset seeds."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.core.types import Algorithm
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.runtime.episodes import follow_episode, play_episode

log = logging.getLogger("rl_training.evaluation")


class EvaluationInterrupted(Exception):  # noqa: N818 (not an error)
    """A signal asks the run to end: its evaluation is repeated after a resume."""


@dataclass(frozen=True, slots=True)
class EvalEpisode:
    """One evaluation episode."""

    episode: int
    seed: int
    ret: float
    length: int

    def record(self) -> dict[str, Any]:
        return {"episode": self.episode, "seed": self.seed, "return": self.ret, "length": self.length}


def evaluate_episodes(
    factory: EnvFactory,
    algorithm: Algorithm,
    seeds: Sequence[int],
    *,
    step: int = 0,
    on_episode: Callable[[EvalEpisode], None] = lambda episode: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[EvalEpisode]:
    """Play one episode per seed in a new env. `step`: the env step of the run, which the actions may depend on.

    Raises `EvaluationInterrupted` after the first env step at which `interrupted` returns True.
    """
    episodes = []
    with SyncEnvs(factory) as envs:
        for number, seed in enumerate(seeds):
            episodes.append(_evaluate_episode(envs, algorithm, number, seed, step, interrupted))
            on_episode(episodes[-1])
    return episodes


def _evaluate_episode(
    envs: SyncEnvs, algorithm: Algorithm, number: int, seed: int, step: int, interrupted: Callable[[], bool]
) -> EvalEpisode:
    ret, length = 0.0, 0
    act = follow_episode(algorithm, step=step)
    for played in play_episode(envs, act, seed=seed, number=number, name="evaluation episode"):
        if interrupted():
            raise EvaluationInterrupted
        ret += float(played.result.rewards[0])
        length += 1
        if played.cut:
            log.warning("evaluation episode %d (seed %d) was cut at %d steps", number, seed, length)
    return EvalEpisode(number, seed, ret, length)


def mean_return(episodes: Sequence[EvalEpisode]) -> float:
    return float(np.mean([episode.ret for episode in episodes]))
