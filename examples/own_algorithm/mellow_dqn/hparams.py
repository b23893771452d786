"""The settings: those of DQN and one more. Nothing here imports torch."""

from pydantic import Field

from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.fields import Positive


class MellowDQNHParams(DQNHParams):
    """Settings of DQN with a soft maximum."""

    omega: Positive = Field(10.0, description="how close the soft maximum is to the hard one")
