"""What all contenders share: they receive the setting as JSON and print one JSON line.

A contender runs in its own virtual environment, where neither `benchmarks` nor `rl_training` is installed, so this file
needs only numpy and gymnasium. It measures every contender in the same way:

* speed: `CountedSteps` wraps every training environment, and the time is noted at three step counts;
* score: the final policy plays one greedy episode per reset seed, all episodes in parallel.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. `hparams` are named as in `rl_training`; each contender translates those it knows.

    `dataset`: a .npz file to learn from, relative to the repository, usually instead of an environment; `steps` and all
    other counts of environment steps are then gradient steps. `dataset_sha256` distinguishes runs on different files.
    `population` (ours only): the folder, relative to the repository, of runs that are trained together: all of `seeds`
    in mode "population"; in mode "score" its member with `seed` is played. `training_env_id`: where it learns, if that
    is not `env_id`.
    """

    mode: str  # "speed", "score", or (ours only) "profile" and "population"
    env_id: str
    steps: int
    algo: str | None = None  # for ours without a config, and for scripts with several algorithms
    num_envs: int = 1  # a config file sets its own
    seed: int = 0
    threads: int = 1
    hparams: dict[str, Any] = field(default_factory=dict)
    config: str | None = None  # a config file shipped with rl_training (ours only); `hparams` change it
    acceleration: str = "auto"  # ours only
    matmul_precision: str | None = None  # ours only; None: the config's
    device: str = "cpu"  # ours and d3rlpy only
    execution_backend: str = "local_sync"  # ours only
    warm_up: int = 500  # environment steps with updates before the steady part of a speed run without rollouts
    eval_seeds: Sequence[int] = ()  # one reset seed per evaluation episode
    track_every: int = 0  # environment steps between evaluations during training; 0: none
    track_seeds: Sequence[int] = ()
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    dataset: str | None = None
    dataset_sha256: str | None = None
    population: str | None = None
    training_env_id: str | None = None
    seeds: Sequence[int] = ()

    @property
    def algo_name(self) -> str:
        assert self.algo is not None
        return self.algo

    @property
    def dataset_path(self) -> Path:
        assert self.dataset is not None
        return ROOT / self.dataset

    @property
    def population_path(self) -> Path:
        assert self.population is not None
        return ROOT / self.population

    @property
    def learning_starts(self) -> int:
        return int(self.hparams.get("learning_starts", 0))

    @property
    def rollout(self) -> int:
        """Environment steps between two updates of an on-policy algorithm; 0 for the others."""
        return int(self.hparams.get("num_steps", 0)) * self.num_envs

    @property
    def steady_from(self) -> int:
        """First environment step of the steady part: by then everything is compiled and warmed up."""
        return 4 * self.rollout or self.learning_starts + self.warm_up


class Learner(ABC):
    """A contender that is built and ready to train."""

    @abstractmethod
    def learn(self) -> None: ...

    @abstractmethod
    def act(self, obs: np.ndarray) -> np.ndarray:
        """Return greedy actions for `obs`: (batch, ...)."""

    @abstractmethod
    def num_updates(self) -> int: ...

    def begin_episodes(self) -> None:  # noqa: B027
        """Reset any recurrent state: the next observations are the first of new episodes."""

    def keep(self, rows: Sequence[int]) -> None:  # noqa: B027
        """Keep the recurrent state of these rows of the last observations: only their episodes continue."""

    def make_env(self, setting: Setting) -> gym.Env:
        """Make an environment for evaluation."""
        return make_env(setting)

    def details(self) -> dict[str, Any]:
        """Return what else belongs in the result."""
        return {}


class StepCounter:
    """Calls `at[n]` right after the n-th environment step, counted over all episodes and environments."""

    def __init__(self) -> None:
        self.at: dict[int, Callable[[], None]] = {}
        self.count = 0

    def advance(self) -> None:
        self.count += 1
        if self.count in self.at:
            self.at[self.count]()


class CountedSteps(gym.Wrapper):
    def __init__(self, env: gym.Env, counter: StepCounter) -> None:
        super().__init__(env)
        self.counter = counter

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self.counter.advance()
        return result


class TrainingEnvs:
    """The environments a peer trains in, created on first use, and the count of their steps."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.counter = StepCounter()

    @cached_property
    def envs(self) -> list[CountedSteps]:
        return [CountedSteps(make_env(self.setting), self.counter) for _ in range(self.setting.num_envs)]

    def factories(self) -> list[Callable[[], gym.Env]]:
        """Return the environments in the form that vector environments are built from."""
        return [partial(_same, env) for env in self.envs]


def _same(env: gym.Env) -> gym.Env:
    return env


def box(space: gym.Space[Any]) -> Box:
    assert isinstance(space, Box), space
    return space


def discrete(space: gym.Space[Any]) -> Discrete:
    assert isinstance(space, Discrete), space
    return space


Build = Callable[[Setting, TrainingEnvs], Learner]
Mode = Callable[[Build, Setting, "Stopwatch"], dict[str, Any]]


def make_env(setting: Setting) -> gym.Env:
    """Make an environment without gymnasium's passive checker, since `rl_training` does not use it either."""
    return gym.make(setting.env_id, disable_env_checker=True, **setting.env_kwargs)


def play(learner: Learner, setting: Setting, seeds: Sequence[int]) -> list[float]:
    """Play one episode per reset seed, in parallel; return the returns in the order of the seeds."""
    envs = [learner.make_env(setting) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    returns = [0.0] * len(envs)
    playing = list(range(len(envs)))
    learner.begin_episodes()
    while playing:
        actions = learner.act(np.stack([observations[i] for i in playing]))
        going_on = []  # rows
        for row, (i, action) in enumerate(zip(playing, actions, strict=True)):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                going_on.append(row)
        learner.keep(going_on)
        playing = [playing[row] for row in going_on]
    for env in envs:
        env.close()
    return returns


@dataclass
class Stopwatch:
    """Wall and CPU time at named moments. CPU time below wall time shows that the core was shared."""

    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    def note(self, name: str) -> None:
        self.wall[name] = time.perf_counter()
        self.cpu[name] = time.process_time()

    def between(self, start: str, end: str) -> float:
        return self.wall[end] - self.wall[start]

    def share_of_core(self, start: str, end: str) -> float:
        return (self.cpu[end] - self.cpu[start]) / self.between(start, end)


def speed_figures(watch: Stopwatch, setting: Setting, env_steps: int) -> dict[str, float]:
    """Turn the five moments of a timed run into figures.

    The steady rate leaves out the random phase and the first learning steps: `warm_up`, or 4 rollouts. `compile_s` is
    the time those take beyond the steady rate: tracing, compilation, first-call warm-up.
    """
    steady_steps = setting.steps - setting.steady_from
    steady_rate = steady_steps / watch.between("steady", "last_step")
    first_updates_s = watch.between("learning_starts", "steady")
    return {
        "build_s": watch.between("imported", "built"),
        "learn_s": watch.between("built", "learned"),
        "steps_per_s": env_steps / watch.between("built", "learned"),
        "steady_steps_per_s": steady_rate,
        "random_phase_s": watch.between("built", "learning_starts"),
        "compile_s": max(0.0, first_updates_s - (setting.steady_from - setting.learning_starts) / steady_rate),
        "share_of_core": watch.share_of_core("steady", "last_step"),
    }


def run_speed(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    training = TrainingEnvs(setting)
    counter = training.counter
    for step, name in (
        (setting.learning_starts, "learning_starts"),
        (setting.steady_from, "steady"),
        (setting.steps, "last_step"),
    ):
        counter.at[step] = partial(watch.note, name)
    learner = build(setting, training)
    watch.note("built")
    if setting.learning_starts == 0:
        watch.note("learning_starts")
    learner.learn()
    watch.note("learned")
    return {
        **speed_figures(watch, setting, counter.count),
        "env_steps": counter.count,
        "updates": learner.num_updates(),
        **learner.details(),
        "final_returns": play(learner, setting, setting.eval_seeds),
    }


def run_score(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    training = TrainingEnvs(setting)
    tracked: list[dict[str, Any]] = []
    learner = build(setting, training)

    def track(step: int) -> None:
        tracked.append({"step": step, "returns": play(learner, setting, setting.track_seeds)})

    if setting.track_every:
        for step in range(setting.track_every, setting.steps + 1, setting.track_every):
            training.counter.at[step] = partial(track, step)
    watch.note("built")
    learner.learn()
    watch.note("learned")
    return {
        "learn_s": watch.between("built", "learned"),
        "env_steps": training.counter.count,
        "updates": learner.num_updates(),
        **learner.details(),
        "tracked": tracked,
        "returns": play(learner, setting, setting.eval_seeds),
    }


def version_of(package: str) -> str | None:
    """Return a package's version; None if it runs from a folder and was never installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def report(result: dict[str, Any], setting: Setting, packages: Sequence[str]) -> None:
    """Print the JSON line that the benchmark reads."""
    line = {
        **result,
        "setting": asdict(setting),
        "versions": {name: version_of(name) for name in packages},
        "python": sys.version.split()[0],
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    print(json.dumps(line), flush=True)


def main(build: Build, packages: Sequence[str], modes: Mapping[str, Mode] | None = None) -> None:
    """Run a contender; called at the end of each script, after its library was imported. `modes`: further modes."""
    watch = Stopwatch()
    watch.note("imported")
    setting = Setting(**json.loads(sys.argv[1]))
    mode = {"speed": run_speed, "score": run_score, **(modes or {})}[setting.mode]
    report({**mode(build, setting, watch), "import_cpu_s": watch.cpu["imported"]}, setting, packages)
