"""LaProp and adaptive clipping by hand, and against plain code over many steps."""

import math

import numpy as np
import pytest
import torch

from rl_training.learners.laprop import AdaptiveLaProp, clip_adaptively, laprop


def test_each_tensor_is_clipped_to_a_share_of_its_own_weights() -> None:
    # Weights (3, 4), norm 5: the limit is 0.3 * 5 = 1.5, and (6, 8), norm 10, shrinks to (0.9, 1.2).
    # Weights (0), norm floor 0.001: the limit is 0.0003. Weights (10): the limit is 3, and 2 is left alone.
    params, gradient = torch.tensor([3.0, 4.0, 0.0, 10.0]), torch.tensor([6.0, 8.0, 0.6, 2.0])
    clipped, norm = clip_adaptively(gradient, params, [2, 1, 1], 0.3)
    assert clipped.tolist() == pytest.approx([0.9, 1.2, 0.0003, 2.0])
    assert norm.item() == pytest.approx(math.sqrt(36 + 64 + 0.36 + 4))


def test_a_gradient_of_zero_stays_zero() -> None:
    clipped, norm = clip_adaptively(torch.zeros(3), torch.zeros(3), [1, 2], 0.3)
    assert clipped.tolist() == [0.0] * 3
    assert norm.item() == 0.0


def plain_laprop(gradients: np.ndarray, rate: float) -> np.ndarray:
    """The equations in float64, step by step."""
    mean, square, params = (np.zeros(gradients.shape[1]) for _ in range(3))
    for count, gradient in enumerate(gradients, 1):
        square = 0.999 * square + 0.001 * gradient**2
        mean = 0.9 * mean + 0.1 * gradient / (np.sqrt(square / (1.0 - 0.999**count)) + 1e-20)
        params = params - rate * mean / (1.0 - 0.9**count)
    return params


def test_many_steps_are_those_of_plain_code() -> None:
    gradients = np.random.default_rng(0).normal(size=(50, 4)) * [1.0, 1e-6, 1e3, 0.0]
    state = (torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.tensor(0))
    for gradient in torch.from_numpy(gradients).float():
        state = laprop(state[0], gradient, *state[1:], learning_rate=0.1)
    np.testing.assert_allclose(state[0].numpy(), plain_laprop(gradients, 0.1), rtol=2e-4, atol=1e-7)
    assert state[0][3] == 0.0


def test_the_first_step_has_the_size_of_the_learning_rate_for_gradients_of_any_size() -> None:
    gradient = torch.tensor([1e-8, -1.0, 1e8])
    params, *_ = laprop(torch.zeros(3), gradient, torch.zeros(3), torch.zeros(3), torch.tensor(0), learning_rate=0.5)
    assert params.tolist() == pytest.approx([-0.5, 0.5, -0.5], rel=1e-5)


@pytest.mark.parametrize(("warmup", "expected"), [(4, [0.25, 0.5, 0.75, 1.0, 1.0]), (0, [1.0] * 5)])
def test_the_learning_rate_grows_linearly_to_its_value(warmup: int, expected: list[float]) -> None:
    optimizer = AdaptiveLaProp(sizes=[1], learning_rate=0.1, warmup=warmup, clip=1e9)
    state, steps = optimizer.state(torch.tensor([100.0])), []
    for _ in range(5):
        new, _ = optimizer.step(torch.tensor([1.0]), state)
        steps.append((state["params"] - new["params"]).item() / 0.1)
        state = state | new
    assert steps == pytest.approx(expected, rel=1e-3)
