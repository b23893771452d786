"""The algorithms of this library, through its public API.

`profile` is a third mode next to `speed` and `score`: the same training with a stopwatch around environment, acting,
update and so on. It is a separate run, so that the timed runs are not instrumented. `population` trains several seeds
together; `score` then plays one of them.
"""

import importlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from harness import Build, Learner, Setting, StepCounter, Stopwatch, TrainingEnvs, main

import rl_training
from rl_training import PopulationConfig, TrainConfig, load_config, train_population
from rl_training.api.algorithms import ManagedAlgorithm
from rl_training.core.spaces import observation_field, to_env_actions
from rl_training.core.types import Algorithm, Carry, act_on
from rl_training.envs.slot import check_env
from rl_training.experiment.checkpointing import step_of
from rl_training.experiment.population import PopulationDir
from rl_training.experiment.run_dir import read_run_config
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import env_factory_of
from rl_training.runtime.setup import RunOptions

# The parts of a step, each with its methods; `name()` stands for the functions that the method returns. Time inside a
# method that another one calls counts towards the inner one's part.
ENVS = "rl_training.envs.vector:SyncEnvs"
ENVPOOL_ENVS = "rl_training.envs.envpool_envs:EnvPoolEnvs"
REPLAY = [
    "rl_training.data.replay_buffer:ReplayBuffer.add",
    "rl_training.data.replay_buffer:ReplayBuffer.sampler()",
    "rl_training.data.prioritized_replay_buffer:PrioritizedReplayBuffer.add",
    "rl_training.data.prioritized_replay_buffer:PrioritizedReplayBuffer.sampler()",
    "rl_training.data.prioritized_replay_buffer:PrioritizedReplayBuffer.update_priorities",
]
Q_LEARNING = {
    "act": ["rl_training.learners.q_learning:QLearner.act"],
    "buffer": REPLAY,
    "update": ["rl_training.learners.q_learning:QLearner.update"],
}
ACTOR_CRITIC = {
    "act": ["rl_training.learners.actor_critic:ActorCritic.act"],
    "buffer": REPLAY,
    "update": ["rl_training.learners.actor_critic:ActorCritic.update"],
}
CRITICS_ON_DATASET = {part: ACTOR_CRITIC[part] for part in ("buffer", "update")}
PARTS = {
    **dict.fromkeys(("dqn", "c51_dqn", "rainbow_dqn", "qr_dqn", "iqn", "fqf"), Q_LEARNING),
    **dict.fromkeys(("sac", "td3", "redq", "tqc", "crossq"), ACTOR_CRITIC),
    **dict.fromkeys(("td3_bc", "rebrac", "cql"), CRITICS_ON_DATASET),
    "iql": {"buffer": REPLAY, "update": ["rl_training.learners.offline:OfflineLearner.update"]},
    "ppo": {
        "act": ["rl_training.algorithms.ppo:PPO.act"],
        "buffer": [
            "rl_training.data.rollout_buffer:RolloutBuffer.add",
            "rl_training.data.rollout_buffer:RolloutBuffer.rollout",
        ],
        "advantages": ["rl_training.algorithms.ppo:PPO._advantages"],
        "update": ["rl_training.algorithms.ppo:PPO.update"],
    },
}


class CountSteps(Callback):
    """Counts the steps of the library's environments, as `CountedSteps` does for those of a peer."""

    def __init__(self, counter: StepCounter) -> None:
        self.counter = counter
        self.run: Run | None = None

    def on_start(self, run: Run) -> None:
        self.run = run
        spaces = run.collector.envs if isinstance(run.collector, Collector) else make_env_of(run)
        self.to_env_actions = to_env_actions(spaces.action_space)
        self.obs_dtype = observation_field(spaces.observation_space).dtype

    def on_step(self, run: Run) -> None:
        while self.counter.count < run.step:
            self.counter.advance()


def make_env_of(run: Run) -> gym.Env:
    """Make an environment as the run sees it: a Dict observation is one row of bytes."""
    assert run.env_factory is not None
    return check_env(run.env_factory())


def config_of(setting: Setting, output_dir: str | Path) -> TrainConfig:
    """Return the settings of a run: those of a config file, or the algorithm's defaults, with the requested changes."""
    changes = {
        "env_id": setting.training_env_id or setting.env_id,
        "total_timesteps": setting.steps,
        "seed": setting.seed,
        "device": setting.device,
        "threads": setting.threads,
        "acceleration": setting.acceleration,
        "execution_backend": setting.execution_backend,
        "output_dir": output_dir,
    }
    if setting.env_kwargs:
        changes["env_kwargs"] = setting.env_kwargs
    if setting.matmul_precision:
        changes["matmul_precision"] = setting.matmul_precision
    # The whole file, even if the config takes a part of it.
    whole = {"dataset_kind": "npz", "dataset_size": None, "held_out": 0.0}
    source = {**whole, "dataset_path": str(setting.dataset_path)} if setting.dataset else {}
    if setting.config:
        config = load_config(setting.config)
        if config.spec.loop != "offline":  # it imitates the file in an environment
            source = {f"expert_{name}": value for name, value in source.items() if name != "held_out"}
        return config.updated(**changes, algo_kwargs={**config.algo_kwargs, **setting.hparams, **source})
    # The run's own evaluation at the end is not part of a timed run; one episode is the minimum.
    return TrainConfig(
        algo=setting.algo,
        num_envs=setting.num_envs,
        algo_kwargs={**setting.hparams, **source},
        eval_episodes=1,
        tensorboard=False,  # the peers do not write its files either
        **changes,
    )


class OurLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        self.run_folder = tempfile.TemporaryDirectory()
        self.config = config_of(setting, self.run_folder.name)
        self.counter = CountSteps(training.counter)
        self.carry: Carry | None = None
        self.model = agent_class(self.config)(self.config, callbacks=[self.counter], show_progress=False)

    def learn(self) -> None:
        self.model.learn()

    def make_env(self, setting: Setting) -> gym.Env:
        assert self.counter.run is not None
        return make_env_of(self.counter.run)  # MinAtar's games are registered by the library

    def act(self, obs: np.ndarray) -> np.ndarray:
        assert self.counter.run is not None
        result = act_on(self.counter.run.algorithm, obs.astype(self.counter.obs_dtype, copy=False), self.carry, step=0)
        self.carry = result.carry
        return self.counter.to_env_actions(result.actions)

    def begin_episodes(self) -> None:
        self.carry = None

    def keep(self, rows: Sequence[int]) -> None:
        if self.carry is not None:
            self.carry = {name: values[list(rows)] for name, values in self.carry.items()}

    def num_updates(self) -> int:
        assert self.counter.run is not None
        return self.counter.run.gradient_step

    def details(self) -> dict[str, Any]:
        run = self.counter.run
        assert run is not None
        return describe(run.algorithm, run.config)


class Member(Learner):
    """A member of a population that has been trained: to learn means to load one checkpoint after the other."""

    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        self.counter = training.counter
        folders = (path.parent for path in setting.population_path.glob("*/members/*/config.yaml"))
        self.folder = next(folder for folder in folders if read_run_config(folder).seed == setting.seed)
        if not (self.folder / "result.json").is_file():
            ended = PopulationDir(self.folder.parent.parent).states()[self.folder.name]
            raise RuntimeError(f"the member with seed {setting.seed} has no result: {ended}")

    def learn(self) -> None:
        for checkpoint in sorted((self.folder / "checkpoints").glob("step_*")):
            self.model = agent_class(read_run_config(self.folder)).load(checkpoint, show_progress=False)
            self.updates = int(open_checkpoint(checkpoint).manifest["counters"]["gradient_step"])
            while self.counter.count < step_of(checkpoint.name):
                self.counter.advance()

    def make_env(self, setting: Setting) -> gym.Env:
        played = self.model.config
        if played.execution_backend == "tensor":
            played = played.updated(env_id=setting.env_id, execution_backend="local_sync")
        return env_factory_of(played, RunOptions())()

    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(obs))

    def num_updates(self) -> int:
        return self.updates

    def details(self) -> dict[str, Any]:
        result = json.loads((self.folder / "result.json").read_text())
        together = {"learn_s": result["wall_s"], "stacked": len(list(self.folder.parent.iterdir()))}
        return {**describe(self.model._policy(), self.model.config), **together}


def our_learner(setting: Setting, training: TrainingEnvs) -> Learner:
    return (Member if setting.population else OurLearner)(setting, training)


def agent_class(config: TrainConfig) -> type[ManagedAlgorithm]:
    found: type[ManagedAlgorithm] = getattr(rl_training, config.spec.class_name)
    return found


def describe(algorithm: Algorithm, config: TrainConfig) -> dict[str, Any]:
    parameters = (value for value in algorithm.policy_state_dict().values() if isinstance(value, torch.Tensor))
    return {
        "parameters": sum(value.numel() for value in parameters),
        "resolved_config": config.model_dump(mode="json", exclude={"output_dir"}),
    }


class Profiler:
    """Adds up the time spent inside named methods between `start` and `stop`."""

    def __init__(self, parts: dict[str, list[str]]) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)
        self.inner = [0.0]  # per running method: the seconds spent in the methods it called
        for part, methods in parts.items():
            for path in methods:
                module, _, name = path.partition(":")
                class_name, _, method = name.partition(".")
                owner = getattr(importlib.import_module(module), class_name)
                timed = self._giving_timed if method.endswith("()") else self._timed
                method = method.removesuffix("()")
                setattr(owner, method, timed(part, getattr(owner, method)))

    def _giving_timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Time the functions that `method` returns."""
        return lambda *args, **kwargs: self._timed(part, method(*args, **kwargs))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            self.inner.append(0.0)
            try:
                return method(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - start
                self.seconds[part] += seconds - self.inner.pop()
                self.inner[-1] += seconds

        return timed

    def start(self) -> None:
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.started = time.perf_counter()

    def stop(self) -> None:
        self.total = time.perf_counter() - self.started
        self.stopped = dict(self.seconds)

    def per_step_us(self, steps: int) -> dict[str, float]:
        parts = {**self.stopped, "rest": self.total - sum(self.stopped.values())}
        return {part: 1e6 * seconds / steps for part, seconds in parts.items()}


def run_profile(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    assert setting.algo is not None
    envs = ENVPOOL_ENVS if setting.execution_backend == "envpool" else ENVS
    # Before anything is built, because a method may be looked up once and stored.
    profiler = Profiler({"env": [f"{envs}.step", f"{envs}.reset"], **PARTS[setting.algo]})
    training = TrainingEnvs(setting)
    training.counter.at = {setting.steady_from: profiler.start, setting.steps: profiler.stop}
    learner = build(setting, training)
    learner.learn()
    return {"time_per_step_us": profiler.per_step_us(setting.steps - setting.steady_from), **learner.details()}


def run_population(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    """Train a run for each of the seeds, all together; each keeps its checkpoints, at the steps to be tracked."""
    config = config_of(setting, setting.population_path).updated(
        checkpoint_interval=setting.track_every,
        checkpoint_minutes=0.0,
        keep_checkpoints=1_000_000,  # all of them
        eval_interval=0,
        eval_episodes=1,  # the minimum: members are played later
        tensorboard=False,
    )
    torch.set_num_threads(setting.threads)
    population = PopulationConfig(base=config, seeds=tuple(setting.seeds), run="stacked")
    result = train_population(population, RunOptions(show_progress=False))
    return {"learn_s": result.wall_s, "states": {name: state.state for name, state in result.states.items()}}


if __name__ == "__main__":
    main(
        our_learner,
        ["rl-training", "torch", "gymnasium", "mujoco", "numpy"],
        modes={"profile": run_profile, "population": run_population},
    )
