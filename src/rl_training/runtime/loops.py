"""The training loops, one per family."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Protocol, cast

from rl_training.core.types import Replay, Rollouts, UpdateResult
from rl_training.hparams.base import HParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import Run

MAX_UPDATES_AT_ONCE = 64  # batches that are drawn, and moved to the device, together
OFFLINE_UPDATES_AT_ONCE = 10  # the same where every step is an update, and callbacks see every tenth


class BatchSettings(Protocol):
    """What loops that draw batches read of an algorithm's settings."""

    @property
    def batch_size(self) -> int: ...


def run_off_policy(run: Run, hparams: BatchSettings, callbacks: Sequence[Callback]) -> None:
    """Collect, remember, learn: until the env steps are taken or a callback or signal asks to stop."""
    algorithm, memory, collector = run.algorithm, cast(Replay, run.memory), cast(Collector, run.collector)
    num_envs, total_timesteps = run.config.num_envs, run.config.total_timesteps
    spec = run.config.spec
    owed = partial(spec.updates_until, hparams)
    at_once = MAX_UPDATES_AT_ONCE if spec.updates_at_once else 1
    sampler = cache(lambda updates: memory.sampler(updates * hparams.batch_size))
    while run.step < total_timesteps and not run.stop_reason:
        transitions = collector.step(algorithm, step=run.step)
        run.mid_step = True
        memory.add(transitions)
        run.previous_step, run.step = run.step, run.step + num_envs
        # Until the first n-step return is whole there is nothing to learn from.
        due = owed(run.step) - owed(run.previous_step) if len(memory) else 0
        for done in range(0, due, at_once):
            result = algorithm.update(sampler(min(at_once, due - done))())
            if result.td_errors is not None:
                memory.update_priorities(result.td_errors)
            _note(run, result)
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)


def run_on_policy(run: Run, hparams: HParams, callbacks: Sequence[Callback]) -> None:
    """Collect a rollout with the policy as it is, learn from it, forget it: until as above.

    A rollout that the run's end cuts short is not learnt from.
    """
    algorithm, memory, collector = run.algorithm, cast(Rollouts, run.memory), cast(Collector, run.collector)
    num_envs, total_timesteps = run.config.num_envs, run.config.total_timesteps
    while run.step < total_timesteps and not run.stop_reason:
        transitions = collector.step(algorithm, step=run.step)
        run.mid_step = True
        memory.add(transitions)
        run.previous_step, run.step = run.step, run.step + num_envs
        if memory.full:
            _note(run, algorithm.update(memory.rollout()))
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)


def run_offline(run: Run, hparams: BatchSettings, callbacks: Sequence[Callback]) -> None:
    """Learn from what the memory holds: until the gradient steps are taken or as above. No env takes a step.

    Updates are made together up to the next multiple of some steps or of an interval of the settings: a function of the
    step alone, so that a resumed run makes them in the same groups, whose metrics are means.
    """
    config, memory = run.config, cast(Replay, run.memory)
    own = (getattr(hparams, name) for name in config.spec.intervals)
    intervals = (config.log_interval, config.eval_interval, config.checkpoint_interval, *own)
    grid = [OFFLINE_UPDATES_AT_ONCE, *(interval for interval in intervals if interval)]
    sampler = cache(lambda updates: memory.sampler(updates * hparams.batch_size))
    while run.step < config.total_timesteps and not run.stop_reason:
        end = min(config.total_timesteps, *((run.step // interval + 1) * interval for interval in grid))
        run.mid_step = True
        _note(run, run.algorithm.update(sampler(end - run.step)()))
        run.previous_step, run.step = run.step, end
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)


def _note(run: Run, result: UpdateResult) -> None:
    run.gradient_step += result.num_gradient_steps
    run.last_metrics = result.metrics
