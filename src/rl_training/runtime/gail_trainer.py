"""Entry point of GAIL."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.gail import GAILHParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_gail(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Imitate an expert's transitions in an environment."""
    if not isinstance(config.hparams, GAILHParams):
        raise ConfigError(f"train_gail trains GAIL, but algo is {config.algo!r}")
    return train(config, options)
