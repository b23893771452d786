"""The optimizer on one flat vector equals PyTorch's on a list of parameters; a flat module equals its module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from rl_training.errors import CheckpointError
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.optim import adam, clip_by_global_norm, polyak


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False))


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_adam_equals_torch_adam_over_fifty_steps(betas: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(200, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([reference], lr=0.01, betas=betas, eps=1e-5)
    params = reference.detach().clone()
    mean, square, count = torch.zeros(200), torch.zeros(200), torch.zeros((), dtype=torch.int64)
    for _ in range(50):
        gradient = torch.randn(200, generator=generator)
        reference.grad = gradient.clone()
        optimizer.step()
        params, mean, square, count = adam(
            params, gradient, mean, square, count, learning_rate=0.01, beta1=betas[0], beta2=betas[1], eps=1e-5
        )
        torch.testing.assert_close(params, reference.detach(), rtol=1e-6, atol=1e-6)
    assert count.item() == 50


def test_the_first_step_of_adam_is_the_learning_rate_times_the_sign() -> None:
    # mean / (1 - beta1) = g and square / (1 - beta2) = g ** 2, so the step is lr * g / |g|, whatever the size of g.
    params, zeros, gradient = torch.tensor([1.0, 1.0]), torch.zeros(2), torch.tensor([1e-3, -50.0])
    new, *_ = adam(params, gradient, zeros, zeros, torch.tensor(0), learning_rate=0.1)
    torch.testing.assert_close(new, torch.tensor([0.9, 1.1]), rtol=0, atol=2e-6)


def test_the_learning_rate_may_be_a_tensor() -> None:
    params, zeros, gradient = torch.randn(4), torch.zeros(4), torch.randn(4)
    by_float = adam(params, gradient, zeros, zeros, torch.tensor(0), learning_rate=0.25)
    by_tensor = adam(params, gradient, zeros, zeros, torch.tensor(0), learning_rate=torch.tensor(0.25))
    torch.testing.assert_close(by_tensor, by_float)


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 1e6])
def test_clipping_equals_clip_grad_norm(max_norm: float) -> None:
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(1))
    reference = nn.Parameter(torch.zeros(50))
    reference.grad = gradient.clone()
    expected_norm = torch.nn.utils.clip_grad_norm_([reference], max_norm)
    clipped, norm = clip_by_global_norm(gradient, max_norm)
    torch.testing.assert_close(norm, expected_norm)
    torch.testing.assert_close(clipped, reference.grad)


def test_clipping_leaves_a_zero_gradient_zero() -> None:
    clipped, norm = clip_by_global_norm(torch.zeros(3), 0.5)
    assert clipped.tolist() == [0.0, 0.0, 0.0]
    assert norm == 0.0


def test_polyak_moves_the_target_by_tau() -> None:
    assert polyak(torch.tensor([0.0, 4.0]), torch.tensor([2.0, 0.0]), 0.25).tolist() == [0.5, 3.0]
    assert polyak(torch.tensor([0.1]), torch.tensor([0.7]), 1.0) == torch.tensor([0.7])


def test_writing_into_the_vector_changes_the_module() -> None:
    network, obs = make_network(), torch.randn(4, 3)
    before = network(obs).detach()
    flat = FlatModule(network)
    torch.testing.assert_close(network(obs), before, rtol=0, atol=0)
    flat.params.mul_(0.0)
    assert network(obs).abs().sum() == 0.0


def test_apply_uses_the_given_vector_and_not_the_modules_own() -> None:
    flat, obs = FlatModule(make_network()), torch.randn(4, 3)
    other = copy.deepcopy(flat.module)
    vector = flat.params * 2.0
    for parameter in other.parameters():
        parameter.data.mul_(2.0)
    torch.testing.assert_close(flat.apply(vector, obs), other(obs))


def test_apply_part_runs_a_submodule_with_its_part_of_the_vector() -> None:
    flat, obs = FlatModule(make_network()), torch.randn(4, 3)
    doubled = 2.0 * flat.params
    hidden = torch.tanh(flat.apply_part("0", doubled, obs))
    torch.testing.assert_close(flat.apply_part("2", doubled, hidden), flat.apply(doubled, obs))


def test_the_gradient_through_apply_equals_backward() -> None:
    reference, obs = make_network(), torch.randn(4, 3)
    flat = FlatModule(copy.deepcopy(reference))

    def loss(params: Tensor) -> tuple[Tensor, Tensor]:
        output = flat.apply(params, obs)
        return output.square().mean(), output

    gradient, (value, output) = torch.func.grad_and_value(loss, has_aux=True)(flat.params)
    expected = reference(obs).square().mean()
    expected.backward()
    torch.testing.assert_close(
        gradient, torch.cat([p.grad.reshape(-1) for p in reference.parameters() if p.grad is not None])
    )
    torch.testing.assert_close(value, expected.detach())
    assert not output.requires_grad


def test_names_are_the_modules_own_and_load_restores_them() -> None:
    flat = FlatModule(make_network())
    assert flat.named(flat.params).keys() == flat.module.state_dict().keys()
    saved = {name: view.clone() for name, view in flat.named(flat.params).items()}
    flat.params.zero_()
    flat.load(flat.params, saved)
    torch.testing.assert_close(dict(flat.module.state_dict()), saved, rtol=0, atol=0)


def test_load_names_what_does_not_fit_and_changes_nothing() -> None:
    flat = FlatModule(make_network())
    before = flat.params.clone()
    named = {name: torch.zeros_like(view) for name, view in flat.named(flat.params).items()}
    with pytest.raises(CheckpointError, match=r"missing 2\.weight, unexpected 3\.weight"):
        flat.load(flat.params, {"3.weight" if name == "2.weight" else name: value for name, value in named.items()})
    with pytest.raises(CheckpointError, match=r"2\.weight has shape \(2, 6\), the network's has \(2, 5\)"):
        flat.load(flat.params, named | {"2.weight": torch.zeros(2, 6)})
    assert torch.equal(flat.params, before)


def tied() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "no parameters"),
        (nn.Linear(2, 2).double(), "float32, found bias"),
        (tied(), "tied weights"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "running statistics.*: 1; use LayerNorm"),
    ],
)
def test_modules_that_cannot_be_flat_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        FlatModule(module)
