"""SAC's networks."""

from typing import ClassVar

from rl_training.models.continuous import ContinuousActorCritic


class MLPSACModel(ContinuousActorCritic):
    """An actor that outputs the mean and the log standard deviation of each number of an action, and critics."""

    outputs_per_action: ClassVar[int] = 2
