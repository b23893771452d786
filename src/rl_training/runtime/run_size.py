"""Estimate the memory of batches, environments and evaluations before a run starts, and reject what cannot fit.

Buffers and networks check their own size (data/, learners/networks.py). All figures are lower bounds: a run that is
rejected could not have worked.
"""

import math

from rl_training.core.counted import counted
from rl_training.core.memory_limits import check_memory
from rl_training.core.spaces import Spaces, observation_field, transition_fields
from rl_training.experiment.config import TrainConfig

ENV_BYTES = 10 * 2**10  # of a small environment in this process: CartPole has more
WORKER_BYTES = 4 * 2**20  # of a worker process, which shares most of its memory with its parent
SEED_BYTES = 32  # of a seed in a list

# Settings that multiply the rows of a batch: each row has at least one float32 for each of them.
PER_ROW = {
    "batch_size": ("sequence_length", "imagination_horizon", "num_quantiles", "num_tau_samples"),
    "discriminator_batch_size": ("discriminator_updates",),
}


def check_run_size(config: TrainConfig, spaces: Spaces) -> None:
    """Raise `ConfigError` if environments, batches or the seeds of an evaluation cannot fit in memory."""
    if config.spec.loop != "offline":
        # The collector holds the observations before and after a step.
        obs_bytes = 2 * observation_field(spaces.observation).num_bytes
        per_env = obs_bytes + (WORKER_BYTES if config.execution_backend == "local_async" else ENV_BYTES)
        check_memory(config.num_envs * per_env, f"a group of {counted(config.num_envs, 'environment')}", "num_envs")
    seeds = config.eval_episodes * SEED_BYTES
    check_memory(seeds, f"an evaluation of {counted(config.eval_episodes, 'episode')}", "eval_episodes")
    workers = min(config.eval_envs, config.eval_episodes) * WORKER_BYTES if config.eval_envs > 1 else 0
    check_memory(workers, f"an evaluation in {config.eval_envs:,} environments", "eval_envs")
    row_bytes = sum(field.num_bytes for field in transition_fields(spaces).values())
    values = config.hparams.model_dump()
    for name, rows in values.items():
        if name.endswith("batch_size"):
            factors = {factor: values[factor] for factor in PER_ROW.get(name, ()) if factor in values}
            what = f"a batch of {' x '.join(f'{count:,}' for count in (rows, *factors.values()))} rows"
            settings = " or ".join(f"algo_kwargs.{setting}" for setting in (name, *factors))
            check_memory(rows * (row_bytes + 4 * math.prod(factors.values())), what, settings)
