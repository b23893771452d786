"""All random numbers that runs draw, by seed and stream."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from rl_training.core.seeding import Streams


class RecordedGenerator(np.random.Generator):
    """Notes every number that it returns or writes."""

    def __init__(self, bit_generator: np.random.BitGenerator) -> None:
        super().__init__(bit_generator)
        self.drawn: list[np.ndarray] = []


def _noting(method: str) -> Any:
    def draw(self: RecordedGenerator, *args: Any, **kwargs: Any) -> Any:
        values = getattr(super(RecordedGenerator, self), method)(*args, **kwargs)
        self.drawn.append(np.array(values).ravel())
        return values

    return draw


METHODS = ("choice", "integers", "permutation", "permuted", "random", "standard_exponential", "standard_normal")
for each in (*METHODS, "uniform"):
    setattr(RecordedGenerator, each, _noting(each))


class RecordedStreams:
    """What the streams of each seed were asked for and what they returned, since the last `take`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._generators: dict[int, list[tuple[str, RecordedGenerator]]] = defaultdict(list)
        self._integers: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
        real = Streams.integer

        def numpy(streams: Streams, name: str) -> np.random.Generator:
            generator = RecordedGenerator(np.random.PCG64(streams._sequence(name)))
            self._generators[streams.seed].append((name, generator))
            return generator

        def integer(streams: Streams, name: str, *indices: int) -> int:
            value = real(streams, name, *indices)
            if name != "replay_check":  # of the environments, once for all members
                self._integers[streams.seed].add((name, *indices, value))
            return value

        monkeypatch.setattr(Streams, "numpy", numpy)
        monkeypatch.setattr(Streams, "integer", integer)

    def take(self, seed: int) -> tuple[dict[str, list[Any]], list[tuple[Any, ...]]]:
        """Return the numbers of each stream of a seed, and the seeds derived from it; forget them."""
        drawn: dict[str, list[Any]] = defaultdict(list)
        for name, generator in self._generators.pop(seed, []):
            drawn[name] += np.concatenate(generator.drawn).tolist() if generator.drawn else []
        return {name: numbers for name, numbers in drawn.items() if numbers}, sorted(self._integers.pop(seed, set()))
