"""Evaluate a policy: whole episodes without exploration, in a separate environment, with fixed reset seeds."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rl_training.core.types import Algorithm
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.results.html import table
from rl_training.runtime.episodes import MAX_EPISODE_STEPS, Act, follow_episode, play_episode

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


class EvalEpisodes(list[EvalEpisode]):
    """Episodes of one evaluation; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = [(str(one.episode), str(one.seed), f"{one.ret:.6g}", f"{one.length:,}") for one in self]
        returns = [one.ret for one in self]
        name = f"{np.mean(returns):.1f} ± {np.std(returns):.1f} over {len(self)} episodes" if self else "no episodes"
        return table(name, ("episode", "seed", "return", "length"), rows, caption=True)


def evaluate_episodes(
    factory: EnvFactory,
    algorithm: Algorithm,
    seeds: Sequence[int],
    *,
    step: int = 0,
    max_steps: int = MAX_EPISODE_STEPS,
    on_episode: Callable[[EvalEpisode], None] = lambda episode: None,
    on_view: Callable[[SyncEnvs], None] = lambda envs: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> EvalEpisodes:
    """Play one episode per seed in a new env. `step`: the env step of the run, which the actions may depend on.

    `on_view` is called at each state of an episode: before every action and after the last step.
    Raises `EvaluationInterrupted` after the first env step at which `interrupted` returns True.
    """
    episodes = EvalEpisodes()
    with SyncEnvs(factory) as envs:
        for number, seed in enumerate(seeds):
            act = _viewed(follow_episode(algorithm, step=step), partial(on_view, envs))
            ret, length = 0.0, 0
            for played in play_episode(
                envs, act, seed=seed, number=number, max_steps=max_steps, name="evaluation episode"
            ):
                if interrupted():
                    raise EvaluationInterrupted
                ret += float(played.result.rewards[0])
                length += 1
                if played.cut:
                    log.warning("evaluation episode %d (seed %d) was cut at %d steps", number, seed, length)
            on_view(envs)
            episodes.append(EvalEpisode(number, seed, ret, length))
            on_episode(episodes[-1])
    return episodes


def _viewed(act: Act, view: Callable[[], None]) -> Act:
    def view_and_act(obs: np.ndarray, action_mask: np.ndarray | None) -> np.ndarray:
        view()
        return act(obs, action_mask)

    return view_and_act


def mean_return(episodes: Sequence[EvalEpisode]) -> float:
    return float(np.mean([episode.ret for episode in episodes]))
