"""Encoders: every kind of observation becomes one vector, pixels are scaled once and channels come first."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.core.spaces import pack_space
from rl_training.errors import SpaceError
from rl_training.models.encoders import (
    ImageInput,
    build_encoder,
    channels_first,
    convolve_by_product,
    image_shape,
)
from rl_training.models.layers import HeadStyle
from rl_training.models.mlp_q_network import MLPQNetwork


def batch_of(space: Any, rows: int = 3) -> torch.Tensor:
    space.seed(0)
    return torch.from_numpy(np.stack([np.asarray(space.sample()) for _ in range(rows)]))


def test_uint8_pixels_are_divided_by_255_once() -> None:
    space = Box(0, 255, (4, 4, 1), np.uint8)
    image = torch.full((2, 4, 4, 1), 255, dtype=torch.uint8)
    image[0, 0, 0, 0] = 51
    pixels = ImageInput(space)(image)
    assert pixels.dtype == torch.float32
    assert pixels[0, 0, 0, 0].item() == pytest.approx(0.2)
    assert pixels[1].unique().tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_images_keep_their_values(dtype: Any) -> None:
    space = Box(0.0, 1.0, (4, 4, 1), dtype)
    image = torch.rand(2, 4, 4, 1)  # float64 images are stored as float32
    assert torch.equal(ImageInput(space)(image)[:, 0], image[..., 0])


def test_integer_images_of_any_width_are_scaled_as_they_are_stored() -> None:
    space = Box(0, 255, (4, 4, 1), np.int64)
    assert ImageInput(space)(torch.full((1, 4, 4, 1), 255, dtype=torch.uint8)).unique().tolist() == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), (1, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((10, 10, 10), (10, 10, 10)),
        ((8, 8, 111), (111, 8, 8)),  # a board with a plane per kind of piece
    ],
)
def test_channels_are_found_in_the_first_and_in_the_last_axis(
    shape: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    assert image_shape(Box(0, 255, shape, np.uint8)) == expected


def test_channels_last_are_moved_to_the_front_and_channels_first_stay() -> None:
    image = torch.arange(2 * 5 * 6 * 3).view(2, 5, 6, 3).float()  # (batch, height, width, channels)
    moved = ImageInput(Box(0, 1, (5, 6, 3), np.float32))(image)
    assert moved.shape == (2, 3, 5, 6)
    assert moved[1, 2, 4, 3] == image[1, 4, 3, 2]
    first = image.permute(0, 3, 1, 2)
    assert channels_first((3, 5, 6))
    assert torch.equal(ImageInput(Box(0, 1, (3, 5, 6), np.float32))(first), first)


def test_discrete_observations_become_one_hot_vectors_counted_from_their_start() -> None:
    encoder, features = build_encoder(Discrete(4, start=5))
    assert features == 4
    assert encoder(torch.tensor([5, 8])).tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]


def test_the_encoder_of_discrete_observations_can_be_compiled() -> None:
    encoder, _ = build_encoder(Discrete(3))
    traced = make_fx(encoder)(torch.tensor([0, 0]))  # the operations must not depend on the values
    assert traced(torch.tensor([2, 1])).tolist() == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("space", "features"),
    [
        (Box(-1, 1, (3,), np.float32), 3),
        (Box(-1, 1, (), np.float32), 1),
        (Box(-1, 1, (2, 3), np.float32), 6),
        (Box(-9, 9, (4,), np.int32), 4),
        (spaces.MultiBinary(5), 5),
        (Discrete(7), 7),
        (Box(0, 255, (12, 12, 1), np.uint8), 16 * 10 * 10),  # one 3x3 convolution of 16 channels
        (Box(0, 1, (10, 10, 4), np.float32), 16 * 8 * 8),
        (Box(0, 255, (84, 84, 4), np.uint8), 64 * 7 * 7),  # the Nature network's 3136
        (Box(0, 255, (4, 84, 84), np.uint8), 64 * 7 * 7),
        (Box(0, 255, (36, 36), np.uint8), 64),
        (Box(0, 255, (35, 35), np.uint8), 16 * 33 * 33),
        (Box(0, 255, (3, 3), np.uint8), 16),
        (pack_space(spaces.Dict({"a": Box(0, 255, (3, 3), np.uint8), "b": Discrete(7), "c": Box(0, 1, ())})), 24),
    ],
    ids=str,
)
def test_what_comes_out_is_as_wide_as_promised_and_fits_a_head(space: Any, features: int) -> None:
    encoder, size = build_encoder(space)
    assert size == features
    obs = batch_of(space)
    encoded = encoder(obs)
    assert encoded.shape == (3, features)
    assert encoded.dtype == torch.float32
    assert MLPQNetwork(size, 2, (8,), encoder)(obs).shape == (3, 2)


def test_vectors_of_integers_keep_their_values() -> None:
    encoder, _ = build_encoder(Box(0, 255, (2, 2), np.int32))
    assert encoder(torch.tensor([[[1, 2], [3, 200]]], dtype=torch.int32)).tolist() == [[1.0, 2.0, 3.0, 200.0]]


def test_images_too_small_for_a_convolution_are_refused() -> None:
    with pytest.raises(SpaceError, match="at least 3x3 pixels, got 2x9"):
        build_encoder(Box(0, 255, (2, 9), np.uint8))


def test_other_spaces_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"no encoder for observations of Sequence\(Discrete\(2\)"):
        build_encoder(spaces.Sequence(Discrete(2)))


def test_integer_images_are_divided_by_their_bound() -> None:
    assert ImageInput(Box(0, 10, (1, 2), np.uint8))(torch.tensor([[[5, 10]]], dtype=torch.uint8)).tolist() == [
        [[[0.5, 1.0]]]
    ]


def test_bytes_are_divided_by_their_bound_unless_they_were_normalised() -> None:
    encoder, size = build_encoder(Box(0, 255, (2,), np.uint8))
    assert size == 2
    assert encoder(torch.tensor([[51, 255]], dtype=torch.uint8))[0].tolist() == pytest.approx([0.2, 1.0])
    assert encoder(torch.tensor([[-0.5, 2.0]])).tolist() == [[-0.5, 2.0]]


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["channels last", "channels first"])
def test_stacked_colour_frames_are_one_image_with_the_channels_of_all(axes: tuple[int, ...]) -> None:
    frames = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    obs = frames.transpose(axes)
    space = Box(0, 255, obs.shape, np.uint8)
    assert image_shape(space) == (6, 6, 5)
    image = ImageInput(space)(torch.from_numpy(obs.copy())[None]) * 255.0
    for frame, colour in itertools.product(range(2), range(3)):
        assert image[0, frame * 3 + colour].numpy() == pytest.approx(frames[frame, :, :, colour])


@pytest.mark.parametrize("shape", [(4, 5, 2), (2, 4, 5), (4, 5)], ids=str)
def test_a_grid_of_categories_has_one_channel_per_layer_and_category(shape: tuple[int, ...]) -> None:
    space = spaces.MultiDiscrete(np.full(shape, 3))
    layers, height, width = image_shape(Box(0, 1, shape))
    assert image_shape(space) == (layers * 3, height, width)
    obs = torch.from_numpy(np.random.default_rng(0).integers(3, size=(2, *shape), dtype=np.uint8))
    plain, one_hot = ImageInput(Box(0, 1, shape, np.float32))(obs), ImageInput(space)(obs)
    assert one_hot.shape == (2, layers * 3, height, width)
    for layer, category in itertools.product(range(layers), range(3)):
        assert torch.equal(one_hot[:, layer * 3 + category], (plain[:, layer] == category).float())
    assert build_encoder(space)[0](obs).shape == (2, build_encoder(space)[1])


def test_several_choices_become_one_hot_vectors_next_to_each_other() -> None:
    encoder, size = build_encoder(spaces.MultiDiscrete([2, 2, 3], start=[0, 0, 5]))
    assert size == 7
    assert encoder(torch.tensor([[1, 0, 7]])).tolist() == [[0, 1, 1, 0, 0, 0, 1]]


def test_a_q_network_is_linear_layers_with_relu_between() -> None:
    network = MLPQNetwork(4, 2, (120, 84))
    kinds = [type(layer) for layer in network]
    assert kinds == [nn.Identity, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(p.shape) for p in network.parameters()] == [(120, 4), (120,), (84, 120), (84,), (2, 84), (2,)]
    assert [type(layer) for layer in MLPQNetwork(4, 2, ())] == [nn.Identity, nn.Linear]


def test_layer_norm_is_between_each_hidden_layer_and_its_activation() -> None:
    layers = [type(layer) for layer in MLPQNetwork(4, 2, (8, 8), style=HeadStyle(layer_norm=True))]
    hidden = [nn.Linear, nn.LayerNorm, nn.ReLU]
    assert layers == [nn.Identity, *hidden, *hidden, nn.Linear]


def test_an_image_with_its_channels_in_the_middle_is_refused() -> None:
    with pytest.raises(
        SpaceError, match=r"\(height, width, channels\) or .* in the middle: Box\(0, 255, \(84, 4, 84\)"
    ):
        build_encoder(Box(0, 255, (84, 4, 84), np.uint8))


def test_a_product_of_patches_is_the_convolution_also_of_stacked_networks() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in ((3, 4, 6, 7), (5, 4, 3, 2), (5,))
    )

    def gradient(convolve: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        loss = lambda weight, bias: convolve(x, weight, bias).square().sum()  # noqa: E731
        return (convolve(x, weight, bias), *torch.func.grad(loss, argnums=(0, 1))(weight, bias))

    one = [gradient(nn.functional.conv2d, *member) for member in zip(x, weight, bias, strict=True)]
    stacked = torch.func.vmap(lambda *given: gradient(convolve_by_product, *given))(x, weight, bias)
    for found, expected in zip(stacked, zip(*one, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(list(expected)))
