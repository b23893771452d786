"""Entry point of the off-policy actor-critics."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.actor_critic import REDQHParams, SACHParams, TD3HParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_sac(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train SAC, TD3 or REDQ."""
    if not isinstance(config.hparams, SACHParams | TD3HParams | REDQHParams):
        raise ConfigError(f"train_sac trains SAC, TD3 and REDQ, but algo is {config.algo!r}")
    return train(config, options)
