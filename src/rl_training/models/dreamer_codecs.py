"""Dreamer's encoders, from observations to embeddings, and decoders, from features to observations."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import observation_kind
from rl_training.models.dreamer_two_hot import symlog
from rl_training.models.encoders import DictInput, FlatFloat, ImageInput, build_encoder, image_shape
from rl_training.models.layers import NORM_EPS, normed_mlp

_MIN_SIDE = 4  # pixels; convolutions halve an image as long as no side becomes shorter than this
_CHANNELS = (2, 3, 4, 4)  # of the convolutions, in units of the depth; further convolutions use the last number


class Codec(Protocol):
    """The encoder and the decoder of one array."""

    embedding_size: int

    def target(self, obs: Tensor) -> Tensor:
        """Return what is encoded and predicted: (batch, *obs) -> (batch, ...)."""
        ...

    def encode(self, target: Tensor) -> Tensor:
        """Return embeddings, (batch, embedding_size)."""
        ...

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Return the loss of predicting the target from the features, summed over its numbers: (batch,)."""
        ...


class ChannelNorm(nn.Module):
    """RMS normalisation over the channels of each pixel: (batch, channels, height, width)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(1, keepdim=True) + NORM_EPS).rsqrt() * self.weight


class ImageCodec(nn.Module):
    """Encodes images as embeddings, and decodes features to images with values of about 0 to 1."""

    def __init__(self, space: gym.Space[Any], features: int, depth: int) -> None:
        """`depth`: the number of channels that `_CHANNELS` multiplies."""
        super().__init__()
        channels, *sides = image_shape(space)
        self.target = ImageInput(space)
        encoder: list[nn.Module] = []
        decoder: list[nn.Module] = []
        while min(sides) >= 2 * _MIN_SIDE:
            wider = depth * _CHANNELS[min(len(encoder) // 3, len(_CHANNELS) - 1)]
            encoder += [nn.Conv2d(channels, wider, 4, stride=2, padding=1), ChannelNorm(wider), nn.SiLU()]
            # Halving an odd side loses a pixel; the transposed convolution adds it again.
            back = nn.ConvTranspose2d(
                wider, channels, 4, stride=2, padding=1, output_padding=(sides[0] % 2, sides[1] % 2)
            )
            decoder = [back, *([ChannelNorm(channels), nn.SiLU()] if decoder else []), *decoder]
            channels, sides = wider, [side // 2 for side in sides]
        self.embedding_size = channels * math.prod(sides)
        self.encoder = nn.Sequential(*encoder, nn.Flatten())
        between = [ChannelNorm(channels), nn.SiLU()] if decoder else []
        self.decoder = nn.Sequential(
            nn.Linear(features, self.embedding_size), nn.Unflatten(1, (channels, *sides)), *between, *decoder
        )

    def encode(self, target: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(target - 0.5)
        return embedding

    def decode(self, features: Tensor) -> Tensor:
        image: Tensor = self.decoder(features) + 0.5
        return image

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        return _squared_error(self.decode(features), target)


class VectorCodec(nn.Module):
    """Encodes the symlog of vectors as embeddings, and decodes features to it."""

    def __init__(self, space: gym.Space[Any], features: int, units: int) -> None:
        super().__init__()
        size, hidden = math.prod(space.shape or ()), (units,) * 3
        self.embedding_size = units
        self.flat = FlatFloat()
        self.encoder = nn.Sequential(*normed_mlp(size, hidden, None))
        self.decoder = nn.Sequential(*normed_mlp(features, hidden, size))

    def target(self, obs: Tensor) -> Tensor:
        return symlog(self.flat(obs))

    def encode(self, target: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(target)
        return embedding

    def decode(self, features: Tensor) -> Tensor:
        numbers: Tensor = self.decoder(features)
        return numbers

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        return _squared_error(self.decode(features), target)


class ChoiceCodec(nn.Module):
    """Encodes choices, a Discrete or MultiDiscrete, as embeddings of one-hot vectors; predicts their probabilities."""

    def __init__(self, space: gym.Space[Any], features: int, units: int) -> None:
        super().__init__()
        self.target, size = build_encoder(space)
        self._sizes = np.ravel(getattr(space, "nvec", getattr(space, "n", 0))).tolist()
        self.embedding_size, hidden = units, (units,) * 3
        self.encoder = nn.Sequential(*normed_mlp(size, hidden, None))
        self.decoder = nn.Sequential(*normed_mlp(features, hidden, size))

    def encode(self, target: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(target)
        return embedding

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Compute the cross-entropies, summed over the choices: (batch,)."""
        logits = self.decoder(features).split(self._sizes, 1)
        return -(torch.cat([part.log_softmax(1) for part in logits], 1) * target).sum(1)


def _squared_error(decoded: Tensor, target: Tensor) -> Tensor:
    return (decoded - target).square().flatten(1).sum(1)


class ObservationCodec(nn.Module):
    """One encoder and one decoder for each part of a Dict observation, by its name; "obs" if there are no parts."""

    def __init__(self, space: gym.Space[Any], features: int, *, units: int, depth: int) -> None:
        """`units`: of the hidden layers for vectors. `depth`: see `ImageCodec`."""
        super().__init__()
        self._rows = DictInput(space, []) if isinstance(space, PackedSpace) else None
        leaves = {leaf.name: leaf.space for leaf in space.leaves} if isinstance(space, PackedSpace) else {"obs": space}
        self.names = list(leaves)
        self.parts = nn.ModuleList(_build_codec(leaf, features, units, depth) for leaf in leaves.values())
        self.embedding_size = sum(part.embedding_size for part in self._codecs)

    @property
    def _codecs(self) -> Iterable[Codec]:
        return cast(Iterable[Codec], self.parts)

    def targets(self, obs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return what is encoded and predicted of each part. `obs`: (batch, *obs), or the parts themselves."""
        if isinstance(obs, Tensor):
            obs = [obs] if self._rows is None else self._rows.parts(obs)
        return [codec.target(part) for codec, part in zip(self._codecs, obs, strict=True)]

    def encode(self, targets: Sequence[Tensor]) -> Tensor:
        """Return the embeddings of all parts in one row: (batch, embedding_size)."""
        return torch.cat([codec.encode(target) for codec, target in zip(self._codecs, targets, strict=True)], 1)

    def losses(self, features: Tensor, targets: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the loss of predicting each part from the features, summed over its numbers: (batch,) each."""
        losses = [codec.loss(features, target) for codec, target in zip(self._codecs, targets, strict=True)]
        return dict(zip(self.names, losses, strict=True))


def _build_codec(space: gym.Space[Any], features: int, units: int, depth: int) -> nn.Module:
    kind = observation_kind(space)
    if kind == "image":
        return ImageCodec(space, features, depth)
    return (ChoiceCodec if kind == "discrete" else VectorCodec)(space, features, units)
