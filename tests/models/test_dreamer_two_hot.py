"""Numbers as probabilities of bins: the mean is the number, the loss is the cross-entropy, uniform means exactly 0."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.models.dreamer_two_hot import make_bins, symexp, symlog, two_hot, two_hot_loss, two_hot_mean


def test_symlog_and_symexp_by_hand() -> None:
    # sign(x) log(1 + |x|): log 1 = 0, log 2, log(1 + (e - 1)) = 1.
    x = torch.tensor([0.0, 1.0, -1.0, math.e - 1.0, 1.0 - math.e])
    assert symlog(x).tolist() == pytest.approx([0.0, math.log(2.0), -math.log(2.0), 1.0, -1.0])
    assert symexp(torch.tensor([0.0, 1.0, -2.0])).tolist() == pytest.approx([0.0, math.e - 1.0, 1.0 - math.e**2])


@given(st.floats(-1e6, 1e6, width=32))
def test_symexp_undoes_symlog(x: float) -> None:
    assert symexp(symlog(torch.tensor(x))).item() == pytest.approx(x, rel=1e-4, abs=1e-6)


def test_bins_are_symexp_of_even_steps_and_exactly_symmetric() -> None:
    bins = make_bins(255, 20.0)
    even = np.linspace(-20.0, 20.0, 255)
    np.testing.assert_allclose(bins.numpy(), np.sign(even) * np.expm1(np.abs(even)), rtol=1e-6)
    assert torch.equal(bins, -bins.flip(0))
    assert bins[127] == 0.0


BINS = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])


def test_mass_goes_to_the_two_neighbours_by_nearness() -> None:
    # 2 is a third of the way from 1 to 4; -1 is a bin; 9 and -9 are beyond the last ones.
    encoded = two_hot(torch.tensor([2.0, -1.0, 0.25, 9.0, -9.0]), BINS)
    expected = [[0, 0, 0, 2 / 3, 1 / 3], [0, 1, 0, 0, 0], [0, 0, 0.75, 0.25, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
    torch.testing.assert_close(encoded, torch.tensor(expected))


@given(st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=8))
def test_the_mean_of_an_encoded_number_is_the_number(numbers: list[float]) -> None:
    bins, x = make_bins(255, 20.0), torch.tensor(numbers)
    encoded = two_hot(x, bins)
    torch.testing.assert_close(encoded.sum(-1), torch.ones(len(numbers)))
    assert (encoded >= 0.0).all()
    torch.testing.assert_close((encoded.double() * bins.double()).sum(-1).float(), x, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_cross_entropy_to_the_encoded_number() -> None:
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    x = torch.tensor([2.0, -1.0, 0.25, 9.0, -9.0, 0.0, -3.0])
    expected = -(two_hot(x, BINS) * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(two_hot_loss(logits, x, BINS), expected)


def test_the_mean_is_that_of_the_probabilities_and_exactly_0_if_all_are_equal() -> None:
    bins = make_bins(255, 20.0)
    assert two_hot_mean(torch.full((3, 255), 0.7), bins).tolist() == [0.0, 0.0, 0.0]
    probs = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1])  # -0.4 - 0.2 + 0.3 + 0.4 = 0.1
    assert two_hot_mean(probs.log(), BINS).item() == pytest.approx(0.1)


def test_descending_the_loss_leads_to_the_mean_of_what_was_seen() -> None:
    logits, targets = torch.zeros(5, requires_grad=True), torch.tensor([0.0, 0.0, 4.0, 1.0])
    for _ in range(300):
        (gradient,) = torch.autograd.grad(two_hot_loss(logits.expand(4, 5), targets, BINS).mean(), logits)
        logits = (logits - 2.0 * gradient).detach().requires_grad_()
    assert two_hot_mean(logits, BINS).item() == pytest.approx(1.25, abs=0.02)
