"""What every contender shares: the setting comes in as JSON, one JSON line goes out.

A contender runs in its own virtual environment, where neither `benchmarks` nor `rl_training` is installed, so this file
needs numpy and gymnasium alone. It measures every contender in the same way:

* speed: `CountedSteps` wraps every training env; together they note the time at three step counts;
* score: the final policy plays one episode per reset seed, all episodes side by side, greedily.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. `hparams` are named as in `rl_training`; each contender translates those it knows.

    `dataset`: a .npz file, relative to the repository, that is learnt from, mostly in place of an env: `steps` and all
    that is counted in env steps are gradient steps then. Its digest is here to tell runs on different files apart.
    """

    mode: str  # "speed", "score", or (ours only) "profile"
    env_id: str
    steps: int
    algo: str | None = None  # for ours without a config, and for scripts that hold several algorithms
    num_envs: int = 1  # a config file has its own
    seed: int = 0
    threads: int = 1
    hparams: dict[str, Any] = field(default_factory=dict)
    config: str | None = None  # a config file shipped with rl_training (ours only); `hparams` change it
    acceleration: str = "auto"  # ours only
    matmul_precision: str | None = None  # ours only; None: the config's
    device: str = "cpu"  # ours and d3rlpy only
    execution_backend: str = "local_sync"  # ours only
    warm_up: int = 500  # env steps with updates before the steady part of a speed run, where there are no rollouts
    eval_seeds: Sequence[int] = ()  # one reset seed per evaluation episode
    track_every: int = 0  # env steps between evaluations during training; 0 = none
    track_seeds: Sequence[int] = ()
    dataset: str | None = None
    dataset_sha256: str | None = None

    @property
    def dataset_path(self) -> Path:
        assert self.dataset is not None
        return ROOT / self.dataset

    @property
    def learning_starts(self) -> int:
        return int(self.hparams.get("learning_starts", 0))

    @property
    def rollout(self) -> int:
        """Env steps between two updates of an on-policy algorithm; 0 for the others."""
        return int(self.hparams.get("num_steps", 0)) * self.num_envs

    @property
    def steady_from(self) -> int:
        """First env step of the steady part: by then everything was traced, compiled and warmed up."""
        return 4 * self.rollout or self.learning_starts + self.warm_up


class Learner(ABC):
    """A contender that is built and ready to train."""

    @abstractmethod
    def learn(self) -> None: ...

    @abstractmethod
    def act(self, obs: np.ndarray) -> np.ndarray:
        """Give greedy actions for `obs`: (batch, ...)."""

    @abstractmethod
    def num_updates(self) -> int: ...

    def begin_episodes(self) -> None:  # noqa: B027
        """Forget what was seen: the next observations are the first of some episodes."""

    def keep(self, rows: Sequence[int]) -> None:  # noqa: B027
        """Note that only the episodes of these rows of the last observations go on."""

    def make_env(self, env_id: str) -> gym.Env:
        """Make an env to be evaluated in."""
        return make_env(env_id)

    def details(self) -> dict[str, Any]:
        """What else the result should say."""
        return {}


class StepCounter:
    """Calls `at[n]` right after the n-th env step, counted over all episodes and all envs."""

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
    """The envs a peer trains in, made when they are asked for, and the count of their steps."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.counter = StepCounter()

    @cached_property
    def envs(self) -> list[CountedSteps]:
        return [CountedSteps(make_env(self.setting.env_id), self.counter) for _ in range(self.setting.num_envs)]

    def factories(self) -> list[Callable[[], gym.Env]]:
        """Give the envs in the form that vector envs are made from."""
        return [lambda env=env: env for env in self.envs]


Build = Callable[[Setting, TrainingEnvs], Learner]
Mode = Callable[[Build, Setting, "Stopwatch"], dict[str, Any]]


def make_env(env_id: str) -> gym.Env:
    """Make the env without gymnasium's passive checker, for everyone: `rl_training` makes its own without it."""
    return gym.make(env_id, disable_env_checker=True)


def play(learner: Learner, env_id: str, seeds: Sequence[int]) -> list[float]:
    """Play one episode per reset seed, side by side; give the returns in the order of the seeds."""
    envs = [learner.make_env(env_id) for _ in seeds]
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
    """Wall and CPU time at named moments. CPU time beside wall time shows whether the core was shared."""

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
    what those cost beyond the steady rate: tracing, compiling, first-call warm-up.
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
        counter.at[step] = lambda name=name: watch.note(name)
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
        "final_returns": play(learner, setting.env_id, setting.eval_seeds),
    }


def run_score(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    training = TrainingEnvs(setting)
    tracked: list[dict[str, Any]] = []
    learner = build(setting, training)
    if setting.track_every:
        for step in range(setting.track_every, setting.steps + 1, setting.track_every):
            training.counter.at[step] = lambda step=step: tracked.append(
                {"step": step, "returns": play(learner, setting.env_id, setting.track_seeds)}
            )
    watch.note("built")
    learner.learn()
    watch.note("learned")
    return {
        "learn_s": watch.between("built", "learned"),
        "env_steps": training.counter.count,
        "updates": learner.num_updates(),
        **learner.details(),
        "tracked": tracked,
        "returns": play(learner, setting.env_id, setting.eval_seeds),
    }


def version_of(package: str) -> str | None:
    """Give a package's version; None if it runs from a folder and was never installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def report(result: dict[str, Any], setting: Setting, packages: Sequence[str]) -> None:
    """Print the one JSON line the benchmark reads."""
    line = {
        **result,
        "setting": asdict(setting),
        "versions": {name: version_of(name) for name in packages},
        "python": sys.version.split()[0],
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    print(json.dumps(line), flush=True)


def main(build: Build, packages: Sequence[str], modes: Mapping[str, Mode] | None = None) -> None:
    """Run a contender: called at the end of each script, after its library was imported. `modes`: its own besides."""
    watch = Stopwatch()
    watch.note("imported")
    setting = Setting(**json.loads(sys.argv[1]))
    mode = {"speed": run_speed, "score": run_score, **(modes or {})}[setting.mode]
    report({**mode(build, setting, watch), "import_cpu_s": watch.cpu["imported"]}, setting, packages)
