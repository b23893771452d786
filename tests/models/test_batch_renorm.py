"""Batch renormalisation by hand, its gradient through the moments, and running moments as one flat vector."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.models.batch_renorm import EPS, MAX_SCALE, MAX_SHIFT, BatchRenorm, FlatMoments, Renormalized

YES, NO = torch.tensor(True), torch.tensor(False)


def renormalized_by_hand(x: np.ndarray, mean: float, variance: float) -> list[float]:
    """The equations for one feature, in plain Python."""
    m = sum(x) / len(x)
    v = sum((value - m) ** 2 for value in x) / len(x)  # biased
    r = min(max(math.sqrt(v + 1e-3) / math.sqrt(variance + 1e-3), 1 / 3), 3.0)
    e = min(max((m - mean) / math.sqrt(variance + 1e-3), -5.0), 5.0)
    m_hat, v_hat = m - e * math.sqrt(v) / r, v / r**2
    return [(value - m_hat) / math.sqrt(v_hat + 1e-3) for value in x]


def layer_with(mean: float, variance: float, size: int = 1) -> BatchRenorm:
    layer = BatchRenorm(size)
    layer.mean, layer.variance = torch.full((1, size), mean), torch.full((1, size), variance)
    return layer


@pytest.mark.parametrize(
    ("mean", "variance"),
    [(0.0, 1.0), (1.5, 4.0), (2.0, 100.0), (2.0, 1e-4), (-50.0, 1.0), (50.0, 1.0)],  # each bound is met once
)
def test_the_correction_is_that_of_the_equations(mean: float, variance: float) -> None:
    x = np.array([1.0, 2.0, 4.0, 5.0])
    layer = layer_with(mean, variance)
    found, batch_mean, batch_variance = layer.by_batch(torch.tensor(x, dtype=torch.float32)[:, None], YES)
    assert found[:, 0].tolist() == pytest.approx(renormalized_by_hand(x, mean, variance), rel=1e-4, abs=1e-5)
    assert (batch_mean.item(), batch_variance.item()) == (3.0, 2.5)


def test_two_values_by_hand() -> None:
    # m = 2, v = 1; running 0 and 1: r = 1, e = 2 / sqrt(1.001). m' = 2 - e, v' = 1: outputs (x - 2 + e) / sqrt(1.001).
    x = torch.tensor([[1.0], [3.0]])
    std = math.sqrt(1.001)
    found, _, _ = layer_with(0.0, 1.0).by_batch(x, YES)
    assert found[:, 0].tolist() == pytest.approx([(-1 + 2 / std) / std, (1 + 2 / std) / std], rel=1e-5)
    plain, _, _ = layer_with(0.0, 1.0).by_batch(x, NO)
    assert plain[:, 0].tolist() == pytest.approx([-1 / std, 1 / std], rel=1e-5)


def test_without_the_correction_it_is_batch_normalisation() -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(20, 3) * 3.0 + 1.0, layer_with(7.0, 9.0, size=3)
    torch_layer = nn.BatchNorm1d(3, eps=EPS)
    torch.testing.assert_close(layer.by_batch(x, NO)[0], torch_layer(x))


def test_where_batch_and_running_moments_agree_there_is_nothing_to_correct() -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(20, 3), BatchRenorm(3)
    layer.mean, layer.variance = x.mean(0, keepdim=True), x.var(0, correction=0, keepdim=True)
    torch.testing.assert_close(layer.by_batch(x, YES)[0], layer.by_batch(x, NO)[0])
    torch.testing.assert_close(layer.by_batch(x, YES)[0], layer(x))


def test_within_its_bounds_the_correction_makes_training_what_acting_is() -> None:
    # What batch renormalisation is for: (x - m) / s * r + e with r = s / S, e = (m - M) / S is (x - M) / S.
    torch.manual_seed(0)
    x = torch.randn(500, 2) * 20.0
    layer = layer_with(5.0, 500.0, size=2)
    torch.testing.assert_close(layer.by_batch(x, YES)[0], layer(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("corrects", [NO, YES])
def test_gradients_flow_through_the_moments_of_the_batch(corrects: Tensor) -> None:
    torch.manual_seed(0)
    layer = layer_with(0.3, 2.0, size=2).double()
    x = torch.randn(5, 2, dtype=torch.float64)

    def first_row(x: Tensor) -> Tensor:
        # The correction is a constant: held here, so that numerical differences do not move it.
        variance, mean = torch.var_mean(x, 0, correction=0, keepdim=True)
        m_hat = torch.where(corrects, mean - shift * variance.sqrt() / scale, mean)
        v_hat = torch.where(corrects, variance / scale**2, variance)
        return ((x - m_hat) / (v_hat + EPS).sqrt())[0].sum()

    variance, mean = torch.var_mean(x, 0, correction=0, keepdim=True)
    scale = ((variance + EPS) / (layer.variance + EPS)).sqrt().clamp(1 / MAX_SCALE, MAX_SCALE)
    shift = ((mean - layer.mean) / (layer.variance + EPS).sqrt()).clamp(-MAX_SHIFT, MAX_SHIFT)
    tried = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer.by_batch(tried, corrects)[0][0].sum(), tried)
    expected, step = torch.zeros_like(x), 1e-6
    for index in np.ndindex(5, 2):
        nudge = torch.zeros_like(x)
        nudge[index] = step
        expected[index] = (first_row(x + nudge) - first_row(x - nudge)) / (2 * step)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert (gradient[1:].abs() > 1e-3).all()  # into the rows whose own output is not looked at


@pytest.mark.parametrize("corrects", [NO, YES])
def test_a_feature_that_is_0_in_the_whole_batch_has_a_finite_gradient(corrects: Tensor) -> None:
    layer, x = layer_with(0.5, 1.0), torch.zeros(4, 1, requires_grad=True)
    output, _, _ = layer.by_batch(x, corrects)
    (gradient,) = torch.autograd.grad(output[0, 0], x)
    assert torch.isfinite(output).all()
    assert torch.isfinite(gradient).all()


def test_running_moments_are_views_on_one_vector_in_the_order_of_the_batch_moments() -> None:
    torch.manual_seed(0)
    first, second = BatchRenorm(3), BatchRenorm(2)
    hidden_layers = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    network = Renormalized(first, hidden_layers, second)
    moments = FlatMoments(network)
    assert moments.values.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 2 + [1.0] * 2
    x = torch.randn(6, 3) + 2.0
    output, found = network(x, NO)
    torch.testing.assert_close(found[:6], torch.cat((x.mean(0), x.var(0, correction=0))))
    hidden = hidden_layers(first.by_batch(x, NO)[0])
    torch.testing.assert_close(found[6:], torch.cat((hidden.mean(0), hidden.var(0, correction=0))))
    torch.testing.assert_close(output, second.by_batch(hidden, NO)[0])
    before = network(x)
    moments.values.copy_(found.detach())  # in place: the layers see it
    torch.testing.assert_close(first.mean, x.mean(0, keepdim=True))
    assert not torch.allclose(network(x), before)
    other = torch.rand_like(found).detach()
    hidden = hidden_layers((x - other[:3]) / (other[3:6] + EPS).sqrt())
    by_other = torch.func.functional_call(network, moments.named(other), (x,))
    torch.testing.assert_close(by_other, (hidden - other[6:8]) / (other[8:] + EPS).sqrt())


def test_members_of_an_ensemble_have_moments_of_their_own() -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(2, 10, 3) * torch.tensor([1.0, 5.0])[:, None, None], BatchRenorm(3, 2)
    found, mean, variance = layer.by_batch(x, NO)
    for member in range(2):
        torch.testing.assert_close(found[member], BatchRenorm(3).by_batch(x[member], NO)[0])
    assert mean.shape == variance.shape == (2, 1, 3)
