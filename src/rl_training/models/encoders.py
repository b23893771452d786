"""Encoders from an observation of any supported kind to a feature vector: (batch, *obs) -> (batch, features).

A network is an encoder and a head. No head depends on the kind of observation.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import observation_field, observation_kind
from rl_training.errors import SpaceError
from rl_training.models.layers import Residual

_NATURE_MIN_SIZE = 36  # pixels per side; the Nature CNN has no output for smaller images


class Encoder(nn.Sequential):
    """The layers from an observation to its features."""


def build_encoder(space: gym.Space[Any], *, impala_width: int | None = None) -> tuple[Encoder, int]:
    """Return the encoder for an observation space and its number of features.

    `impala_width`: images pass through the residual network of IMPALA with this many times its channels.
    """
    kind = observation_kind(space)
    if isinstance(space, PackedSpace):
        parts = [build_encoder(leaf.space, impala_width=impala_width) for leaf in space.leaves]
        return Encoder(DictInput(space, [encoder for encoder, _ in parts])), sum(size for _, size in parts)
    if kind == "discrete":
        sizes, starts = (np.ravel(getattr(space, "nvec", getattr(space, "n", 0))), np.ravel(getattr(space, "start", 0)))
        return Encoder(OneHot(sizes.tolist(), starts.tolist())), int(sizes.sum())
    if kind == "image" and impala_width is not None:
        layers, features = _impala_layers(image_shape(space), impala_width)
        return Encoder(ImageInput(space), *layers, nn.Flatten()), features
    if kind == "image":
        layers = _conv_layers(image_shape(space))
        return Encoder(ImageInput(space), *layers, nn.Flatten()), _num_features(layers, image_shape(space))
    if kind == "vector":
        size = int(np.prod(space.shape))  # type: ignore[arg-type]
        is_flat_float = space.shape == (size,) and observation_field(space).dtype == np.float32
        return Encoder(nn.Identity() if is_flat_float else FlatFloat(byte_scale(space))), size
    raise SpaceError(f"there is no encoder for observations of {space}")


def image_shape(space: gym.Space[Any]) -> tuple[int, int, int]:
    """Return (channels, height, width) of what `ImageInput` returns.

    Channels are last, as Gymnasium renders, unless `channels_first`. A grid has one channel per category, and stacked
    colour frames, (frames, height, width, colours), have the channels of all frames.
    """
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.MultiDiscrete):
        channels, height, width = image_shape(spaces.Box(0, 1, shape))
        return channels * int(space.nvec.flat[0]), height, width
    if len(shape) == 4:
        channels, height, width = image_shape(spaces.Box(0, 1, shape[1:]))
        return channels * shape[0], height, width
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
    return [SmallConv(channels, 16, 3), nn.ReLU()]  # MinAtar's network (Young and Tian 2019)


class SmallConv(nn.Conv2d):
    """A convolution without stride and padding, on a GPU as one matrix product.

    The convolutions of a stack of networks are one with groups, whose kernels on a GPU are slow; a batched product is
    not.
    """

    def forward(self, x: Tensor) -> Tensor:
        return convolve_by_product(x, self.weight, self.bias) if x.is_cuda else super().forward(x)


def convolve_by_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a convolution without stride and padding as the product of all patches and the kernels.

    (batch, channels, height, width), (outputs, channels, rows, columns) -> (batch, outputs, height, width).
    """
    rows, columns = weight.shape[2:]
    patches = x.unfold(2, rows, 1).unfold(3, columns, 1).permute(0, 2, 3, 1, 4, 5)
    flat = F.linear(patches.flatten(3).flatten(0, 2), weight.flatten(1), bias)
    products: Tensor = flat.unflatten(0, patches.shape[:3])  # PyTorch does not state its type
    return products.permute(0, 3, 1, 2)


IMPALA_CHANNELS = (16, 32, 32)


class XavierConv(nn.Conv2d):
    """A 3x3 convolution that keeps the size of an image, with Xavier's first weights and zero biases."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def _impala_layers(shape: tuple[int, int, int], width: int) -> tuple[list[nn.Module], int]:
    """Return the layers of Espeholt et al. 2018 (IMPALA), figure 3, and their number of features.

    Each of three stages halves the image, and then adds two residual blocks of two convolutions to it.
    """
    channels, *sides = shape
    layers: list[nn.Module] = []
    for stage in IMPALA_CHANNELS:
        outputs = width * stage
        blocks = [
            Residual(nn.ReLU(), XavierConv(outputs, outputs), nn.ReLU(), XavierConv(outputs, outputs)) for _ in range(2)
        ]
        layers += [XavierConv(channels, outputs), nn.MaxPool2d(3, stride=2, padding=1), *blocks]
        channels, sides = outputs, [(side + 1) // 2 for side in sides]
    return [*layers, nn.ReLU()], channels * math.prod(sides)


def byte_scale(space: gym.Space[Any]) -> float:
    """Return the factor that scales the values of a uint8 Box to [0, 1] by its upper bound; 1 for other spaces."""
    is_bytes = isinstance(space, spaces.Box) and observation_field(space).dtype == np.uint8
    return 1.0 / max(1.0, float(space.high.max())) if is_bytes else 1.0  # type: ignore[attr-defined]


def _num_features(layers: Sequence[nn.Module], shape: tuple[int, int, int]) -> int:
    """Return the number of outputs of convolutions without padding for images of (channels, height, width)."""
    channels, *sides = shape
    for conv in (layer for layer in layers if isinstance(layer, nn.Conv2d)):
        channels = conv.out_channels
        sides = [(side - conv.kernel_size[0]) // conv.stride[0] + 1 for side in sides]
    return channels * math.prod(sides)


class ImageInput(nn.Module):
    """Scales integer pixels to [0, 1], and writes the categories of a grid as one-hot channels.

    Other images keep their values. Returns (batch, channels, height, width).
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self._shape = tuple(space.shape or ())
        self._scale = byte_scale(space)
        self._categories = int(space.nvec.flat[0]) if isinstance(space, spaces.MultiDiscrete) else 0

    def forward(self, obs: Tensor) -> Tensor:
        if self._categories:
            choices = torch.arange(self._categories, device=obs.device)
            one_hot = self._channels_first((obs[..., None] == choices).to(torch.float32))
            return one_hot.movedim(-1, 2).flatten(1, 2)
        return self._channels_first(obs.to(torch.float32) * self._scale)

    def _channels_first(self, pixels: Tensor) -> Tensor:
        """Return (batch, channels, height, width, ...) for pixels of shape (batch, *shape, ...)."""
        if len(self._shape) == 2:
            return pixels[:, None]
        if len(self._shape) == 4:  # (batch, frames, ...): the frames become channels
            frames = pixels if channels_first(self._shape[1:]) else pixels.permute(0, 1, 4, 2, 3)
            return frames.flatten(1, 2)
        return pixels if channels_first(self._shape) else pixels.movedim(3, 1)


class OneHot(nn.Module):
    """Choices as concatenated one-hot vectors: (batch,) or (batch, *entries) -> (batch, sum of sizes)."""

    def __init__(self, sizes: Sequence[int], starts: Sequence[int]) -> None:
        """`sizes`: the number of choices of each entry; `starts`: the first choice of each."""
        super().__init__()
        # Neighbours with the same choices are encoded together: (entries, first choice, number of choices).
        same = itertools.groupby(zip(starts, sizes, strict=True))
        self._groups = [(len(list(entries)), *choices) for choices, entries in same]

    def forward(self, obs: Tensor) -> Tensor:
        # Not `F.one_hot`, which reads the values and therefore cannot be compiled.
        parts = obs.reshape(obs.shape[0], -1).split([entries for entries, _, _ in self._groups], 1)
        encoded = []
        for part, (_, start, size) in zip(parts, self._groups, strict=True):
            choices = torch.arange(start, start + size, device=obs.device)
            encoded.append((part[..., None] == choices).to(torch.float32).flatten(1))
        return torch.cat(encoded, 1)


class FlatFloat(nn.Module):
    """Any array as a flat float vector. Bytes are scaled; if they were normalised, they are floats and keep values."""

    def __init__(self, byte_scale: float = 1.0) -> None:
        super().__init__()
        self._byte_scale = byte_scale

    def forward(self, obs: Tensor) -> Tensor:
        floats = obs.to(torch.float32).reshape(obs.shape[0], -1)  # also of single numbers, (batch,)
        return floats * self._byte_scale if obs.dtype == torch.uint8 else floats


class DictInput(nn.Module):
    """Splits rows of bytes into the parts of a Dict observation, encodes each part and concatenates the features.

    It also takes the parts themselves, which an exported policy has as separate inputs.
    """

    def __init__(self, space: PackedSpace, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self._leaves = space.leaves
        self._dtypes = [torch.from_numpy(np.empty(0, leaf.dtype)).dtype for leaf in space.leaves]
        self.encoders = nn.ModuleList(encoders)

    def forward(self, obs: Tensor | Sequence[Tensor]) -> Tensor:
        parts = self.parts(obs) if isinstance(obs, Tensor) else obs
        encoded = [encoder(part) for encoder, part in zip(self.encoders, parts, strict=True)]
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
