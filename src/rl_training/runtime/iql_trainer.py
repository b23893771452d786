"""Entry points of the offline algorithms."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.offline import BCHParams, IQLHParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_iql(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train IQL on a dataset."""
    if not isinstance(config.hparams, IQLHParams):
        raise ConfigError(f"train_iql trains IQL, but algo is {config.algo!r}")
    return train(config, options)


def train_bc(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Clone the behaviour in a dataset."""
    if not isinstance(config.hparams, BCHParams):
        raise ConfigError(f"train_bc trains BC, but algo is {config.algo!r}")
    return train(config, options)
