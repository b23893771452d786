"""Entry point of the DQN family."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.dqn import Q_LEARNING
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_dqn(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train DQN or one of its variants."""
    if not isinstance(config.hparams, Q_LEARNING):
        raise ConfigError(f"train_dqn trains the DQN family, but algo is {config.algo!r}")
    return train(config, options)
