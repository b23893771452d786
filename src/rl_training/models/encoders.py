"""Encoders from an observation of any supported kind to a feature vector: (batch, *obs) -> (batch, features).

A network is an encoder and a head. No head depends on the kind of observation.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import observation_field, observation_kind
from rl_training.errors import SpaceError

_NATURE_MIN_SIZE = 36  # pixels per side; the Nature CNN has no output for smaller images


def build_encoder(space: gym.Space[Any]) -> tuple[nn.Sequential, int]:
    """Return the encoder for an observation space and its number of features."""
    kind = observation_kind(space)
    if isinstance(space, PackedSpace):
        parts = [build_encoder(leaf.space) for leaf in space.leaves]
        return nn.Sequential(DictInput(space, [encoder for encoder, _ in parts])), sum(size for _, size in parts)
    if kind == "discrete":
        size = int(space.n)  # type: ignore[attr-defined]
        return nn.Sequential(OneHot(size, int(space.start))), size  # type: ignore[attr-defined]
    if kind == "image":
        encoder = nn.Sequential(ImageInput(space), *_conv_layers(image_shape(space)), nn.Flatten())
        with torch.no_grad():
            probe = torch.zeros((1, *space.shape), dtype=torch.float32)  # type: ignore[misc]
            return encoder, int(encoder(probe).shape[1])
    if kind == "vector":
        size = int(np.prod(space.shape))  # type: ignore[arg-type]
        is_flat_float = space.shape == (size,) and observation_field(space).dtype == np.float32
        return nn.Sequential(nn.Identity() if is_flat_float else FlatFloat()), size
    raise SpaceError(f"there is no encoder for observations of {space}")


def image_shape(space: gym.Space[Any]) -> tuple[int, int, int]:
    """Return (channels, height, width). Channels are last, as Gymnasium renders, unless `channels_first`."""
    shape = tuple(space.shape or ())
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if shape[1] < min(shape[0], shape[2]):
        raise SpaceError(
            "images must be (height, width, channels) or (channels, height, width), but the smallest side of this one "
            f"is in the middle: {space}"
        )
    if channels_first(shape):
        return shape[0], shape[1], shape[2]
    return shape[2], shape[0], shape[1]


def channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether the first axis is shorter than both others: (4, 84, 84), but not (84, 84, 4) or (8, 8, 20)."""
    return len(shape) == 3 and shape[0] < min(shape[1:])


def _conv_layers(shape: tuple[int, int, int]) -> list[nn.Module]:
    channels, height, width = shape
    if min(height, width) >= _NATURE_MIN_SIZE:  # Mnih et al. 2015
        return [
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
        ]
    if min(height, width) < 3:
        raise SpaceError(f"images must measure at least 3x3 pixels, got {height}x{width}")
    return [nn.Conv2d(channels, 16, 3), nn.ReLU()]  # MinAtar's network (Young and Tian 2019)


class ImageInput(nn.Module):
    """Scales uint8 pixels to [0, 1]; other images keep their values. Returns (batch, channels, height, width)."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self._shape = tuple(space.shape or ())
        self._scale = 1.0 / 255.0 if observation_field(space).dtype == np.uint8 else 1.0

    def forward(self, obs: Tensor) -> Tensor:
        pixels = obs.to(torch.float32) * self._scale
        if len(self._shape) == 2:
            return pixels[:, None]
        return pixels if channels_first(self._shape) else pixels.permute(0, 3, 1, 2)


class OneHot(nn.Module):
    """Discrete observations as one-hot vectors."""

    def __init__(self, size: int, start: int) -> None:
        super().__init__()
        self._size, self._start = size, start

    def forward(self, obs: Tensor) -> Tensor:
        # Not `F.one_hot`, which reads the values and therefore cannot be compiled.
        choices = torch.arange(self._start, self._start + self._size, device=obs.device)
        return (obs[:, None] == choices).to(torch.float32)


class FlatFloat(nn.Module):
    """Any array as a flat float vector."""

    def forward(self, obs: Tensor) -> Tensor:
        return obs.to(torch.float32).reshape(len(obs), -1)  # also of single numbers, (batch,)


class DictInput(nn.Module):
    """Splits rows of bytes into the parts of a Dict observation, encodes each part and concatenates the features."""

    def __init__(self, space: PackedSpace, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self._leaves = space.leaves
        self._dtypes = [torch.from_numpy(np.empty(0, leaf.dtype)).dtype for leaf in space.leaves]
        self.encoders = nn.ModuleList(encoders)

    def forward(self, obs: Tensor) -> Tensor:
        encoded = [encoder(part) for encoder, part in zip(self.encoders, self.parts(obs), strict=True)]
        return torch.cat(encoded, 1)

    def parts(self, obs: Tensor) -> list[Tensor]:
        """Return the parts of `obs`, (batch, bytes), as tensors (batch, *shape): views, or copies if not aligned."""
        parts = []
        for leaf, dtype in zip(self._leaves, self._dtypes, strict=True):
            part = obs[:, leaf.start : leaf.start + leaf.num_bytes]
            if any(place % dtype.itemsize for place in (part.storage_offset(), part.stride(0))) or part.stride(1) != 1:
                part = part.clone(memory_format=torch.contiguous_format)  # `contiguous` does not copy a single row
            parts.append(part.view(dtype).reshape(len(obs), *leaf.shape))
        return parts
