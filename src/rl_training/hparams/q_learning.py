"""The settings that the shared learner of the DQN family takes: those of every head."""

from typing import TypeAlias

from rl_training.hparams.c51_dqn import C51HParams
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.fqf import FQFHParams
from rl_training.hparams.iqn import IQNHParams
from rl_training.hparams.qr_dqn import QRDQNHParams

# To a type checker a named variant is its head.
QLearningHParams: TypeAlias = DQNHParams | C51HParams | QRDQNHParams | IQNHParams | FQFHParams
