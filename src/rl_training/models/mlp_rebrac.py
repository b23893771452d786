"""ReBRAC's networks."""

from typing import Any, ClassVar

import torch
from torch import nn

from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.layers import StackedLinear

_FIRST_BIAS = 0.1
_LAST_RANGE = {"actor": 1e-3, "critics": 3e-3}  # of the last layers' first weights and biases, ±


class MLPReBRACModel(ContinuousActorCritic):
    """TD3's networks, with layer normalization after the activation and the first weights of the authors' code.

    Residual networks keep SimBa's weights.
    """

    outputs_per_action: ClassVar[int] = 1
    norm_after_activation: ClassVar[bool] = True

    @torch.no_grad()
    def __init__(self, *args: Any, residual: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, residual=residual, **kwargs)
        if residual:
            return
        for name, limit in _LAST_RANGE.items():
            layers = [part for part in getattr(self, name).modules() if isinstance(part, nn.Linear | StackedLinear)]
            for layer in layers[:-1]:
                nn.init.constant_(layer.bias, _FIRST_BIAS)
            for values in (layers[-1].weight, layers[-1].bias):
                nn.init.uniform_(values, -limit, limit)
