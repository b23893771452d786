"""The ladder of tiny problems: each tests one more link between an algorithm and what it learns from.

An algorithm climbs it with its own settings, which are only shortened: a rung takes seconds, so warm-up, rollouts,
buffers and the discount are cut to its length.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rl_training.core.kinds import ActionKind
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.trainer import train

EVAL_EPISODES = 20
# Settings, and the most that fits into a rung. With a discount near 1 a detour costs nearly nothing, so that the best
# action shows only after long training.
MOST: dict[str, float] = {
    "gamma": 0.9,
    "learning_starts": 200,
    "buffer_capacity": 10_000,
    "target_update_interval": 50,
}
MOST_ROLLOUT = 64  # rows


@dataclass(frozen=True, slots=True)
class Rung:
    """One problem: `enough` is the mean return that shows that it is solved, `best` the optimal one."""

    env_id: str
    actions: ActionKind
    steps: int
    enough: float
    best: float
    link: str  # what is broken if this is the first rung that fails
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)


REWARD = "rewards do not change the policy: learning rate, batch size, number of updates"
OBSERVATION = "the policy ignores the observation: network, scale, exploration"
TIME = "rewards do not reach earlier steps: target network, n_step or gae_lambda"
RUNGS = (
    Rung("rl_training/TwoArmedBandit-v0", "discrete", 1_000, 0.7, 0.8, REWARD),
    Rung("rl_training/Identity-v0", "discrete", 3_000, 9.0, 10.0, OBSERVATION),
    Rung("rl_training/Chain-v0", "discrete", 3_000, 0.95, 1.0, TIME, {"random_start": True, "max_episode_steps": 20}),
    Rung("rl_training/Identity-v0", "multidiscrete", 4_000, 9.0, 10.0, OBSERVATION, {"actions": "multidiscrete"}),
    Rung("rl_training/Identity-v0", "multibinary", 4_000, 8.5, 10.0, OBSERVATION, {"actions": "multibinary"}),
    Rung("rl_training/Identity-v0", "box", 4_000, -2.0, 0.0, OBSERVATION, {"actions": "box", "size": 1}),
)


@dataclass(frozen=True, slots=True)
class Climb:
    """What a run on one rung reached."""

    rung: Rung
    mean_return: float

    @property
    def solved(self) -> bool:
        return self.mean_return >= self.rung.enough


def climb(config: TrainConfig, actions: ActionKind | None = None) -> Iterator[Climb]:
    """Train on the rungs of a kind of action, the first that the algorithm takes if none is given; stop at a failure.

    `config` gives the algorithm, its settings and the seed.
    """
    if config.spec.loop == "offline":
        raise ConfigError(f"{config.algo} learns from a dataset, so it cannot climb the ladder of environments")
    kinds = [rung.actions for rung in RUNGS if rung.actions in config.spec.actions]
    for rung in [rung for rung in RUNGS if rung.actions == (actions or kinds[0])]:
        result = Climb(rung, _train(config, rung))
        yield result
        if not result.solved:
            return


def _shortened(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of the algorithm, cut to the length of a rung in one environment."""
    given = config.hparams.model_dump()
    cut = {name: min(given[name], most) for name, most in MOST.items() if given.get(name) is not None}
    if "num_steps" in given:
        cut["num_steps"] = min(given["num_steps"] * config.num_envs, MOST_ROLLOUT)
        cut["minibatch_size"] = math.gcd(given["minibatch_size"], cut["num_steps"])  # it must divide the rollout
    return {**config.algo_kwargs, **cut}


def _train(config: TrainConfig, rung: Rung) -> float:
    with tempfile.TemporaryDirectory() as folder:
        short = TrainConfig(
            algo=config.algo,
            env_id=rung.env_id,
            env_kwargs=dict(rung.env_kwargs),
            total_timesteps=rung.steps,
            seed=config.seed,
            num_envs=1,
            device=config.device,
            acceleration="eager",
            output_dir=folder,
            eval_episodes=EVAL_EPISODES,
            tensorboard=False,
            algo_kwargs=_shortened(config),
        )
        result = train(short, RunOptions(show_progress=False))
    return fmean(episode.ret for episode in result.eval_episodes)
