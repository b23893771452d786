"""Layers on the unit hypersphere: lengths, first values and the size of their steps."""

import math

import pytest
import torch
from torch import Tensor, nn

from rl_training.learners.optim import adam
from rl_training.models.hyperspherical import Scaler, UnitBlock, UnitEmbedding, UnitHead, UnitLinear, unit
from rl_training.models.mlp_simbav2 import MLPSimBaV2Model


def lengths(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return found


def new_model() -> MLPSimBaV2Model:
    torch.manual_seed(0)
    return MLPSimBaV2Model(lambda: (nn.Identity(), 3), 2, (8,), (16, 16), num_critics=2, num_atoms=11)


def test_every_row_of_every_matrix_has_length_1_and_members_differ() -> None:
    matrices = [part for part in new_model().modules() if isinstance(part, UnitLinear)]
    assert len(matrices) == (1 + 2 + 2 * 2) + (1 + 2 * 2 + 2)
    for matrix in matrices:
        torch.testing.assert_close(lengths(matrix.weight), torch.ones(matrix.weight.shape[:-1]), atol=1e-6, rtol=0)
    stacked = [matrix.weight for matrix in matrices if matrix.weight.ndim == 3]
    assert all(not torch.allclose(weight[0], weight[1]) for weight in stacked)


def test_a_matrix_is_orthogonal_where_it_can_be() -> None:
    torch.manual_seed(0)
    weight = UnitLinear(8, 5).weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(5), atol=1e-5, rtol=0)


def test_features_stay_on_the_sphere() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3) * 10.0
    embedded = UnitEmbedding(3, 8, 2)(x)
    assert embedded.shape == (2, 6, 8)
    torch.testing.assert_close(lengths(embedded), torch.ones(2, 6))
    torch.testing.assert_close(lengths(UnitBlock(8, 2, num_blocks=1)(embedded)), torch.ones(2, 6))


def test_a_constant_keeps_the_length_of_an_input() -> None:
    # Without it, an observation and its double would be the same point of the sphere.
    model, x = new_model(), torch.randn(4, 3)
    assert not torch.allclose(model.actor(x), model.actor(2.0 * x), atol=1e-3)
    # n([0; 3]) = (0, ..., 0, 1): an observation of zeros has a direction, too.
    embedding = UnitEmbedding(3, 8)
    torch.testing.assert_close(embedding(torch.zeros(1, 3)), unit(embedding.linear.weight[:, 3])[None])


def test_a_block_interpolates_between_its_input_and_its_change() -> None:
    torch.manual_seed(0)
    block, h = UnitBlock(8, num_blocks=2), unit(torch.randn(5, 8))
    hidden = torch.relu(h @ block.widen.weight.T * math.sqrt(2 / 8) / 2) + 1e-8
    change = hidden @ block.narrow.weight.T
    change = change / change.norm(dim=1, keepdim=True)
    expected = h + (change - h) / 3  # the first interpolation of two blocks
    torch.testing.assert_close(block(h), expected / expected.norm(dim=1, keepdim=True))


def test_a_head_has_a_bias_and_no_activation() -> None:
    torch.manual_seed(0)
    head, h = UnitHead(8, 3), unit(torch.randn(5, 8))
    with torch.no_grad():
        head.bias.add_(2.0)
    torch.testing.assert_close(head(h), h @ head.hidden.weight.T @ head.output.weight.T + 2.0)


@pytest.mark.parametrize(("initial", "scale"), [(0.5, 0.5), (1 / 3, 1 / math.sqrt(512)), (2.0, 0.1)])
def test_a_scaler_starts_at_its_initial_value_and_moves_in_its_unit(initial: float, scale: float) -> None:
    scaler, ones = Scaler(1, initial=initial, scale=scale), torch.ones(1, 1)
    assert scaler(ones).item() == pytest.approx(initial)
    assert scaler.values.item() == pytest.approx(scale)
    zeros, count, gradient = torch.zeros(1, 1), torch.zeros((), dtype=torch.int64), torch.full((1, 1), 7.0)
    moved, *_ = adam(scaler.values.detach(), gradient, zeros, zeros, count, learning_rate=1e-3)
    with torch.no_grad():
        scaler.values.copy_(moved)
    # Adam's first step is the learning rate, whatever the gradient.
    assert scaler(ones).item() == pytest.approx(initial - 1e-3 * initial / scale, rel=1e-5)


def test_log_standard_deviations_stay_in_their_range() -> None:
    model = new_model()
    outputs = model.actor(torch.randn(100, 3) * 100.0)
    assert outputs.shape == (100, 4)
    assert ((outputs[:, 2:] > -10.0) & (outputs[:, 2:] < 2.0)).all()


def test_sizes_are_those_of_the_paper() -> None:
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    model = MLPSimBaV2Model(lambda: (nn.Identity(), 17), 6)  # HalfCheetah
    assert count(model.actor) / 1e6 == pytest.approx(0.17, abs=0.005)
    assert count(model.critics) / 1e6 == pytest.approx(2 * 4.53, abs=0.01)
