"""Evaluate a policy: whole episodes without exploration, in a separate environment, with fixed reset seeds."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from rl_training.core.counted import counted
from rl_training.core.types import Algorithm
from rl_training.envs.factory import EnvFactory, make_worker_envs
from rl_training.envs.tensor_rows import TensorRows, tensor_rows_of
from rl_training.envs.vector import SyncEnvs
from rl_training.envs.workers import AsyncEnvs
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.base import chance_settings
from rl_training.results.html import table
from rl_training.results.return_text import mean_and_std
from rl_training.runtime.episodes import MAX_EPISODE_STEPS, Act, EpisodePlay, JointActing, follow_episode, play_episode

MAX_ROWS = 256  # episodes of a tensor environment at the same time
EPISODE_NAME = "evaluation episode"  # in error messages

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
    rewards: Sequence[float] = field(default=(), compare=False, repr=False)
    # The first observation and action, one row each, as the algorithm knows them; None: read from a file.
    first: tuple[np.ndarray, np.ndarray] | None = field(default=None, compare=False, repr=False)
    success: bool | None = field(default=None, repr=False)  # what the last info reports of the goal; None: nothing

    def record(self) -> dict[str, Any]:
        record = {"episode": self.episode, "seed": self.seed, "return": self.ret, "length": self.length}
        return record if self.success is None else {**record, "success": self.success}


class EvalEpisodes(list[EvalEpisode]):
    """Episodes of one evaluation; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = [(str(one.episode), str(one.seed), f"{one.ret:.6g}", f"{one.length:,}") for one in self]
        returns = [one.ret for one in self]
        name = f"{mean_and_std(returns)} over {counted(len(self), 'episode')}" if self else "no episodes"
        return table(name, ("episode", "seed", "return", "length"), rows, caption=True)


def evaluate_episodes(
    envs: SyncEnvs,
    algorithm: Algorithm,
    seeds: Sequence[int],
    *,
    step: int = 0,
    max_steps: int = MAX_EPISODE_STEPS,
    on_episode: Callable[[EvalEpisode], None] = lambda episode: None,
    on_view: Callable[[], None] = lambda: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> EvalEpisodes:
    """Play one episode per seed in the one env of `envs`.

    `step`: the env step of the run, which the actions may depend on.
    `on_view` is called at each state of an episode: before every action and after the last step.
    Raises `EvaluationInterrupted` after the first env step at which `interrupted` returns True.
    """
    episodes = EvalEpisodes()
    for number, seed in enumerate(seeds):
        act = _viewed(follow_episode(algorithm, step=step), on_view)
        for played in play_episode(envs, act, seed=seed, number=number, max_steps=max_steps, name=EPISODE_NAME):
            if interrupted():
                raise EvaluationInterrupted
            if played.cut:
                _warn_cut(number, seed, played.play.num_steps)
        on_view()
        episodes.append(_ended(played.play))
        on_episode(episodes[-1])
    return episodes


def evaluate_run(
    config: TrainConfig,
    factory: EnvFactory,
    algorithm: Algorithm,
    seeds: Sequence[int],
    *,
    step: int = 0,
    on_episode: Callable[[EvalEpisode], None] = lambda episode: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> EvalEpisodes:
    """Play the evaluation episodes of a run, as many at the same time as its `eval_envs` says.

    Those of a tensor environment step in one call, unless actions are drawn: all episodes draw from one stream.
    """
    num_envs = min(config.eval_envs, len(seeds))
    if num_envs > 1:
        with make_worker_envs(
            factory,
            num_envs,
            on_ray=config.execution_backend == "ray",
            worker_timeout=config.worker_timeout,
            worker_start=config.worker_start,
        ) as workers:
            return evaluate_together(
                workers, algorithm, seeds, step=step, on_episode=on_episode, interrupted=interrupted
            )
    with SyncEnvs(factory) as envs:
        rows = None if chance_settings(config.hparams) else tensor_rows_of(envs.slot, min(MAX_ROWS, len(seeds)))
        if rows is None:
            return evaluate_episodes(envs, algorithm, seeds, step=step, on_episode=on_episode, interrupted=interrupted)
        return evaluate_together(rows, algorithm, seeds, step=step, on_episode=on_episode, interrupted=interrupted)


def evaluate_together(
    envs: AsyncEnvs | TensorRows,
    algorithm: Algorithm,
    seeds: Sequence[int],
    *,
    step: int = 0,
    max_steps: int = MAX_EPISODE_STEPS,
    on_episode: Callable[[EvalEpisode], None] = lambda episode: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> EvalEpisodes:
    """Play one episode per seed as `evaluate_episodes` does, with the same result, in all envs at the same time.

    An env whose episode ends starts the next one. Each episode acts on its own: rows of a batch are rounded differently
    than a single one. Only rows of a tensor environment act in one call if the policy is on a GPU, so that the device
    is asked once per step and not once per row.
    """
    joint = JointActing(algorithm, envs, step=step) if isinstance(envs, TensorRows) and is_on_gpu(algorithm) else None
    waiting, idle = deque(enumerate(seeds)), list(range(envs.num_envs))
    plays: dict[int, EpisodePlay] = {}
    done: dict[int, EvalEpisode] = {}
    episodes = EvalEpisodes()
    while len(episodes) < len(seeds):
        starting = {index: waiting.popleft() for index in idle[: len(waiting)]}
        acts = {index: joint.follow(index) if joint else follow_episode(algorithm, step=step) for index in starting}
        plays |= _start(envs, starting, acts)
        if joint:
            joint.choose(plays)
        indices = list(plays)
        result = envs.step(np.concatenate([play.actions() for play in plays.values()]), indices)
        if interrupted():
            raise EvaluationInterrupted
        idle = []
        for row, (index, play) in enumerate(plays.items()):
            play.go_on(result.obs[[row]], float(result.rewards[row]), result.infos[row])
            cut = index not in result.ended and play.num_steps == max_steps
            if cut:
                _warn_cut(play.number, play.seed, play.num_steps)
            if cut or index in result.ended:
                idle.append(index)
                done[play.number] = _ended(play)
        for index in idle:
            del plays[index]
        while len(episodes) in done:  # in their order, whichever ends first
            episodes.append(done[len(episodes)])
            on_episode(episodes[-1])
    return episodes


def is_on_gpu(algorithm: Algorithm) -> bool:
    """Return whether parameters of the policy are on another device than the CPU."""
    return any(
        isinstance(each, Tensor) and each.device.type != "cpu" for each in algorithm.policy_state_dict().values()
    )


def _start(
    envs: AsyncEnvs | TensorRows, starting: Mapping[int, tuple[int, int]], acts: Mapping[int, Act]
) -> dict[int, EpisodePlay]:
    """Start episodes, by env: the number and the seed of each, and what acts in it."""
    if not starting:
        return {}
    numbers, seeds = zip(*starting.values(), strict=True)
    obs, infos = envs.reset(list(starting), seeds, numbers)
    return {
        index: EpisodePlay(
            envs,
            acts[index],
            obs[[row]],
            infos[row],
            index=index,
            seed=seeds[row],
            number=numbers[row],
            name=EPISODE_NAME,
        )
        for row, index in enumerate(starting)
    }


def _ended(play: EpisodePlay) -> EvalEpisode:
    return EvalEpisode(play.number, play.seed, play.ret, play.num_steps, play.rewards, play.first, play.success)


def _warn_cut(number: int, seed: int, length: int) -> None:
    log.warning("evaluation episode %d (seed %d) was cut at %d steps", number, seed, length)


def _viewed(act: Act, view: Callable[[], None]) -> Act:
    def view_and_act(obs: np.ndarray, action_mask: np.ndarray | None) -> np.ndarray:
        view()
        return act(obs, action_mask)

    return view_and_act


@runtime_checkable
class EstimatesReturns(Protocol):
    """An algorithm that estimates the discounted return of an action."""

    def estimated_returns(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        """Return the estimates, (rows,), for observations and actions as the algorithm knows them; None: none."""
        ...


def compare_values(algorithm: Algorithm, episodes: Sequence[EvalEpisode], gamma: float) -> dict[str, float]:
    """Return what the algorithm estimates at the first step of its episodes, and what it then received: means.

    Empty if the algorithm estimates nothing.
    """
    first = [episode.first for episode in episodes if episode.first is not None]
    if not first or not isinstance(algorithm, EstimatesReturns):
        return {}
    obs, actions = (np.concatenate(rows) for rows in zip(*first, strict=True))
    estimates = algorithm.estimated_returns(obs, actions)
    if estimates is None:
        return {}
    received = [sum(gamma**step * reward for step, reward in enumerate(episode.rewards)) for episode in episodes]
    return {
        "first_q_value": float(estimates.mean()),
        "discounted_return": float(np.mean(received)),
    }


def success_rate(episodes: Sequence[EvalEpisode]) -> dict[str, float]:
    """Return the share of episodes that ended at their goal; empty if the environment does not report it."""
    successes = [episode.success for episode in episodes if episode.success is not None]
    return {"success_rate": float(np.mean(successes))} if successes else {}


def mean_return(episodes: Sequence[EvalEpisode]) -> float:
    return float(np.mean([episode.ret for episode in episodes]))
