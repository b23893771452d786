"""TD3's networks."""

from typing import ClassVar

from rl_training.models.continuous import ContinuousActorCritic


class MLPTD3Model(ContinuousActorCritic):
    """An actor that outputs each number of an action before squashing, and critics."""

    outputs_per_action: ClassVar[int] = 1
