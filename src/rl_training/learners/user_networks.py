"""Trying networks of the user's own before they learn anything wrong."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_field


def zero_obs(setup: Setup[Any], dtype: type[np.generic] | None = None) -> Tensor:
    """Give two observations with which to try a network, as they are stored or of another dtype."""
    field = observation_field(setup.spaces.observation)
    return torch.from_numpy(np.zeros((2, *field.shape), dtype or field.dtype)).to(setup.device)


def check_output(network: nn.Module, name: str, inputs: tuple[Tensor, ...], wanted: tuple[int, ...]) -> None:
    """Refuse a network whose outputs have another shape."""
    with torch.no_grad():
        found = tuple(network(*inputs).shape)
    if found != wanted:
        raise ValueError(f"the network's {name} must give shape {wanted} for 2 rows, but gave {found}")
