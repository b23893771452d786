"""Random numbers as data: drawn from an algorithm's own generator and passed to its loss in the batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rl_training.core.types import Batch


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


class RandomInputs:
    """The random numbers of an update, in the same tensors each time: a compiled step recognises its tensors."""

    def __init__(self, random_inputs: Mapping[str, RandomInput], device: torch.device) -> None:
        self._random_inputs = dict(random_inputs)
        self._arrays = {name: np.zeros(draw.shape, draw.dtype) for name, draw in random_inputs.items()}
        self._sources = {name: torch.from_numpy(array) for name, array in self._arrays.items()}
        self._batch = {name: source.to(device) for name, source in self._sources.items()}  # on the CPU: the same memory

    def fill(self, generator: np.random.Generator) -> Batch:
        """Draw new numbers, in the order in which the inputs were named."""
        for name, draw in self._random_inputs.items():
            draw.fill(generator, self._arrays[name])
        for name, tensor in self._batch.items():
            if tensor is not self._sources[name]:
                tensor.copy_(self._sources[name])
        return self._batch
