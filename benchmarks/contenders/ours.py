"""DQN of this library, through its public API.

`profile` is a third mode beside `speed` and `score`: the same training with a stopwatch around env, act, buffer and
update. It is a run of its own, so that the timed runs carry no instruments.
"""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness import Build, CountedSteps, Learner, Setting, Stopwatch, main, make_env

from rl_training import DQN, Callback, TrainConfig, load_config
from rl_training.algorithms import dqn
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.vector import SyncEnvs
from rl_training.runtime.run import Run


class CountSteps(Callback):
    """Does for the library's own envs what `CountedSteps` does for the env handed to a peer."""

    def __init__(self, counted: CountedSteps) -> None:
        self.counted = counted
        self.run: Run | None = None

    def on_start(self, run: Run) -> None:
        self.run = run

    def on_step(self, run: Run) -> None:
        self.counted.count = run.step
        if run.step in self.counted.at:
            self.counted.at[run.step]()


class OurLearner(Learner):
    def __init__(self, setting: Setting, env: CountedSteps) -> None:
        torch.set_num_threads(setting.threads)
        self.run_folder = tempfile.TemporaryDirectory()
        changes = {
            "env_id": setting.env_id,
            "total_timesteps": setting.steps,
            "seed": setting.seed,
            "device": "cpu",
            "acceleration": setting.acceleration,
            "output_dir": self.run_folder.name,
        }
        if setting.config:
            self.config = load_config(setting.config).updated(**changes)
        else:
            # The run's own evaluation at the end is no part of a timed run; one episode is the least it can be told.
            # The peers' networks have no layer normalisation and their learning rate stays as it is.
            hparams = {**setting.hparams, "layer_norm": False, "learning_rate_schedule": "constant"}
            self.config = TrainConfig(algo="dqn", algo_kwargs=hparams, eval_episodes=1, **changes)
        self.counter = CountSteps(env)
        self.model = DQN(self.config, callbacks=[self.counter], show_progress=False)

    def learn(self) -> None:
        self.model.learn()

    def act(self, obs: np.ndarray) -> np.ndarray:
        assert self.counter.run is not None
        return self.counter.run.algorithm.act(np.asarray(obs, np.float32)).actions

    def num_updates(self) -> int:
        assert self.counter.run is not None
        return self.counter.run.gradient_step

    def details(self) -> dict[str, Any]:
        assert self.counter.run is not None
        return {"resolved_config": self.counter.run.config.model_dump(mode="json", exclude={"output_dir"})}


class Profiler:
    """Adds up the time spent inside named methods, from `start` to `stop`."""

    METHODS = (
        ("env", SyncEnvs, "step"),
        ("env", SyncEnvs, "reset"),
        ("act", dqn.DQN, "act"),
        ("buffer", ReplayBuffer, "add"),
        ("buffer", ReplayBuffer, "sample"),
        ("update", dqn.DQN, "update"),
    )

    def __init__(self) -> None:
        self.seconds = {part: 0.0 for part, _, _ in self.METHODS}
        for part, owner, name in self.METHODS:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - start

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
    profiler = Profiler()  # before anything is built: a method may be looked up once and kept
    env = CountedSteps(make_env(setting.env_id))
    env.at = {setting.steady_from: profiler.start, setting.steps: profiler.stop}
    learner = build(setting, env)
    learner.learn()
    return {"time_per_step_us": profiler.per_step_us(setting.steps - setting.steady_from), **learner.details()}


if __name__ == "__main__":
    main(OurLearner, ["rl-training", "torch", "gymnasium", "numpy"], modes={"profile": run_profile})
