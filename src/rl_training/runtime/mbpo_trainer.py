"""Entry point of MBPO."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.mbpo import MBPOHParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_mbpo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train MBPO."""
    if not isinstance(config.hparams, MBPOHParams):
        raise ConfigError(f"train_mbpo trains MBPO, but algo is {config.algo!r}")
    return train(config, options)
