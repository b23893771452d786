"""The training loop of tensor environments: a whole iteration, rollout and update, on the device.

    for each of num_steps:  act, step the environments, write one step of the rollout     compiled, no value on the host
    learn from the rollout: scale, advantages, epochs of minibatches                       compiled steps

On CUDA the iteration is captured in one CUDA graph, so that the host launches it with one call. Between iterations the
host sets schedules and calls the callbacks. Values are read only where they are logged.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from rl_training.acceleration.compile_watch import compiling
from rl_training.acceleration.cuda_graphs import capture_graph
from rl_training.acceleration.stacking import ALIVE
from rl_training.acceleration.step_checks import repeated_checks
from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import Keys
from rl_training.core.types import Batch, DeviceAlgorithm, Metrics, RolloutAlgorithm, State, UpdateResult
from rl_training.data.device_rollout import DeviceRollout, stack_rollouts
from rl_training.envs.tensor_env import TensorEnvs, to_env_tensors
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.base import HParams
from rl_training.learners.member_settings import differing_settings
from rl_training.learners.on_device import RolloutUpdate
from rl_training.learners.stack import StackedLearner, stack_states
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Episode
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.run import RECENT_EPISODES, Run

OUT = "out."  # start of the names of a step's results among the tensors that the step writes
COMPILED = "compile"  # how the steps of a captured iteration run
T = TypeVar("T")
_AHEAD = 2  # iterations that the host may be ahead of the device


class Iterations(Protocol):
    """A loop on the device: one iteration at a time, for one run or all members of a stack. Everything is in place."""

    rows: int  # env steps of one iteration of one member
    state: State
    num_ended: Tensor  # episodes, of each member

    def iteration(self, step: int) -> UpdateResult:
        """Take the steps after env step `step` and learn; the metrics are valid until the next iteration."""
        ...

    def keep(self, metrics: Metrics, number: int = 0) -> Metrics:
        """Return the metrics of one member's run, given those of its last iteration."""
        ...

    def episodes_of(self, number: int) -> tuple[Batch, Tensor]:
        """Return the rows of the latest iteration of a member, step by step, and how many of its episodes ended."""
        ...

    def alive(self) -> list[bool]:
        """Return which members have had finite numbers only; waits for the device."""
        ...


class DeviceLoop:
    """One iteration at a time: collect a rollout and learn from it, in place."""

    def __init__(
        self,
        algorithms: Sequence[RolloutAlgorithm],
        collectors: Sequence[DeviceCollector],
        rollouts: Sequence[DeviceRollout],
        config: TrainConfig,
    ) -> None:
        """`config.acceleration`: `cuda_graph` captures iterations; in the other modes the host calls their steps.

        Several algorithms are the members of a stack: one program works on all of them, and each of them, of the
        collectors and of the rollouts is then a part of the stack.
        """
        self._algorithms, self._rollouts = algorithms, rollouts
        self._device, self._captures = collectors[0].envs.device, config.acceleration == "cuda_graph"
        self.state, self._env_state = joined_states(algorithms, collectors)
        learners = [algorithm.on_device() for algorithm in algorithms]
        act = act_and_step(learners[0].draw, collectors[0].envs)
        self._rollout, axes = rollouts[0], (len(algorithms),) if len(algorithms) > 1 else ()
        if axes:
            hparams = [cast(StackedLearner, algorithm).hparams for algorithm in algorithms]
            self.state |= differing_settings(hparams, config.spec.per_member, self._device)
            self._rollout, act = stack_rollouts(rollouts), torch.func.vmap(act, randomness="error")
        mode = COMPILED if self._captures else config.acceleration
        self._step_in_place = accelerate(act, mode, "environment step")
        self._acting = learners[0].acting_state(self.state)
        self._learning = RolloutUpdate(learners, self.state, self._rollout.rows(), mode)
        self.rows = self._rollout.num_steps * config.num_envs
        # Numbers of each member: the next update, episodes that ended.
        self._update, self.num_ended = (torch.zeros(axes, dtype=torch.int64, device=self._device) for _ in range(2))
        self._decided: dict[str, list[float]] = {}  # entries of the state that the host has set, of each member
        self._replay: Callable[[], UpdateResult] | None = None

    def iteration(self, step: int = 0) -> UpdateResult:
        """Collect one rollout and learn from it; the metrics are valid until the next iteration."""
        self._update.fill_(self._algorithms[0].num_updates)
        self._decide([algorithm.begin_learning() for algorithm in self._algorithms])
        if not self._captures:
            return self._run()
        if self._replay is None:
            changed = [*self._env_state.values(), *self.state.values(), self.num_ended]
            self._replay = captured(self._device, self._run, restoring(changed))
        return self._replay()

    def keep(self, metrics: Metrics, number: int = 0) -> Metrics:
        return metrics

    def episodes_of(self, number: int) -> tuple[Batch, Tensor]:
        rows = self._rollouts[number].rows()
        return rows | {"ended": rows["terminated"] | rows["truncated"]}, self.num_ended.view(-1)[number]

    def alive(self) -> list[bool]:
        return alive_members(self.state)

    def phases(self) -> dict[str, Callable[[], object]]:
        """Return the parts of an iteration by name, to measure them one by one."""
        one_step = {OUT + name: values for name, values in self._rollout.at(0).items()}
        return {
            "iteration": self._run,
            "collect": self._collect,
            "one step of all environments": lambda: self._step_in_place(self._env_state | one_step, self._acting),
            "learn": self._learn,
            **self._learning.phases(self._update),
        }

    def _decide(self, numbers: Sequence[Mapping[str, float]]) -> None:
        """Write what the host decides about the next update into the state, where it has changed."""
        for name in numbers[0]:
            values = [of_member[name] for of_member in numbers]
            if self._decided.get(name) == values:
                continue
            self._decided[name] = values
            if len(set(values)) == 1:
                self.state[name].fill_(values[0])
            else:
                for row, value in zip(self.state[name], values, strict=True):
                    row.fill_(value)

    @torch.no_grad()
    def _run(self) -> UpdateResult:
        self._collect()
        return self._learn()

    def _collect(self) -> None:
        for step in range(self._rollout.num_steps):
            out = {OUT + name: values for name, values in self._rollout.at(step).items()}
            self._step_in_place(self._env_state | out, self._acting)
        rows = self._rollout.rows()
        self.num_ended += (rows["terminated"] | rows["truncated"]).sum(-1)

    def _learn(self) -> UpdateResult:
        return self._learning.learn(self._update)


def joined_states(algorithms: Sequence[DeviceAlgorithm], collectors: Sequence[DeviceCollector]) -> tuple[State, State]:
    """Return the states of the algorithms and of their environments; those of several become rows of a stack."""
    if len(algorithms) == 1:
        return algorithms[0].state, collectors[0].state
    state = stack_states([algorithm.state for algorithm in algorithms])
    env_state = stack_states([collector.state for collector in collectors])
    for number, (algorithm, collector) in enumerate(zip(algorithms, collectors, strict=True)):
        algorithm.use_state({name: values[number] for name, values in state.items()})
        collector.state = {name: values[number] for name, values in env_state.items()}
    state[ALIVE] = torch.ones(len(algorithms), dtype=torch.bool, device=collectors[0].envs.device)
    return state, env_state


def alive_members(state: State) -> list[bool]:
    """Return which members of a state have had finite numbers only; waits for the device."""
    flags: list[bool] = state[ALIVE].tolist() if ALIVE in state else [True]
    return flags


def restoring(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Return a function that gives the tensors their numbers of now again."""
    before = [tensor.clone() for tensor in tensors]

    def restore() -> None:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)

    return restore


def captured(device: torch.device, run: Callable[[], T], *undo: Callable[[], None]) -> Callable[[], T]:
    """Compile all steps of an iteration by one whose changes are undone, then capture one."""

    def warm_up() -> None:
        run()
        for each in undo:
            each()

    with compiling("iteration"), repeated_checks(0):
        graph, result = capture_graph(device, warm_up, run)

    def replay() -> T:
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
    """Train an on-policy algorithm on the device."""
    algorithm, rollout = cast(RolloutAlgorithm, run.algorithm), cast(DeviceRollout, run.memory)
    loop = DeviceLoop([algorithm], [cast(DeviceCollector, run.collector)], [rollout], run.config)
    run_iterations(run, loop, callbacks)


def run_iterations(run: Run, loop: Iterations, callbacks: Sequence[Callback]) -> None:
    """Take iterations until all env steps are taken or a callback or signal asks to stop.

    A run ends with a whole iteration, so that it may take some more steps than asked for.
    """
    loop.num_ended.fill_(run.num_episodes)
    flying: deque[torch.cuda.Event] = deque()
    while run.step < run.config.total_timesteps and not run.stop_reason:
        run.mid_step = True
        result = loop.iteration(run.step)
        run.gradient_step += result.num_gradient_steps
        run.last_metrics = loop.keep(result.metrics)
        run.previous_step, run.step = run.step, run.step + loop.rows
        run.mid_step = False
        wait_for_device(flying, run.config.device)
        if run.crossed(run.config.log_interval) or run.step >= run.config.total_timesteps:
            read_episodes(run, *loop.episodes_of(0))
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


def read_episodes(run: Run, rows: Batch, num_ended: Tensor) -> None:
    """Read how many episodes have ended, and the newest of them: the log of a run holds samples of its episodes.

    `rows`: of the latest iteration, step by step; `ended`: where an episode ended.
    """
    num_envs, is_end = run.config.num_envs, rows["ended"]
    ended = is_end.nonzero()[:, 0][-RECENT_EPISODES:]
    numbers = [rows[name][ended].tolist() for name in ("episode", "episode_return", "episode_length")]
    first, seed = run.step - len(is_end), run.streams.integer("env")
    for row, episode, ret, length in zip(ended.tolist(), *numbers, strict=True):
        step, env = first + (row // num_envs + 1) * num_envs, row % num_envs
        run.collector.finished.append(Episode(step, env, episode, seed, ret, length))
    run.num_episodes = int(num_ended) - len(ended)  # the log adds those
