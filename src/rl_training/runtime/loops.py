"""The training loops, one per family."""

from collections.abc import Sequence

from rl_training.hparams.base import OffPolicyHParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run


def run_off_policy(run: Run, hparams: OffPolicyHParams, callbacks: Sequence[Callback]) -> None:
    """Collect, remember, learn: until the env steps are taken or a callback or signal asks to stop."""
    algorithm, memory, collector = run.algorithm, run.memory, run.collector
    num_envs, total_timesteps = run.config.num_envs, run.config.total_timesteps
    sample = memory.sampler(hparams.batch_size)
    owed = hparams.updates_until
    while run.step < total_timesteps and not run.stop_reason:
        transitions = collector.step(algorithm, step=run.step)
        run.mid_step = True
        memory.add(transitions)
        run.previous_step, run.step = run.step, run.step + num_envs
        for _ in range(owed(run.step) - owed(run.previous_step)):
            result = algorithm.update(sample())
            run.gradient_step += result.num_gradient_steps
            run.last_metrics = result.metrics
        run.mid_step = False
        for callback in callbacks:
            callback.on_step(run)
