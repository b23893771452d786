"""Entry point of MOPO."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.mbpo import MOPOHParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_mopo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train MOPO on a dataset."""
    if not isinstance(config.hparams, MOPOHParams):
        raise ConfigError(f"train_mopo trains MOPO, but algo is {config.algo!r}")
    return train(config, options)
