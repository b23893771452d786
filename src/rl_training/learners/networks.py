"""Networks of a run: the user's own, tried before they learn anything wrong, or new ones from the run's seed."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from rl_training.core.memory_limits import check_memory
from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_field

N = TypeVar("N", bound=nn.Module | Mapping[str, nn.Module])

_COPIES = 5  # of the weights, at least: their values before and after an update, their gradient, and Adam's moments
_COUNTABLE = 2**63  # bytes; PyTorch counts no more


def build_network(
    setup: Setup[Any], build: Callable[[], nn.Module], check: Callable[[nn.Module], None] | None = None
) -> nn.Module:
    """Return the user's network, or the one that `build` returns, on the run's device.

    `check` raises for a network of the user that does not fit, by `check_output` and `submodules`.
    """
    if setup.network is None:
        return build_seeded(setup.streams.integer("init"), build, setup.device).to(setup.device)
    if isinstance(setup.network, type):
        name = setup.network.__name__
        raise TypeError(f"network must be an instance, got the class {name}: pass network={name}(...)")
    if not isinstance(setup.network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(setup.network).__name__}")
    network = setup.network.to(setup.device)
    if check is not None:
        check(network)
    return network


def build_seeded(seed: int, build: Callable[[], N], device: torch.device) -> N:
    """Return the networks that `build` returns, on the CPU, if they can be trained in the memory of `device`.

    The seed determines the first weights, and PyTorch's own generator is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        _check_size(build, device)
        torch.manual_seed(seed)
        return build()


def _check_size(build: Callable[[], nn.Module | Mapping[str, nn.Module]], device: torch.device) -> None:
    """Raise `ConfigError` for networks that do not fit; they are built on the meta device, which allocates nothing."""
    try:
        with torch.device("meta"):
            built = build()
    except Exception as error:
        if not any(word in str(error).lower() for word in ("overflow", "bad_alloc")):
            return  # code that needs values; a mistake in it appears when the networks are built
        size = _COUNTABLE  # of a single weight matrix
    else:
        networks = [built] if isinstance(built, nn.Module) else built.values()
        size = sum(tensor.nbytes for network in networks for tensor in network.state_dict().values())
    what, setting = "training the networks", "the sizes of the networks in algo_kwargs, such as hidden_sizes"
    if device.type == "cuda":
        check_memory(_COPIES * size, what, setting, available=torch.cuda.mem_get_info(device)[0])
        check_memory(size, "building the networks", setting)
    else:
        check_memory(_COPIES * size, what, setting)


# --- Trying a network of the user ------------------------------------------------------------------------------------


def trial_obs(setup: Setup[Any], dtype: type[np.generic] | None = None) -> Tensor:
    """Return two observations to try a network with, in the stored dtype unless another is named."""
    space, dtype = setup.spaces.observation, dtype or observation_field(setup.spaces.observation).dtype.type
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        # The part of the Box nearest to zero: declared bounds may be so large that any network overflows.
        low = np.maximum(space.low, np.minimum(space.high, 0.0) - 1.0)
        high = np.minimum(space.high, np.maximum(space.low, 0.0) + 1.0)
        rows = np.random.default_rng(0).uniform(low, high, (2, *space.shape))
    else:
        space = copy.deepcopy(space)  # the generator of the user's space stays as it is
        space.seed(0)
        rows = np.stack([space.sample(), space.sample()])
    return torch.from_numpy(rows.astype(dtype)).to(setup.device)


def submodules(network: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return submodules of a network; raise TypeError if one is missing."""
    parts = [getattr(network, name, None) for name in names]
    missing = [name for name, part in zip(names, parts, strict=True) if not isinstance(part, nn.Module)]
    if missing:
        raise TypeError(
            f"the network must have the modules {' and '.join(f'`{name}`' for name in names)}, but "
            f"{type(network).__name__} lacks {' and '.join(missing)}"
        )
    return [part for part in parts if part is not None]


def check_output(
    network: Callable[..., Any], inputs: Sequence[Tensor], expected: Mapping[str, int], part: str = ""
) -> None:
    """Raise for a network that does not return finite float32 numbers of the expected shape.

    `inputs`: two observations, and what else it is called with. `expected`: the size of each dimension, by what it
    counts. `part`: the name of a submodule, for the message.
    """
    whose = f"the network's {part}" if part else "the network"
    found = _try(network, inputs, whose)
    if not isinstance(found, Tensor) or found.dtype != torch.float32:
        kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"{whose} must return a float32 tensor, but returned {kind}")
    shape = tuple(expected.values())
    if found.shape != shape:
        raise ValueError(
            f"{whose} must return ({', '.join(expected)}), shape {shape} for 2 observations, but returned shape "
            f"{tuple(found.shape)}"
        )
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{whose} returned NaN or infinity for finite observations")


def _try(network: Callable[..., Any], inputs: Sequence[Tensor], whose: str) -> Any:
    """Call a network; raise ValueError with the inputs' shapes if it fails."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return network(*inputs)
    except Exception as error:  # code of the user: it may raise anything
        shapes = " and ".join(f"{tuple(values.shape)} {values.dtype}" for values in inputs)
        raise ValueError(
            f"{whose} fails on 2 observations (inputs: {shapes}): {type(error).__name__}: {error}"
        ) from error
