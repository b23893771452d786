"""Dreamer's networks against plain float64 code: recurrent state, latents, starts of episodes, imagination."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiDiscrete
from torch import Tensor

from rl_training.core.spaces import pack_space
from rl_training.models.dreamer import WorldModel, build_actor, build_critic
from rl_training.models.dreamer_actions import Choices
from rl_training.models.dreamer_codecs import ImageCodec, ObservationCodec, VectorCodec
from rl_training.models.dreamer_latents import (
    cumulative_sum,
    draw_index,
    draw_latents,
    mixed_log_probs,
    mixed_probs,
    unit_vectors,
)
from rl_training.models.dreamer_rssm import BlockGRU, Sizes
from rl_training.models.layers import init_truncated

SIZES = Sizes(deter=8, blocks=2, latents=3, classes=4, hidden=6, depth=2, bins=5, unimix=0.01)
IMAGE = Box(0, 255, (8, 8, 1), np.uint8)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_world(space: gym.Space[Any] = IMAGE, seed: int = 0) -> WorldModel:
    torch.manual_seed(seed)
    return WorldModel(space, Choices([3], (), unimix=0.01), SIZES)


# --- Latents ---------------------------------------------------------------------------------------------------------


def test_a_share_of_every_distribution_is_uniform() -> None:
    # softmax of (log 3, 0) is (3/4, 1/4); with 0.2 of (1/2, 1/2): 0.8 * 0.75 + 0.1 = 0.7, 0.8 * 0.25 + 0.1 = 0.3.
    log_probs = mixed_log_probs(torch.tensor([math.log(3.0), 0.0]), 0.2)
    assert log_probs.exp().tolist() == pytest.approx([0.7, 0.3])
    certain = mixed_log_probs(torch.tensor([1e4, 0.0, 0.0, 0.0]), 0.01)
    assert certain.exp().tolist() == pytest.approx([0.9925, 0.0025, 0.0025, 0.0025])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16, 18])
def test_cumulative_sums_of_any_length(size: int) -> None:
    x = torch.rand(5, 2, size, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(cumulative_sum(x), x.cumsum(-1))


def test_nothing_that_an_update_draws_needs_a_kernel_that_is_not_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cumsum", None)  # on a GPU it raises in the deterministic mode
    draw_index(torch.tensor([0.5, 0.5]), torch.tensor(0.2))


def test_a_class_is_drawn_where_the_cumulated_probability_passes_the_number() -> None:
    probs = torch.tensor([0.2, 0.5, 0.3]).expand(6, 3)
    noise = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 0.9999999])
    assert draw_index(probs, noise).tolist() == [0, 0, 1, 1, 2, 2]


def test_classes_are_drawn_as_often_as_their_probabilities_say() -> None:
    probs = torch.tensor([0.2, 0.5, 0.3]).expand(20_000, 3)
    drawn = draw_index(probs, torch.rand(20_000, generator=generator()))
    assert (drawn.bincount() / 20_000).tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.015)


def test_latents_are_exact_unit_vectors_whose_gradient_is_that_of_the_probabilities() -> None:
    logits = torch.randn(2, 3, 4, generator=generator(), requires_grad=True)
    weight = torch.randn(2, 12, generator=generator(1))
    latents = draw_latents(mixed_probs(logits, 0.01), torch.rand(2, 3, generator=generator(2)))
    assert set(latents.flatten().tolist()) == {0.0, 1.0}
    assert latents.view(2, 3, 4).sum(-1).tolist() == [[1.0] * 3] * 2
    (ours,) = torch.autograd.grad((latents * weight).sum(), logits)
    probs = 0.99 * logits.softmax(-1) + 0.01 / 4
    (theirs,) = torch.autograd.grad((probs.flatten(1) * weight).sum(), logits)
    torch.testing.assert_close(ours, theirs)


def test_without_noise_the_likeliest_class_is_taken() -> None:
    probs = torch.tensor([[[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]]])
    assert draw_latents(probs, None).tolist() == [[0, 1, 0, 1, 0, 0]]


# --- The recurrent state ---------------------------------------------------------------------------------------------


def plain_gru(cell: BlockGRU, state: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The equations for one row, block by block, in float64."""
    weights = {name: value.detach().double().numpy() for name, value in cell.named_parameters()}
    blocks, width = cell.blocks, len(state) // cell.blocks
    hidden = []
    for block in range(blocks):
        seen = np.concatenate([state[block * width : (block + 1) * width], inputs])
        hidden.append(seen @ weights["hidden.weight"][block] + weights["hidden.bias"][block, 0])
    whole = np.concatenate(hidden)
    whole = whole / np.sqrt((whole**2).mean() + 1e-4) * weights["norm.weight"]
    whole = whole / (1.0 + np.exp(-whole))  # SiLU
    after = []
    for block in range(blocks):
        part = slice(block * width, (block + 1) * width)
        gates = whole[part] @ weights["gates.weight"][block] + weights["gates.bias"][block, 0]
        reset, candidate, update = np.split(gates, 3)
        reset, update = 1.0 / (1.0 + np.exp(-reset)), 1.0 / (1.0 + np.exp(1.0 - update))
        after.append(update * np.tanh(reset * candidate) + (1.0 - update) * state[part])
    return np.concatenate(after)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_the_recurrent_cell_follows_its_equations(blocks: int) -> None:
    torch.manual_seed(0)
    cell = BlockGRU(5, 8, blocks)
    init_truncated(cell)
    with torch.no_grad():
        for parameter in cell.parameters():  # biases and scales, too
            parameter.add_(0.3 * torch.randn_like(parameter))
    state, inputs = torch.randn(3, 8), torch.randn(3, 5)
    expected = [plain_gru(cell, *(x.double().numpy() for x in row)) for row in zip(state, inputs, strict=True)]
    np.testing.assert_allclose(cell(state, inputs).detach().numpy(), expected, atol=1e-5)


def sequence(batch: int = 2, length: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random_inputs = generator(5)
    obs = torch.randint(256, (batch, length, 8, 8, 1), generator=random_inputs, dtype=torch.uint8)
    actions = torch.randint(3, (batch, length), generator=random_inputs)
    is_first = torch.zeros(batch, length, dtype=torch.bool)
    return obs, actions, is_first, torch.rand(batch, length, SIZES.latents, generator=random_inputs)


@torch.no_grad()
def test_observing_a_sequence_equals_filtering_it_step_by_step() -> None:
    world = make_world()
    obs, actions, is_first, noise = sequence()
    is_first[:, 0] = True
    is_first[1, 3] = True
    seen = world.observe(obs, actions, is_first, noise)
    features = torch.zeros(2, SIZES.features)
    for t in range(5):
        goes_on = (~is_first[:, t, None]).float()
        features = world.filter(obs[:, t], features * goes_on, unit_vectors(actions[:, t], 3) * goes_on, noise[:, t])
        torch.testing.assert_close(seen.features[:, t], features)


@torch.no_grad()
def test_nothing_before_the_start_of_an_episode_affects_what_follows() -> None:
    world = make_world()
    obs, actions, is_first, noise = sequence()
    is_first[:, 3] = True
    first = world.observe(obs, actions, is_first, noise)
    changed = [values.clone() for values in (obs, actions, noise)]
    changed[0][:, :3] = 255 - obs[:, :3]
    changed[1][:, :4] = (actions[:, :4] + 1) % 3  # also the action that led to the first observation
    changed[2][:, :3] = 1.0 - noise[:, :3]
    second = world.observe(changed[0], changed[1], is_first, changed[2])
    assert torch.equal(first.features[:, 3:], second.features[:, 3:])
    assert not torch.equal(first.features[:, 2], second.features[:, 2])


@torch.no_grad()
def test_a_sequence_from_the_middle_of_an_episode_starts_without_the_action_before_it() -> None:
    world = make_world()
    obs, actions, is_first, noise = sequence()
    first = world.observe(obs, actions, is_first, noise)
    changed = actions.clone()
    changed[:, 0] = (actions[:, 0] + 1) % 3
    assert torch.equal(world.observe(obs, changed, is_first, noise).features, first.features)
    is_first[:, 0] = True
    assert torch.equal(world.observe(obs, actions, is_first, noise).features, first.features)


@torch.no_grad()
def test_the_prior_sees_the_past_and_the_action_but_not_the_observation() -> None:
    world = make_world()
    obs, actions, is_first, noise = sequence()
    first = world.observe(obs, actions, is_first, noise)
    other_obs, other_action = obs.clone(), actions.clone()
    other_obs[:, -1] = 255 - obs[:, -1]
    other_action[:, -1] = (actions[:, -1] + 1) % 3
    by_obs = world.observe(other_obs, actions, is_first, noise)
    assert torch.equal(first.prior, by_obs.prior)
    assert not torch.equal(first.posterior[:, -1], by_obs.posterior[:, -1])
    by_action = world.observe(obs, other_action, is_first, noise)
    assert not torch.equal(first.prior[:, -1], by_action.prior[:, -1])
    assert torch.equal(first.prior[:, :-1], by_action.prior[:, :-1])


@torch.no_grad()
def test_imagination_follows_the_prior_with_the_chosen_actions() -> None:
    world = make_world()
    start, noise = torch.rand(2, SIZES.features), torch.rand(3, 2, SIZES.latents, generator=generator())
    script = torch.tensor([[0, 1], [2, 2], [1, 0]])
    features, actions = world.imagine(start, lambda features, number: script[number], noise)
    assert torch.equal(features[0], start)
    assert torch.equal(actions, script)
    for number in range(3):
        before = features[number]
        inputs = [
            world.rssm.deter_in(before[:, :8]),
            world.rssm.stoch_in(before[:, 8:]),
            world.rssm.action_in(unit_vectors(script[number], 3)),
        ]
        deter = world.rssm.recurrent(before[:, :8], torch.cat(inputs, 1))
        probs = mixed_probs(world.rssm.prior(deter).view(2, 3, 4), 0.01)
        expected = torch.cat((deter, draw_latents(probs, noise[number])), 1)
        torch.testing.assert_close(features[number + 1], expected)


# --- Observations and heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(16, 16, 1), (64, 64, 3), (3, 64, 64), (84, 84, 4), (10, 10, 4), (21, 30, 3), (6, 6, 1), (96, 96)]
)
def test_decoded_images_of_any_size_have_their_shape(shape: tuple[int, ...]) -> None:
    codec = ImageCodec(Box(0, 255, shape, np.uint8), features=7, depth=2)
    target = codec.target(torch.randint(256, (2, *shape), dtype=torch.uint8))
    assert 0.0 <= target.min() <= target.max() <= 1.0
    assert codec.encode(target).shape == (2, codec.embedding_size)
    assert codec.decode(torch.zeros(2, 7)).shape == target.shape


def test_the_error_is_summed_over_pixels_that_span_0_to_1() -> None:
    world = make_world()
    with torch.no_grad():
        world.codec.get_parameter("parts.0.decoder.4.weight").zero_()  # the decoder then outputs 0.5 everywhere
    obs, actions, is_first, noise = sequence()
    obs[:] = 255
    seen = world.observe(obs, actions, is_first, noise)
    torch.testing.assert_close(seen.errors["obs"], torch.full((2, 5), 64 * 0.25))


def test_vectors_are_seen_and_predicted_as_their_symlog() -> None:
    codec = VectorCodec(Box(-np.inf, np.inf, (2, 2), np.float64), features=7, units=5)
    target = codec.target(torch.tensor([[[0.0, math.e - 1.0], [1.0 - math.e, 0.0]]]))
    torch.testing.assert_close(target, torch.tensor([[0.0, 1.0, -1.0, 0.0]]))
    assert codec.decode(torch.zeros(3, 7)).shape == (3, 4)


PARTS = pack_space(Dict({"image": IMAGE, "vector": Box(-9.0, 9.0, (2,), np.float32), "choice": MultiDiscrete([2, 3])}))


def silent(codec: ObservationCodec) -> ObservationCodec:
    """A codec whose decoders output 0: images of 0.5, vectors of 0, equal probabilities."""
    with torch.no_grad():
        for part in codec.parts:
            for values in list(part.get_submodule("decoder").children())[-1].parameters():
                values.zero_()
    return codec


def test_each_part_of_a_dict_is_predicted_by_a_decoder_of_its_own() -> None:
    codec = silent(ObservationCodec(PARTS, 7, units=5, depth=2))
    row = np.zeros((1, *PARTS.shape), np.uint8)
    parts = dict(zip(codec.names, PARTS.views(row), strict=True))
    parts["image"][:], parts["vector"][:], parts["choice"][:] = 255, (math.e - 1.0, 0.0), (1, 2)
    losses = codec.losses(torch.zeros(1, 7), codec.targets(torch.from_numpy(row)))
    expected = {"image": 64 * 0.25, "vector": 1.0, "choice": math.log(2.0) + math.log(3.0)}
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected)


def test_the_gradient_of_a_parts_loss_reaches_its_decoder_alone() -> None:
    codec = ObservationCodec(PARTS, 7, units=5, depth=2)
    losses = codec.losses(torch.ones(1, 7), codec.targets(torch.zeros(1, *PARTS.shape, dtype=torch.uint8)))
    losses["vector"].sum().backward()
    reached = {name.split(".")[1] for name, values in codec.named_parameters() if values.grad is not None}
    assert reached == {str(codec.names.index("vector"))}


@torch.no_grad()
def test_every_part_of_a_dict_is_seen_and_may_come_by_itself() -> None:
    codec = ObservationCodec(PARTS, 7, units=5, depth=2)
    rows = torch.from_numpy(np.stack([PARTS.sample() for _ in range(2)]))
    parts = [torch.from_numpy(part.copy()) for part in PARTS.views(rows.numpy())]
    embedding = codec.encode(codec.targets(rows))
    assert embedding.shape == (2, codec.embedding_size)
    assert torch.equal(codec.encode(codec.targets(parts)), embedding)
    for part in parts:
        before = part.clone()
        part[:] = 1 - part
        assert not torch.equal(codec.encode(codec.targets(parts)), embedding)
        part[:] = before


@torch.no_grad()
def test_rewards_and_values_start_at_exactly_0_and_action_logits_nearly_equal() -> None:
    torch.manual_seed(0)
    features = torch.randn(20, SIZES.features)
    assert torch.count_nonzero(make_world().predict_heads(features)[0]) == 0
    assert torch.count_nonzero(build_critic(SIZES)(features)) == 0
    logits = build_actor(3, SIZES)(features)
    assert 0.0 < logits.abs().max() < 0.05


def test_initial_weights_have_a_deviation_of_one_over_the_root_of_their_inputs() -> None:
    torch.manual_seed(0)
    layers: dict[int, torch.nn.Linear | torch.nn.Conv2d | torch.nn.ConvTranspose2d] = {
        400: torch.nn.Linear(400, 300),
        9 * 16: torch.nn.Conv2d(16, 300, 3),
        16 * 16 // 4: torch.nn.ConvTranspose2d(16, 300, 4, stride=2),
    }
    for inputs, layer in layers.items():
        init_truncated(layer)
        assert layer.weight.std().item() == pytest.approx(inputs**-0.5, rel=0.03)
        assert layer.weight.abs().max().item() <= 2.0 / 0.8796 * inputs**-0.5
        assert layer.bias is not None
        assert torch.count_nonzero(layer.bias) == 0
