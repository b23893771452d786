"""The layers of the networks: noisy weights, dueling streams, cosine embeddings, ensembles."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.models.layers import (
    CosineEmbedding,
    Dueling,
    Expectation,
    HeadStyle,
    MeanOfLast,
    NoisyLayers,
    NoisyLinear,
    StackedLayerNorm,
    StackedLinear,
    action_layers,
    mlp,
    noise_factors,
)
from rl_training.models.mlp_c51_q_network import MLPC51QNetwork
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- Noisy layers ----------------------------------------------------------------------------------------------------


def noisy_layer(inputs: int = 4, outputs: int = 3, *, sigma: float = 0.5) -> NoisyLinear:
    """A layer whose parameters are all different, in float64."""
    torch.manual_seed(0)
    layer = NoisyLinear(inputs, outputs, sigma=sigma).double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data += 0.1 * randn(*parameter.shape, seed=seed).double()
    return layer


def explicit(layer: NoisyLinear, x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """One row through weights mu + sigma * f_out f_in^T and bias mu + sigma * f_out, entry by entry."""
    weight, bias, weight_sigma, bias_sigma = (parameter.detach().numpy() for parameter in layer.parameters())
    f_in, f_out = noise[: layer.in_features], noise[layer.in_features :]
    output = np.zeros(layer.out_features)
    for j in range(layer.out_features):
        output[j] = bias[j] + bias_sigma[j] * f_out[j]
        for i in range(layer.in_features):
            output[j] += (weight[j, i] + weight_sigma[j, i] * f_out[j] * f_in[i]) * x[i]
    return output


def test_noise_shared_by_all_rows_equals_explicit_weights() -> None:
    layer, x, noise = noisy_layer(), randn(5, 4, seed=1).double(), randn(7, seed=2).double()
    layer.noise = noise
    expected = [explicit(layer, row, noise.numpy()) for row in x.numpy()]
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-12)
    several = layer(x[:, None].expand(-1, 2, -1))  # (rows, parts, inputs), as IQN's fractions are
    np.testing.assert_allclose(several.detach().numpy(), np.stack([expected, expected], 1), rtol=1e-12)


@pytest.mark.parametrize("parts", [None, 1, 3])
def test_noise_per_row_equals_row_by_row(parts: int | None) -> None:
    layer, noise = noisy_layer(), randn(5, 7, seed=2).double()
    x = randn(5, 4, seed=1).double() if parts is None else randn(5, parts, 4, seed=1).double()
    layer.noise = noise
    together = layer(x).detach().numpy()
    for k in range(5):
        rows = x[k].numpy().reshape(-1, 4)
        expected = np.stack([explicit(layer, row, noise[k].numpy()) for row in rows]).reshape(together[k].shape)
        np.testing.assert_allclose(together[k], expected, rtol=1e-12)


def test_without_noise_the_means_are_left() -> None:
    layer, x = noisy_layer(), randn(5, 4).double()
    plain = nn.functional.linear(x, layer.weight, layer.bias)
    assert layer.noise.tolist() == [0.0] * 7  # as it is at first
    assert torch.equal(layer(x), plain)
    layer.noise = torch.zeros(5, 7).double()
    torch.testing.assert_close(layer(x), plain, rtol=0, atol=0)


def test_noise_factors_by_hand() -> None:
    # f(e) = sign(e) sqrt(|e|)
    assert noise_factors(torch.tensor([4.0, -9.0, 0.0, 0.25])).tolist() == [2.0, -3.0, 0.0, 0.5]


def test_the_initial_values_are_the_papers() -> None:
    # mu uniform within 1 / sqrt(inputs) = 1/20, sigma at sigma0 / sqrt(inputs); for weights and for biases.
    layer = NoisyLinear(400, 300, sigma=0.4)
    for mu in (layer.weight, layer.bias):
        assert mu.abs().max() <= 0.05
        assert float(mu.detach().std()) == pytest.approx(0.05 / math.sqrt(3), rel=0.1)
    for scale in (layer.weight_sigma, layer.bias_sigma):
        assert scale.unique().tolist() == pytest.approx([0.4 / 20])


def test_the_gradient_reaches_means_and_scales() -> None:
    layer, x, noise = noisy_layer(), randn(1, 4).double(), randn(7, seed=3).double()
    layer.noise = noise
    layer(x)[0, 2].backward()
    f_in, f_out = noise[:4], noise[4:]
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad[2], x[0])
    torch.testing.assert_close(layer.weight_sigma.grad[2], f_out[2] * f_in * x[0])  # type: ignore[index]
    torch.testing.assert_close(layer.bias_sigma.grad, torch.tensor([0.0, 0.0, f_out[2]]).double())
    assert layer.weight_sigma.grad[:2].abs().sum() == 0.0  # type: ignore[index]


def test_the_noise_of_a_network_is_one_vector_in_the_order_of_its_layers() -> None:
    network = nn.Sequential(NoisyLinear(2, 3), nn.ReLU(), nn.Sequential(NoisyLinear(3, 1)))
    layers = NoisyLayers(network)
    assert layers.size == (2 + 3) + (3 + 1)
    noise = torch.arange(9.0)
    assert {name: part.tolist() for name, part in layers.buffers(noise).items()} == {
        "0.noise": [0.0, 1.0, 2.0, 3.0, 4.0],
        "2.0.noise": [5.0, 6.0, 7.0, 8.0],
    }
    layers.set(torch.stack((noise, -noise)))
    assert network[0].get_buffer("noise").tolist() == [[0, 1, 2, 3, 4], [-0, -1, -2, -3, -4]]
    assert network[2].get_submodule("0").get_buffer("noise").tolist() == [[5, 6, 7, 8], [-5, -6, -7, -8]]
    assert NoisyLayers(nn.Linear(2, 2)).size == 0
    assert not any("noise" in name for name in network.state_dict())  # sampled again, never saved


def test_every_dense_layer_of_a_noisy_network_is_noisy() -> None:
    style = HeadStyle(noisy_sigma=0.3, dueling=True, layer_norm=True)
    for network in (MLPQNetwork(3, 2, (8, 8), style=style), MLPC51QNetwork(3, 2, (8, 8), num_atoms=5, style=style)):
        assert not [part for part in network.modules() if isinstance(part, nn.Linear)]
        noisy = [part for part in network.modules() if isinstance(part, NoisyLinear)]
        assert len(noisy) == 5
        assert float(noisy[0].weight_sigma[0, 0]) == pytest.approx(0.3 / math.sqrt(3))


# --- Dueling streams -------------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """Returns the same numbers for each row."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, x: Tensor) -> Tensor:
        return self.values.expand(*x.shape[:-1], -1)


def test_the_dueling_formula_by_hand() -> None:
    # V = 10, A = [1, 2, 6], mean 3: Q = 10 + [-2, -1, 3].
    layer = Dueling(Fixed([10.0]), Fixed([1.0, 2.0, 6.0]), 3)
    assert layer(torch.zeros(2, 4)).tolist() == [[8.0, 9.0, 13.0]] * 2


def test_the_dueling_formula_holds_for_each_atom_or_quantile() -> None:
    # Two actions, two numbers each: V = [1, 10], A = [[0, 4], [2, 8]], means over the actions [1, 6].
    layer = Dueling(Fixed([1.0, 10.0]), Fixed([0.0, 4.0, 2.0, 8.0]), 2)
    assert layer(torch.zeros(1, 4)).unflatten(-1, (2, 2)).tolist() == [[[0.0, 8.0], [2.0, 12.0]]]
    assert layer(torch.zeros(1, 3, 4)).shape == (1, 3, 4)  # IQN's rows have several parts


def test_a_constant_on_all_advantages_changes_nothing() -> None:
    torch.manual_seed(0)
    value, advantages, x = nn.Linear(4, 3), nn.Linear(4, 6), randn(5, 4)
    layer = Dueling(value, advantages, 2)
    before = layer(x).detach()
    with torch.no_grad():
        advantages.bias.add_(torch.tensor([7.0, -2.0, 0.5] * 2))  # another constant for each of the three numbers
    torch.testing.assert_close(layer(x).detach(), before, rtol=0, atol=2e-6)
    torch.testing.assert_close(layer(x).unflatten(-1, (2, 3)).mean(1), value(x))  # V is what remains of the mean


def test_the_gradient_into_the_trunk_is_scaled_by_one_over_sqrt_2_and_that_into_the_streams_is_not() -> None:
    torch.manual_seed(0)
    value, advantages = nn.Linear(4, 1), nn.Linear(4, 3)
    x = randn(2, 4).requires_grad_()
    Dueling(value, advantages, 3)(x).square().sum().backward()
    gradients = [x.grad, value.weight.grad, advantages.weight.grad]
    for tensor in (x, value.weight, advantages.weight):
        tensor.grad = None
    given = advantages(x)
    (value(x) + given - given.mean(1, keepdim=True)).square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(gradients[0], x.grad * math.sqrt(0.5))
    torch.testing.assert_close(gradients[1], value.weight.grad)
    torch.testing.assert_close(gradients[2], advantages.weight.grad)


def test_each_stream_has_its_own_hidden_layer_of_full_size() -> None:
    layers = action_layers(3, (32, 16), 4, 5, style=HeadStyle(dueling=True))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, Dueling]
    shared, _, dueling = layers
    assert isinstance(dueling, Dueling)
    shapes = {
        name: [tuple(p.shape) for p in part.parameters() if p.ndim == 2]
        for name, part in (("shared", shared), ("value", dueling.value), ("advantages", dueling.advantages))
    }
    assert shapes == {"shared": [(32, 3)], "value": [(16, 32), (5, 16)], "advantages": [(16, 32), (20, 16)]}
    assert not {id(p) for p in dueling.value.parameters()} & {id(p) for p in dueling.advantages.parameters()}
    (bare,) = action_layers(3, (), 4, style=HeadStyle(dueling=True))  # without hidden layers: two linear streams
    assert [tuple(p.shape) for p in bare.parameters() if p.ndim == 2] == [(1, 3), (4, 3)]


@pytest.mark.parametrize("dueling", [False, True])
def test_networks_return_their_numbers_for_each_action(dueling: bool) -> None:
    style, obs = HeadStyle(dueling=dueling, layer_norm=True), randn(6, 3)
    assert MLPQNetwork(3, 2, (8,), style=style)(obs).shape == (6, 2)
    assert MLPC51QNetwork(3, 2, (8,), num_atoms=7, style=style)(obs).shape == (6, 2, 7)
    assert MLPQRQNetwork(3, 2, (8,), num_quantiles=9, style=style)(obs).shape == (6, 2, 9)
    values, taus = MLPIQNetwork(3, 2, (8,), num_quantiles=5, style=style)(obs)
    assert (values.shape, taus.shape) == ((6, 2, 5), (1, 5))


# --- Fractions and expectations --------------------------------------------------------------------------------------


def test_the_cosine_embedding_by_hand() -> None:
    # Two cosines, cos(0 tau) = 1 and cos(pi tau): at 0, 1/2 and 1 they are (1, 1), (1, 0) and (1, -1).
    # Weights (1, 2) and (-1, 1), biases 0 and 0.5: sums 3, 1, -1 and 0.5, -0.5, -1.5, negative ones cut off.
    embedding = CosineEmbedding(2, 2)
    with torch.no_grad():
        embedding.linear.weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 1.0]]))
        embedding.linear.bias.copy_(torch.tensor([0.0, 0.5]))
    expected = torch.tensor([[[3.0, 0.5], [1.0, 0.0], [0.0, 0.0]]])
    torch.testing.assert_close(embedding(torch.tensor([[0.0, 0.5, 1.0]])), expected, rtol=0, atol=1e-6)


def test_the_cosine_embedding_equals_plain_loops_in_float64() -> None:
    torch.manual_seed(0)
    embedding, taus = CosineEmbedding(16, 5), torch.rand(3, 4)
    weight, bias = (p.detach().numpy().astype(np.float64) for p in embedding.linear.parameters())
    expected = np.zeros((3, 4, 5))
    for row, column in np.ndindex(3, 4):
        for j in range(5):
            total = bias[j]
            for i in range(16):
                total += math.cos(math.pi * i * float(taus[row, column])) * weight[j, i]
            expected[row, column, j] = max(0.0, total)
    np.testing.assert_allclose(embedding(taus).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert (expected > 0).any()
    assert (expected == 0).any()


def test_means_of_quantiles_and_expectations_of_logits_by_hand() -> None:
    assert MeanOfLast()(torch.tensor([[[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]]])).tolist() == [[3.0, 1.0]]
    # Logits 0 and log 3: probabilities 1/4 and 3/4 of the atoms -2 and 2.
    logits = torch.tensor([[[0.0, math.log(3.0)], [1e4, 0.0]]])
    assert Expectation(torch.tensor([-2.0, 2.0]))(logits)[0].tolist() == pytest.approx([1.0, -2.0])


# --- Ensembles -------------------------------------------------------------------------------------------------------


def members_of(stacked: StackedLinear) -> list[nn.Linear]:
    """The same layers as a list of PyTorch's, (outputs, inputs) as it has them."""
    members, inputs, outputs = stacked.weight.shape
    layers = [nn.Linear(inputs, outputs) for _ in range(members)]
    for layer, weight, bias in zip(layers, stacked.weight.detach(), stacked.bias.detach(), strict=True):
        layer.weight.data, layer.bias.data = weight.t().contiguous(), bias[0].clone()
    return layers


@pytest.mark.parametrize("outputs", [5, 1])  # a single column uses another code path
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_layers_equal_a_list_of_linear_ones_in_values_and_gradients(outputs: int, shared: bool) -> None:
    torch.manual_seed(0)
    stacked = StackedLinear(3, 4, outputs)
    layers = members_of(stacked)
    x = randn(*(() if shared else (3,)), 6, 4).requires_grad_()
    same_x = x.detach().clone().requires_grad_()
    found = stacked(x)
    expected = torch.stack([layer(same_x if shared else same_x[k]) for k, layer in enumerate(layers)])
    assert found.shape == (3, 6, outputs)
    torch.testing.assert_close(found, expected)
    upstream = randn(3, 6, outputs, seed=1)
    found.backward(upstream)
    expected.backward(upstream)
    assert stacked.weight.grad is not None
    assert stacked.bias.grad is not None
    torch.testing.assert_close(x.grad, same_x.grad)
    for k, layer in enumerate(layers):
        torch.testing.assert_close(stacked.weight.grad[k].t(), layer.weight.grad)
        torch.testing.assert_close(stacked.bias.grad[k, 0], layer.bias.grad)


def test_stacked_layers_start_like_linear_ones_with_different_weights_per_member() -> None:
    torch.manual_seed(0)
    layer = StackedLinear(3, 400, 300)
    for values in (layer.weight, layer.bias):  # uniform within 1 / sqrt(inputs) = 1/20
        assert values.abs().max() <= 0.05
        assert float(values.detach().std()) == pytest.approx(0.05 / math.sqrt(3), rel=0.1)
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_stacked_layer_norm_equals_layer_norm_for_each_member() -> None:
    stacked, x = StackedLayerNorm(3, 5), randn(3, 6, 5) * 4.0 + 1.0
    with torch.no_grad():
        stacked.weight.copy_(randn(3, 1, 5, seed=1))
        stacked.bias.copy_(randn(3, 1, 5, seed=2))
    for k in range(3):
        norm = nn.LayerNorm(5)
        norm.weight.data, norm.bias.data = stacked.weight.detach()[k, 0], stacked.bias.detach()[k, 0]
        torch.testing.assert_close(stacked(x)[k], norm(x[k]))
    fresh = StackedLayerNorm(2, 5)
    torch.testing.assert_close(fresh(x[:2]), nn.LayerNorm(5)(x[:2]))


@pytest.mark.parametrize("residual", [False, True])
def test_a_network_of_stacked_layers_equals_its_members_one_by_one(residual: bool) -> None:
    torch.manual_seed(0)
    build = partial(mlp, 4, (8, 8), 2, layer_norm=True, residual=residual)
    stacked = nn.Sequential(*build(dense=partial(StackedLinear, 3), norm=partial(StackedLayerNorm, 3)))
    x = randn(6, 4)
    together = stacked(x)
    assert together.shape == (3, 6, 2)
    for k in range(3):
        member = nn.Sequential(*build())
        values = zip(member.parameters(), stacked.parameters(), strict=True)
        for own, all_members in values:
            own.data = all_members.detach()[k].t() if own.ndim == 2 else all_members.detach()[k, 0]
        torch.testing.assert_close(together[k], member(x))
