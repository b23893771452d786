"""Random numbers as data: drawn from an algorithm's own generator and passed to its loss in the batch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rl_training.acceleration.transfers import Block, mark_fixed, torch_dtype
from rl_training.core.types import Batch
from rl_training.models.layers import noise_factors

_ALIGNMENT = 64  # bytes: products round differently if their memory starts elsewhere


@dataclass(frozen=True, slots=True)
class RandomInput:
    """One array of random numbers: `fill` writes new ones into an array of this shape and dtype."""

    shape: tuple[int, ...]
    fill: Callable[[np.random.Generator, np.ndarray], object]
    dtype: type[np.generic] = np.float32


def uniform(generator: np.random.Generator, out: np.ndarray) -> None:
    """Write numbers in [0, 1)."""
    generator.random(dtype=np.float32, out=out)


def normal(generator: np.random.Generator, out: np.ndarray) -> None:
    """Write standard normal numbers."""
    generator.standard_normal(dtype=np.float32, out=out)


FILLS = {"uniform": uniform, "normal": normal}


def noise(generator: np.random.Generator, out: np.ndarray) -> None:
    """Write factors of the noise of noisy layers."""
    normal_numbers = torch.from_numpy(generator.standard_normal(out.shape, np.float32))
    out[:] = noise_factors(normal_numbers).numpy()


_ON_DEVICE: dict[Callable[..., object], Callable[..., object]] = {
    uniform: torch.Tensor.uniform_,
    normal: torch.Tensor.normal_,
}


class _Draws:
    """Random inputs of several members, (members, ...) each, in the same tensors each time."""

    def __init__(
        self, random_inputs: Mapping[str, RandomInput], members: int, device: torch.device, *, draws: bool | None = None
    ) -> None:
        draws = device.type == "cuda" if draws is None else draws
        of_device = {name: draw.fill for name, draw in random_inputs.items() if draws and draw.fill in _ON_DEVICE}
        self._generator = torch.Generator(device) if of_device else None
        self._drawn: list[tuple[Callable[..., object], Sequence[torch.Tensor]]] = []
        drawn: Batch = {}
        for fill in dict.fromkeys(of_device.values()):  # one call for all inputs of a kind
            shapes = {name: random_inputs[name].shape for name, other in of_device.items() if other is fill}
            sizes = [math.prod(shape) for shape in shapes.values()]
            block = torch.zeros((members, sum(sizes)), device=device)
            pieces = zip(shapes.items(), block.split(sizes, 1), strict=True)
            drawn |= {name: piece.unflatten(1, shape) for (name, shape), piece in pieces}
            self._drawn.append((_ON_DEVICE[fill], list(block)))
        self.filled = {name: draw for name, draw in random_inputs.items() if name not in of_device}
        of_all = {name: replace(draw, shape=(members, *draw.shape)) for name, draw in self.filled.items()}
        self._block, self._arrays, sent = _host_block(of_all, device)
        self.values = {name: (drawn | sent)[name] for name in random_inputs}

    def fill(self, generators: Sequence[np.random.Generator]) -> None:
        """Draw new numbers with the generator of each member, in the order in which the inputs were named."""
        for number, generator in enumerate(generators if self._generator is not None else ()):
            assert self._generator is not None
            self._generator.manual_seed(int(generator.integers(2**63)))
            for draw_into, parts in self._drawn:
                draw_into(parts[number], generator=self._generator)
        if self.filled:
            self._block.wait()
            for number, generator in enumerate(generators):
                for name, draw in self.filled.items():
                    draw.fill(generator, self._arrays[name][number])
            self._block.transfer()


class RandomInputs:
    """The random numbers of an update, in the same tensors each time: a compiled step recognises its tensors.

    A CUDA device draws uniform and normal numbers itself, from a seed that the host draws: numpy would take longer than
    a small update.
    """

    def __init__(
        self, random_inputs: Mapping[str, RandomInput], device: torch.device, *, draws: bool | None = None
    ) -> None:
        """`draws`: whether the device draws what it can; by default, if it is a CUDA device."""
        self._draws = _Draws(random_inputs, 1, device, draws=draws)
        self._batch = {name: values[0] for name, values in self._draws.values.items()}
        mark_fixed(self._batch)

    def fill(self, generator: np.random.Generator) -> Batch:
        """Draw new numbers, in the order in which the inputs were named."""
        self._draws.fill([generator])
        return self._batch


class MemberInputs:
    """The random numbers of all members of a stack, (rounds * members, ...), in the same tensors each time.

    Each member draws what it would draw alone. On a CUDA device that takes one call per member and kind of numbers,
    into one block; one copy per input then takes the numbers of all members to their places.
    """

    def __init__(
        self,
        random_inputs: Mapping[str, RandomInput],
        rounds: int,
        members: int,
        device: torch.device,
        *,
        draws: bool | None = None,
    ) -> None:
        """`random_inputs`: of one member for all rounds, (rounds * rows, ...). `draws`: as for `RandomInputs`."""
        self._draws = _Draws(random_inputs, members, device, draws=draws)
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._batch: Batch = {}
        for name, values in self._draws.values.items():
            drawn = values.unflatten(1, (rounds, -1)).transpose(0, 1)  # (rounds, members, rows, ...)
            if not drawn.is_contiguous():
                place = torch.zeros(drawn.shape, dtype=drawn.dtype, device=device)
                self._copies.append((place, drawn))
                drawn = place
            self._batch[name] = drawn.flatten(0, 1)
        mark_fixed(self._batch)

    def fill(self, generators: Sequence[np.random.Generator]) -> Batch:
        """Draw new numbers with the generator of each member."""
        self._draws.fill(generators)
        for place, drawn in self._copies:
            place.copy_(drawn)
        return self._batch


def _host_block(inputs: Mapping[str, RandomInput], device: torch.device) -> tuple[Block, dict[str, np.ndarray], Batch]:
    """Return memory for these inputs, and views on it: arrays on the host, tensors on the device."""
    places, end = {}, 0
    for name, draw in inputs.items():
        size = math.prod(draw.shape) * np.dtype(draw.dtype).itemsize
        places[name], end = slice(end, end + size), end + -(-size // _ALIGNMENT) * _ALIGNMENT
    block = Block(end, device)
    host, on_device = block.host.numpy().view(np.uint8), block.on_device.view(torch.uint8)
    arrays = {name: host[places[name]].view(draw.dtype).reshape(draw.shape) for name, draw in inputs.items()}
    dtypes = {name: torch_dtype(np.dtype(draw.dtype)) for name, draw in inputs.items()}
    return (
        block,
        arrays,
        {name: on_device[places[name]].view(dtypes[name]).view(draw.shape) for name, draw in inputs.items()},
    )
