"""The training loops, one per family."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Protocol, cast

from rl_training.acceleration.acting import meanwhile
from rl_training.core.types import Observer, Replay, Rollouts, UpdateResult
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.base import HParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import Run

MAX_UPDATES_AT_ONCE = 64  # batches that are sampled, and moved to the device, together
OFFLINE_UPDATES_AT_ONCE = 10  # the same where every step is an update; callbacks are called after every tenth


class BatchSettings(Protocol):
    """The settings that loops with batches read."""

    @property
    def batch_size(self) -> int: ...


def run_off_policy(run: Run, hparams: BatchSettings, callbacks: Sequence[Callback]) -> None:
    """Collect, store, update, until all env steps are taken or a callback or signal asks to stop.

    On a GPU, the updates that are due after a step are launched when the next actions have been chosen, so that the
    device learns while the host steps the envs. Each action is then chosen one step's updates earlier than on the CPU.
    """
    algorithm, memory, collector = run.algorithm, cast(Replay, run.memory), cast(Collector, run.collector)
    observer = algorithm if isinstance(algorithm, Observer) else None
    num_envs, total_timesteps = run.config.num_envs, run.config.total_timesteps
    spec = run.config.spec
    updates_until = partial(spec.updates_until, hparams)
    at_once = MAX_UPDATES_AT_ONCE if spec.updates_at_once else 1
    sampler = cache(lambda updates: memory.sampler(updates * hparams.batch_size))

    def learn() -> None:
        if run.learned:
            return
        run.mid_step = True
        # Until the first n-step return is complete there is nothing to learn from.
        due = updates_until(run.step) - updates_until(run.previous_step) if len(memory) else 0
        for done in range(0, due, at_once):
            result = algorithm.update(sampler(min(at_once, due - done))())
            if result.td_errors is not None:
                memory.update_priorities(result.td_errors)
            _count_updates(run, result)
        run.learned, run.mid_step = True, False

    while run.step < total_timesteps and not run.stop_reason:
        if not run.learned:
            with meanwhile(learn):
                collector.choose(algorithm, step=run.step)
        transitions = collector.step(algorithm, step=run.step)
        run.mid_step = True
        memory.add(transitions)
        if observer is not None:
            observer.observe(transitions)
        run.previous_step, run.step, run.learned = run.step, run.step + num_envs, False
        if not learns_meanwhile(run.config):
            learn()
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)


def learns_meanwhile(config: TrainConfig) -> bool:
    """Return whether the device learns from a step while the host takes the next one."""
    return config.device.startswith("cuda")


def run_on_policy(run: Run, hparams: HParams, callbacks: Sequence[Callback]) -> None:
    """Collect a rollout with the current policy, update on it and drop it; stop like `run_off_policy`.

    A rollout that the end of the run cuts short is not used.
    """
    algorithm, memory, collector = run.algorithm, cast(Rollouts, run.memory), cast(Collector, run.collector)
    num_envs, total_timesteps = run.config.num_envs, run.config.total_timesteps
    while run.step < total_timesteps and not run.stop_reason:
        transitions = collector.step(algorithm, step=run.step)
        run.mid_step = True
        memory.add(transitions)
        run.previous_step, run.step = run.step, run.step + num_envs
        if memory.full:
            _count_updates(run, algorithm.update(memory.rollout()))
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)


def run_offline(run: Run, hparams: BatchSettings, callbacks: Sequence[Callback]) -> None:
    """Update on what the memory holds, without env steps; `total_timesteps` counts gradient steps.

    Updates are grouped up to the next multiple of `OFFLINE_UPDATES_AT_ONCE` or of an interval in the settings. The
    groups depend on the step alone, so that a resumed run has the same ones; metrics are means over a group.
    """
    config, memory = run.config, cast(Replay, run.memory)
    sampler = cache(lambda updates: memory.sampler(updates * hparams.batch_size))
    while run.step < config.total_timesteps and not run.stop_reason:
        end = end_of_group(config, run.step)
        run.mid_step = True
        _count_updates(run, run.algorithm.update(sampler(end - run.step)()))
        run.previous_step, run.step = run.step, end
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)


def end_of_group(config: TrainConfig, step: int) -> int:
    """Return the step up to which an offline run makes its next updates at once."""
    own = (getattr(config.hparams, name) for name in config.spec.intervals)
    intervals: tuple[int, ...] = (config.log_interval, config.eval_interval, config.checkpoint_interval, *own)
    grid = [OFFLINE_UPDATES_AT_ONCE, *(interval for interval in intervals if interval)]
    return min(config.total_timesteps, *((step // interval + 1) * interval for interval in grid))


def _count_updates(run: Run, result: UpdateResult) -> None:
    run.gradient_step += result.num_gradient_steps
    run.last_metrics = result.metrics
