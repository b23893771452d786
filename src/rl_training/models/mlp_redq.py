"""REDQ's networks."""

from typing import Any, ClassVar

import torch
from torch import nn

from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.layers import StackedLinear


class MLPREDQModel(ContinuousActorCritic):
    """SAC's networks with any number of critics; Xavier-uniform weights and zero biases, as in the authors' code.

    Residual networks keep SimBa's weights.
    """

    outputs_per_action: ClassVar[int] = 2

    @torch.no_grad()
    def __init__(self, *args: Any, residual: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, residual=residual, **kwargs)
        if residual:
            return
        for layer in self.modules():
            if isinstance(layer, nn.Linear | StackedLinear):
                for weight in layer.weight if layer.weight.ndim == 3 else [layer.weight]:
                    nn.init.xavier_uniform_(weight)
                nn.init.zeros_(layer.bias)
