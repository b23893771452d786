"""Entry point of Dreamer."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.dreamer import DreamerHParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_dreamer(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train Dreamer."""
    if not isinstance(config.hparams, DreamerHParams):
        raise ConfigError(f"train_dreamer trains Dreamer, but algo is {config.algo!r}")
    return train(config, options)
