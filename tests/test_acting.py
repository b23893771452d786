"""Acting without PyTorch's overhead gives what the network gives, and only where it can."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.optim import FlatModule
from rl_training.runtime.acting import fast_forward


def make_policy() -> nn.Sequential:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32, bias=False), nn.SiLU())
    norm = nn.LayerNorm(16)
    with torch.no_grad():  # not at 1 and 0, where a missing scale or shift would not show
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


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "module",
    [
        Doubled(nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), Doubled(nn.Linear(2, 2))),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, bias=False)),
        nn.Sequential(nn.Flatten(0), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2)).double(),
        nn.Sequential(nn.ReLU()),
    ],
)
def test_fast_forward_leaves_other_modules_to_pytorch(module: nn.Module) -> None:
    assert fast_forward(module, "cpu") is None


def test_fast_forward_is_for_the_cpu() -> None:
    assert fast_forward(make_policy(), torch.device("cuda")) is None
