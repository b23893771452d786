"""Random numbers that are functions of counters: Philox4x32-10 in tensor operations.

Nothing is drawn from a generator, so there is no state to save and no order of calls. A number depends only on who asks
for it: the seed, the environment, the episode, the step and the lane. It is the same eagerly, compiled, captured in a
CUDA graph, on any device, alone or in a batch. Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 2**32 - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORDS = 4  # of one counter
LEARNING_LANE = 2**15  # the first of those that acting and learning use; environments use lower ones

_BLOCK_BITS = 16  # of the last counter word: up to 2**18 numbers per lane


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return four words for a counter of four words and a key of two. All int64 tensors of values below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(_ROUNDS):
        if number:
            k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
        # The product of two words wraps to a signed number of 64 bits; its two halves are right all the same. Only
        # factors must be words: what is above them elsewhere is cut off before the next product.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((second >> 32) ^ c1 ^ k0) & _MASK, second, ((first >> 32) ^ c3 ^ k1) & _MASK, first
    return c0, c1 & _MASK, c2, c3 & _MASK


@dataclass(frozen=True, slots=True)
class Keys:
    """Who asks for random numbers, one per row: (rows,) int64 tensors.

    `seed`: up to 64 bits; `env`, `episode`, `step`: below 2**32. A lane is a constant of the code that asks, so that
    two uses in one step get different numbers.
    """

    seed: Tensor
    env: Tensor
    episode: Tensor
    step: Tensor

    def words(self, lane: int, count: int) -> Tensor:
        """Return (rows, count) int64 values below 2**32."""
        if count > _WORDS << _BLOCK_BITS:
            raise ValueError(f"a lane has {_WORDS << _BLOCK_BITS:,} numbers, asked for {count:,}")
        blocks = torch.arange(-(-count // _WORDS), device=self.step.device)
        # Not a sum: compiled for a GPU, it would be part of the index of an element, which has 32 bits.
        last = torch.full_like(self.step, lane << _BLOCK_BITS)[:, None] | blocks
        env, episode, step, seed = (one[:, None] for one in (self.env, self.episode, self.step, self.seed))
        words = philox((env, episode, step, last), (seed & _MASK, (seed >> 32) & _MASK))
        return torch.stack(words, dim=2).flatten(1)[:, :count]

    def uniform(self, lane: int, count: int) -> Tensor:
        """Return (rows, count) float32 values in [0, 1): multiples of 2**-24."""
        return (self.words(lane, count) >> 8).float() * 2.0**-24

    def normal(self, lane: int, count: int) -> Tensor:
        """Return (rows, count) standard normal float32 values (Box-Muller); devices differ in their last digit."""
        uniform = self.uniform(lane, 2 * count)
        radius = (-2.0 * (1.0 - uniform[:, :count]).log()).sqrt()
        return radius * (2.0 * math.pi * uniform[:, count:]).cos()

    def below(self, lane: int, n: int) -> Tensor:
        """Return (rows,) int64 values from 0 to n - 1."""
        return (self.words(lane, 1)[:, 0] * n) >> 32
