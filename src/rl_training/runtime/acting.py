"""Acting: a network as a function of numpy observations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.runtime.acceleration import fast_forward

Forward = Callable[[np.ndarray], np.ndarray]


def act_function(module: nn.Module, device: torch.device, acceleration: str) -> Forward:
    """Give `module` as (rows, *obs) -> (rows, outputs) over numpy arrays, reading the live parameters.

    `eager` is plain PyTorch throughout; otherwise small networks on the CPU skip its overhead.
    """
    fast = fast_forward(module, device) if acceleration != "eager" else None
    if fast is not None:
        return fast

    def forward(obs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            output: np.ndarray[Any, Any] = module(torch.from_numpy(obs).to(device)).cpu().numpy()
        return output

    return forward
