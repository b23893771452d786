"""Entry point of PPO."""

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.ppo import PPOHParams
from rl_training.runtime.trainer import RunOptions, TrainResult, train


def train_ppo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
    """Train PPO."""
    if not isinstance(config.hparams, PPOHParams):
        raise ConfigError(f"train_ppo trains PPO, but algo is {config.algo!r}")
    return train(config, options)
