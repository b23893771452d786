"""Named, independent random streams derived from one integer.

A stream is identified by a name and indices, never by the order in which streams are created. Evaluating more often or
adding an env leaves every other stream unchanged.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError, ConfigError

_MAX_SEEDS = 10_000  # in one list
_ENV, _EVAL = "env", "eval"  # reset seeds of training and of evaluation episodes


def parse_seeds(text: str) -> list[int]:
    """Read "0-4", "0,2,5" or a mix of both."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last if dash else first) + 1)[: _MAX_SEEDS + 1]
    except ValueError:
        seeds = []
    if not 0 < len(set(seeds)) == len(seeds) <= _MAX_SEEDS or min(seeds) < 0:
        raise ConfigError(f'seeds must be like "0-4" or "0,2,5", each once, at most {_MAX_SEEDS:,}, got {text!r}')
    return seeds


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of one run. Any name is one; those that were asked for are remembered."""

    seed: int
    names: set[str] = field(default_factory=lambda: {_ENV, _EVAL}, compare=False, repr=False)

    def seeds(self) -> dict[str, int]:
        """Return the seed of every stream that was asked for so far, and of the episodes, for the run's metadata."""
        return {name: self.integer(name) for name in sorted(self.names)}

    def integer(self, name: str, *indices: int) -> int:
        """Return a seed below 2**31, which every `env.reset` accepts, for the stream `name[indices]`."""
        return int(self._sequence(name, *indices).generate_state(1)[0] >> 1)

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self._sequence(name)))

    def episode_seed(self, env: int, episode: int) -> int:
        """Return the reset seed of one training episode: with the actions taken since, it restores the env exactly."""
        return self.integer(_ENV, env, episode)

    def eval_seeds(self, episodes: int) -> list[int]:
        """Return the reset seeds of the evaluation episodes: the same list at every evaluation of the run."""
        return [self.integer(_EVAL, k) for k in range(episodes)]

    def _sequence(self, name: str, *indices: int) -> np.random.SeedSequence:
        self.names.add(name)
        return np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()), *indices))


@dataclass(frozen=True, slots=True)
class RepeatableStreams(Streams):
    """Streams whose generators can be restarted, so that the same numbers are drawn again."""

    _generators: list[tuple[str, np.random.Generator]] = field(default_factory=list)

    def numpy(self, name: str) -> np.random.Generator:
        generator = Streams.numpy(self, name)
        self._generators.append((name, generator))
        return generator

    def restart(self, seed: int) -> None:
        """Set every generator that `numpy` returned to the start of its stream under this seed."""
        for name, generator in self._generators:
            set_generator_state(generator, generator_state(Streams(seed).numpy(name)))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of the generator as plain numbers and strings."""
    return dict(generator.bit_generator.state)


def set_generator_state(generator: np.random.Generator, state: Any) -> None:
    """Continue a stream; raise `CheckpointError` for what is not the state of such a generator."""
    try:
        numbers = state["state"]
        sizes = [(numbers["state"], 128), (numbers["inc"], 128), (state["has_uint32"], 1), (state["uinteger"], 32)]
        is_valid = state["bit_generator"] == "PCG64" and all(
            type(number) is int and 0 <= number < 2**bits for number, bits in sizes
        )
    except (TypeError, LookupError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"the state of a random generator is damaged: {str(state)[:200]}")
    generator.bit_generator.state = state
