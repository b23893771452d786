"""The warning of a run that ends before its first update."""

import logging

from rl_training.learners.rollouts import num_rollouts
from rl_training.runtime.device_replay_loop import ROUNDS
from rl_training.runtime.setup import PreparedRun

log = logging.getLogger("rl_training")


def report_short_run(prepared: PreparedRun) -> None:
    """Warn that nothing is learned in this run, if `total_timesteps` is too small for an update."""
    config, setup = prepared.config, prepared.setup
    if config.spec.loop == "on_policy":
        learns = num_rollouts(setup) > 0
        rows = setup.hparams.num_steps * setup.num_envs
        why = f"less than one rollout of num_steps * num_envs = {rows:,} steps"
    else:
        steps_at_once = setup.num_envs * (ROUNDS if setup.device_loop else 1)  # a run ends with all of them
        end = -(-config.total_timesteps // steps_at_once) * steps_at_once
        learns = config.spec.updates_until(setup.hparams, end) > 0
        why = "too few for an update (see algo_kwargs.learning_starts)"
    if not learns:
        log.warning("total_timesteps is %s, %s: nothing is learned", f"{config.total_timesteps:,}", why)
