"""Random shifts and intensities of images, drawn for each observation of a batch: a network must not depend on them.

    x := crop of the image padded by 4 pixels of its edge, at a random place;   x := x * (1 + 0.05 * clip(e, -2, 2))

All frames of a stacked observation move alike. Kostrikov et al. 2021, Image augmentation is all you need; the intensity
is that of Schwarzer et al. 2021, Data-efficient reinforcement learning with self-predictive representations.
"""

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from rl_training.core.types import Batch
from rl_training.learners.random_inputs import RandomInput, normal, uniform
from rl_training.models.encoders import channels_first

PADDING = 4  # pixels
INTENSITY = 0.05
SEEN = ("obs", "next_obs")


class Augmentation:
    """Augments the observations of a batch; the random numbers come with it."""

    def __init__(self, space: gym.Space[Any], *, intensity: bool, future_steps: int = 0) -> None:
        """`intensity`: whether images also get brighter or darker. `future_steps`: images of `future_obs` in a row."""
        shape = tuple(space.shape or ())
        # (..., height, width), or (..., height, width, channels)
        self._sides = (-2, -1) if len(shape) == 2 or channels_first(shape[-3:]) else (-3, -2)
        self._intensity, self._future_steps = intensity, future_steps

    def random_inputs(self, rows: int) -> dict[str, RandomInput]:
        """Name the random numbers of an update: two places and an intensity of each image."""
        images = rows * (len(SEEN) + self._future_steps)
        shift = {"shift": RandomInput((2, images), uniform)}
        return shift | ({"intensity": RandomInput((images,), normal)} if self._intensity else {})

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with augmented observations; pure."""
        seen = {name: batch[name] for name in SEEN}
        if self._future_steps:
            seen["future_obs"] = batch["future_obs"].flatten(0, 1)
        start = 0
        for name, images in seen.items():
            own = slice(start, start := start + len(images))
            seen[name] = shifted(images, batch["shift"][:, own], self._sides)
            if self._intensity:
                factors = 1.0 + INTENSITY * batch["intensity"][own].clamp(-2.0, 2.0)
                seen[name] = seen[name].float() * factors.reshape(-1, *(1,) * (images.ndim - 1))
        if self._future_steps:
            seen["future_obs"] = seen["future_obs"].unflatten(0, (-1, self._future_steps))
        return {**batch, **seen}


def shifted(images: Tensor, places: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return images moved by up to `PADDING` pixels in each direction; their edges are repeated: (batch, ...) -> same.

    `places`: (2, batch) in [0, 1), one number per direction. `sides`: the axes of height and width.
    """
    moved = images.movedim(sides, (-2, -1))
    flat = moved.reshape(moved.shape[0], -1, *moved.shape[-2:])  # (batch, layers, height, width)
    offsets = (places * (2 * PADDING + 1)).long() - PADDING
    rows, columns = (
        (torch.arange(size, device=images.device) + offset[:, None]).clamp(0, size - 1)
        for size, offset in zip(flat.shape[-2:], offsets, strict=True)
    )
    batch, layers = (torch.arange(size, device=images.device) for size in flat.shape[:2])
    taken = flat[batch[:, None, None, None], layers[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]
    # A copy, because the compiler and the eager update give an image of one channel different strides after `movedim`.
    return taken.reshape(moved.shape).movedim((-2, -1), sides).clone(memory_format=torch.contiguous_format)
