"""Dreamer's encoders, from observations to embeddings, and decoders, from features to observations."""

import math
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rl_training.models.dreamer_two_hot import symlog
from rl_training.models.encoders import FlatFloat, ImageInput, image_shape
from rl_training.models.layers import NORM_EPS, normed_mlp

_MIN_SIDE = 4  # pixels; convolutions halve an image as long as no side becomes shorter than this
_CHANNELS = (2, 3, 4, 4)  # of the convolutions, in units of the depth; further convolutions use the last number


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
