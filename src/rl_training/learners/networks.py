"""Networks of a run: the user's own, tried before they learn anything wrong, or new ones from the run's seed."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_field

N = TypeVar("N")


def build_network(
    setup: Setup[Any], build: Callable[[], nn.Module], check: Callable[[nn.Module], None] | None = None
) -> nn.Module:
    """Return the user's network, or the one that `build` returns, on the run's device.

    `check` raises for a network of the user that does not fit.
    """
    if setup.network is None:
        return build_seeded(setup.streams.integer("init"), build).to(setup.device)
    network = setup.network.to(setup.device)
    if check is not None:
        check(network)
    return network


def build_seeded(seed: int, build: Callable[[], N]) -> N:
    """Return what `build` returns; the seed determines the first weights, and PyTorch's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def zero_obs(setup: Setup[Any], dtype: type[np.generic] | None = None) -> Tensor:
    """Return two observations to try a network with, in the stored dtype unless another is named."""
    field = observation_field(setup.spaces.observation)
    return torch.from_numpy(np.zeros((2, *field.shape), dtype or field.dtype)).to(setup.device)


def check_output(network: nn.Module, name: str, inputs: tuple[Tensor, ...], expected: tuple[int, ...]) -> None:
    """Raise ValueError for a network whose output has another shape."""
    with torch.no_grad():
        found = tuple(network(*inputs).shape)
    if found != expected:
        raise ValueError(f"the network's {name} must give shape {expected} for 2 rows, but gave {found}")
