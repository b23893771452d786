"""The training loop of tensor environments: a whole iteration, rollout and update, on the device.

    for each of num_steps:  act, step the environments, write one step of the rollout     compiled, no value on the host
    learn from the rollout: scale, advantages, epochs of minibatches                       compiled steps

On CUDA the iteration is captured in one CUDA graph, so that the host launches it with one call. Between iterations the
host sets schedules and calls the callbacks. Values are read only where they are logged.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rl_training.acceleration.compile_watch import compiling
from rl_training.acceleration.cuda_graphs import capture_graph
from rl_training.acceleration.step_checks import repeated_checks
from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import Keys
from rl_training.core.types import Batch, DeviceAlgorithm, Metrics, State, UpdateResult
from rl_training.data.device_rollout import DeviceRollout
from rl_training.envs.tensor_env import TensorEnvs, to_env_tensors
from rl_training.hparams.base import HParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Episode
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.run import RECENT_EPISODES, Run

OUT = "out."  # start of the names of a step's results among the tensors that the step writes
COMPILED = "compile"  # how the steps of a captured iteration run
_AHEAD = 2  # iterations that the host may be ahead of the device


class DeviceLoop:
    """One iteration at a time: collect a rollout and learn from it, in place."""

    def __init__(
        self, algorithm: DeviceAlgorithm, collector: DeviceCollector, rollout: DeviceRollout, acceleration: str
    ) -> None:
        """`acceleration`: `cuda_graph` captures the whole iteration; in the other modes the host calls its steps."""
        self._algorithm, self._rollout, self._captures = algorithm, rollout, acceleration == "cuda_graph"
        self._learner, self._envs, self._env_state = algorithm.on_device(), collector.envs, collector.state
        self._device = self._envs.device
        self._update = torch.zeros((), dtype=torch.int64, device=self._device)
        self.num_ended = torch.zeros((), dtype=torch.int64, device=self._device)  # episodes
        mode = COMPILED if self._captures else acceleration
        self._step_in_place = accelerate(act_and_step(self._learner.draw, self._envs), mode, "environment step")
        self._replay: Callable[[], UpdateResult] | None = None

    def iteration(self) -> UpdateResult:
        """Collect one rollout and learn from it; the metrics are valid until the next iteration."""
        self._update.fill_(self._algorithm.num_updates)
        self._algorithm.begin_learning()
        if not self._captures:
            return self._run()
        if self._replay is None:
            self._replay = self._capture()
        return self._replay()

    def phases(self) -> dict[str, Callable[[], object]]:
        """Return the parts of an iteration by name, to measure them one by one."""
        one_step = {OUT + name: values for name, values in self._rollout.at(0).items()}
        return {
            "iteration": self._run,
            "collect": self._collect,
            "one step of all environments": lambda: self._step_in_place(
                self._env_state | one_step, self._learner.acting_state
            ),
            "learn": self._learn,
            **self._learner.phases(self._rollout.rows(), self._update),
        }

    @torch.no_grad()
    def _run(self) -> UpdateResult:
        self._collect()
        return self._learn()

    def _collect(self) -> None:
        acting = self._learner.acting_state
        for step in range(self._rollout.num_steps):
            out = {OUT + name: values for name, values in self._rollout.at(step).items()}
            self._step_in_place(self._env_state | out, acting)
        rows = self._rollout.rows()
        self.num_ended += (rows["terminated"] | rows["truncated"]).sum()

    def _learn(self) -> UpdateResult:
        return self._learner.learn(self._rollout.rows(), self._update)

    def _capture(self) -> Callable[[], UpdateResult]:
        """Compile all steps by an iteration whose changes are undone, then capture one."""
        changed = [*self._env_state.values(), self.num_ended, *self._learner.changed]
        before = [tensor.clone() for tensor in changed]

        def warm_up() -> None:
            self._run()
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)

        with compiling("iteration"), repeated_checks(0):
            graph, result = capture_graph(self._device, warm_up, self._run)

        def replay() -> UpdateResult:
            graph.replay()
            return result

        return replay


def act_and_step(draw: Callable[[State, Tensor, Keys], Tensor], envs: TensorEnvs) -> Callable[..., Any]:
    """Return the pure step of acting and stepping, which also returns one step of the rollout."""
    to_env = to_env_tensors(envs.env.action_space, envs.device)

    def act_and_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        env_state = {name: value for name, value in state.items() if not name.startswith(OUT)}
        obs = envs.observe(env_state)
        actions = draw(batch, obs, envs.keys(env_state))
        new, result = envs.step(env_state, to_env(actions))
        out = {
            "obs": obs,
            "actions": actions,
            "rewards": result.rewards,
            "next_obs": result.final_obs,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "ended": result.ended,
            "episode": env_state["episode"],
            "episode_return": result.episode_return,
            "episode_length": result.episode_length,
        }
        changed = {name: value for name, value in new.items() if value is not state[name]}
        return changed | {OUT + name: value for name, value in out.items() if OUT + name in state}, {}

    return act_and_step


def run_on_device(run: Run, hparams: HParams, callbacks: Sequence[Callback]) -> None:
    """Take iterations until all env steps are taken or a callback or signal asks to stop.

    A run ends with a whole iteration, so that it may take some more steps than asked for.
    """
    algorithm, rollout = cast(DeviceAlgorithm, run.algorithm), cast(DeviceRollout, run.memory)
    collector = cast(DeviceCollector, run.collector)
    loop = DeviceLoop(algorithm, collector, rollout, run.config.acceleration)
    loop.num_ended.fill_(run.num_episodes)
    rows = rollout.num_steps * run.config.num_envs
    flying: deque[torch.cuda.Event] = deque()
    while run.step < run.config.total_timesteps and not run.stop_reason:
        run.mid_step = True
        result = loop.iteration()
        run.gradient_step += result.num_gradient_steps
        run.last_metrics = result.metrics
        run.previous_step, run.step = run.step, run.step + rows
        run.mid_step = False
        wait_for_device(flying, run.config.device)
        if run.crossed(run.config.log_interval) or run.step >= run.config.total_timesteps:
            transitions = rollout.rows()
            read_episodes(run, loop.num_ended, transitions, transitions["terminated"] | transitions["truncated"])
        for callback in callbacks:
            callback.on_step(run)


def wait_for_device(flying: deque[torch.cuda.Event], device: str) -> None:
    """Wait until the device is at most some iterations behind, so that signals and times mean what they say."""
    if not device.startswith("cuda"):
        return
    event = torch.cuda.Event()
    event.record()
    flying.append(event)
    if len(flying) > _AHEAD:
        flying.popleft().synchronize()


def read_episodes(run: Run, num_ended: Tensor, rows: Batch, is_end: Tensor) -> None:
    """Read how many episodes have ended, and the newest of them: the log of a run holds samples of its episodes.

    `rows`: of the latest iteration, step by step. `is_end`: in which of them an episode ended.
    """
    num_envs, ended = run.config.num_envs, is_end.nonzero()[:, 0][-RECENT_EPISODES:]
    numbers = [rows[name][ended].tolist() for name in ("episode", "episode_return", "episode_length")]
    first, seed = run.step - len(is_end), run.streams.integer("env")
    for row, episode, ret, length in zip(ended.tolist(), *numbers, strict=True):
        step, env = first + (row // num_envs + 1) * num_envs, row % num_envs
        run.collector.finished.append(Episode(step, env, episode, seed, ret, length))
    run.num_episodes = int(num_ended) - len(ended)  # the log adds those
