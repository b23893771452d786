"""Acting without PyTorch's overhead returns what the network returns, and is used only where it can be."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.acceleration.acting import act_function, fast_forward
from rl_training.learners.flat_module import FlatModule
from rl_training.models.layers import (
    Dueling,
    Expectation,
    HeadStyle,
    MeanOfLast,
    NoisyLayers,
    NoisyLinear,
    Residual,
    mlp,
)
from rl_training.models.mlp_c51_q_network import MLPC51QNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from state_comparison import moved_by


def make_policy() -> nn.Sequential:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32, bias=False), nn.SiLU())
    norm = nn.LayerNorm(16)
    with torch.no_grad():  # not 1 and 0, which would hide a missing scale or shift
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.uniform_(-1.0, 1.0)
    return nn.Sequential(encoder, nn.Identity(), nn.Linear(32, 16), norm, nn.Tanh(), nn.Linear(16, 3))


@pytest.mark.parametrize("rows", [1, 7, 5_000])  # the last is above the limit for numpy
def test_fast_forward_equals_the_module(rows: int) -> None:
    policy = make_policy()
    forward = fast_forward(policy, "cpu")
    assert forward is not None
    obs = np.random.default_rng(0).normal(size=(rows, 2, 3)).astype(np.float32) * 20
    given = obs.copy()
    output = forward(obs)
    with torch.no_grad():
        np.testing.assert_allclose(output, policy(torch.from_numpy(obs)).numpy(), rtol=1e-4, atol=1e-5)
    assert output.dtype == np.float32
    assert np.array_equal(obs, given)


def test_fast_forward_sees_updates_in_place() -> None:
    flat = FlatModule(make_policy())
    forward = fast_forward(flat.module, "cpu")
    assert forward is not None
    obs = np.ones((1, 6), dtype=np.float32)
    before = forward(obs)
    flat.params.mul_(1.5)
    assert not np.allclose(forward(obs), before)
    np.testing.assert_allclose(forward(obs), flat.module(torch.from_numpy(obs)).numpy(), rtol=1e-5, atol=1e-6)


# --- The heads of the DQN family -------------------------------------------------------------------------------------


def sizes_for(style: HeadStyle) -> tuple[int, ...]:
    return (16, 16) if style.residual else (32, 16)


HEADS: dict[str, Callable[[HeadStyle], nn.Module]] = {
    "dqn": lambda style: MLPQNetwork(6, 3, sizes_for(style), style=style),
    "c51": lambda style: nn.Sequential(  # Unflatten and Expectation
        MLPC51QNetwork(6, 3, sizes_for(style), num_atoms=7, style=style), Expectation(torch.linspace(-3.0, 5.0, 7))
    ),
    "qr": lambda style: nn.Sequential(
        MLPQRQNetwork(6, 3, sizes_for(style), num_quantiles=5, style=style), MeanOfLast()
    ),
}
STYLES = {
    "plain": HeadStyle(),
    "dueling": HeadStyle(dueling=True, layer_norm=True),
    "noisy": HeadStyle(noisy_sigma=0.5),
    "all": HeadStyle(dueling=True, layer_norm=True, noisy_sigma=0.5),
    "residual": HeadStyle(residual=True),
    "all residual": HeadStyle(dueling=True, noisy_sigma=0.5, residual=True),
}


@pytest.mark.parametrize("noise", ["none", "shared", "per row"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rows", [1, 9, 3_000])  # the last is above the limit for numpy
def test_fast_forward_equals_the_module_of_every_head(head: str, style: str, noise: str, rows: int) -> None:
    torch.manual_seed(0)
    module = HEADS[head](STYLES[style]).requires_grad_(False)
    forward = fast_forward(module, "cpu")
    assert forward is not None
    layers = NoisyLayers(module)
    if noise != "none":
        layers.set(torch.randn(layers.size if noise == "shared" else (rows, layers.size)))
    obs = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    given, output = obs.copy(), forward(obs)
    expected = module(torch.from_numpy(obs)).numpy()
    assert output.shape == expected.shape == (rows, 3)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    assert np.array_equal(obs, given)


@pytest.mark.parametrize("rows", [1, 9, 3_000])  # the last is above the limit for numpy
def test_fast_forward_equals_a_residual_network(rows: int) -> None:
    torch.manual_seed(0)
    layers = mlp(6, (16, 16), 4, residual=True)
    with torch.no_grad():
        for norm in (part for layer in layers for part in layer.modules() if isinstance(part, nn.LayerNorm)):
            norm.weight.uniform_(0.5, 2.0)
            norm.bias.uniform_(-1.0, 1.0)
    module = nn.Sequential(nn.Flatten(), *layers).requires_grad_(False)
    forward = fast_forward(module, "cpu")
    assert forward is not None
    obs = np.random.default_rng(0).normal(size=(rows, 2, 3)).astype(np.float32)
    given, output = obs.copy(), forward(obs)
    np.testing.assert_allclose(output, module(torch.from_numpy(obs)).numpy(), rtol=1e-4, atol=1e-5)
    assert np.array_equal(obs, given)


def test_fast_forward_sees_noise_that_is_set_later() -> None:
    module = MLPQNetwork(6, 3, (16,), style=HeadStyle(noisy_sigma=0.5)).requires_grad_(False)
    forward, layers = fast_forward(module, "cpu"), NoisyLayers(module)
    assert forward is not None
    obs = np.ones((4, 6), np.float32)
    quiet = forward(obs)
    layers.set(torch.randn(4, layers.size))
    noisy = forward(obs)
    assert len(np.unique(noisy[:, 0])) == 4
    layers.set(torch.zeros(layers.size))
    assert not np.allclose(noisy, quiet)
    np.testing.assert_allclose(forward(obs), quiet, rtol=1e-6)


def test_the_expectation_of_large_logits_does_not_overflow() -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(1e3 * torch.eye(2))
        layer.bias.zero_()
    forward = fast_forward(nn.Sequential(layer, Expectation(torch.tensor([-1.0, 4.0]))).requires_grad_(False), "cpu")
    assert forward is not None
    assert forward(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], np.float32)).tolist() == [-1.0, 4.0, 1.5]


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return 2 * output


@pytest.mark.parametrize(
    "module",
    [
        Doubled(nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), Doubled(nn.Linear(2, 2))),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, bias=False)),
        nn.Sequential(nn.Flatten(0), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 4), nn.Unflatten(0, (1, -1))),
        Dueling(nn.Linear(2, 1), Doubled(nn.Linear(2, 3)), 3),
        nn.Sequential(nn.Linear(2, 2), Residual(nn.Linear(2, 2), nn.Dropout())),
        NoisyLinear(2, 2).double(),
        nn.Sequential(nn.Linear(2, 2)).double(),
        nn.Sequential(nn.ReLU()),
    ],
)
def test_fast_forward_leaves_other_modules_to_pytorch(module: nn.Module) -> None:
    assert fast_forward(module, "cpu") is None


def test_fast_forward_is_for_the_cpu() -> None:
    assert fast_forward(make_policy(), torch.device("cuda")) is None


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus])
def test_the_memory_address_of_observations_makes_no_difference(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 64), activation(), nn.Linear(64, 2))
    forward = act_function(module, torch.device("cpu"), "eager")
    assert (fast_forward(module, torch.device("cpu")) is None) == (activation is nn.Softplus)  # both ways to act
    obs = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)
    first = forward(moved_by(0, obs)).copy()
    for num_bytes in range(4, 64, 4):
        assert np.array_equal(forward(moved_by(num_bytes, obs)), first), num_bytes
