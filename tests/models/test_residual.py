"""Networks of residual blocks, `network: simba`: their layers, first weights and settings."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import make_config
from rl_training.errors import ConfigError
from rl_training.models.layers import Residual, StackedLayerNorm, StackedLinear, mlp
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_rebrac import MLPReBRACModel
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.runtime.trainer import RunOptions, train


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- Layers ----------------------------------------------------------------------------------------------------------


def test_a_residual_block_adds_to_its_input() -> None:
    # 2 x + 1 added to x = [1, -2]: [1 + 3, -2 - 3].
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(2.0 * torch.eye(2))
        linear.bias.fill_(1.0)
    assert Residual(linear)(torch.tensor([[1.0, -2.0]])).tolist() == [[4.0, -5.0]]


def test_residual_networks_are_made_as_in_the_paper() -> None:
    # Linear; per block norm, four times as many units, ReLU, back, added; a last norm; linear.
    layers = mlp(3, (8, 8), 2, residual=True)
    assert [type(layer) for layer in layers] == [nn.Linear, Residual, Residual, nn.LayerNorm, nn.Linear]
    assert [type(part) for part in layers[1].children()] == [nn.LayerNorm, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(p.shape) for p in layers[1].parameters() if p.ndim == 2] == [(32, 8), (8, 32)]
    x = randn(5, 3)
    first, block, other, norm, last = layers
    h = first(x)
    for part in (block, other):
        before, inner, _, back = part.children()
        h = h + back(torch.relu(inner(before(h))))
    torch.testing.assert_close(nn.Sequential(*layers)(x), last(norm(h)))
    assert nn.Sequential(*mlp(3, (8, 8), None, residual=True))(x).shape == (5, 8)
    assert [type(layer) for layer in mlp(3, (), 2, residual=True)] == [nn.Linear]


# --- First weights ---------------------------------------------------------------------------------------------------


def matrices(module: nn.Module) -> list[Tensor]:
    """The weights of linear layers as (members, inputs, outputs), or as (outputs, inputs) of a layer alone."""
    parts = [part for part in module.modules() if isinstance(part, nn.Linear | StackedLinear)]
    assert all(torch.count_nonzero(part.bias) == 0 for part in parts)
    return [part.weight.detach() for part in parts]


def assert_orthogonal(matrix: Tensor, *, gain: float = 1.0) -> None:
    """Check that the rows, or the columns if there are fewer, are orthogonal and of length `gain`."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    torch.testing.assert_close(short @ short.t(), gain**2 * torch.eye(len(short)), atol=1e-5, rtol=0)


def assert_he_normal(matrix: Tensor, inputs: int) -> None:
    """Check the deviation sqrt(2 / inputs) of a normal distribution that is truncated at two deviations."""
    deviation = math.sqrt(2.0 / inputs)
    assert matrix.std().item() == pytest.approx(deviation, rel=0.05)
    assert 1.9 < matrix.abs().max().item() * 0.87962566 / deviation < 2.001


def test_first_weights_are_orthogonal_and_those_of_blocks_he_normal() -> None:
    torch.manual_seed(0)
    embedding, *blocks, output = matrices(nn.Sequential(*mlp(3, (64, 64), 2, residual=True)))
    assert_orthogonal(embedding)
    assert_orthogonal(output)
    assert len(blocks) == 4
    for weight, inputs in zip(blocks, (64, 256, 64, 256), strict=True):
        assert_he_normal(weight, inputs)


def test_every_critic_of_a_stack_has_such_first_weights() -> None:
    torch.manual_seed(0)
    dense, norm = partial(StackedLinear, 3), partial(StackedLayerNorm, 3)
    embedding, inner, back, output = matrices(nn.Sequential(*mlp(5, (64,), 1, residual=True, dense=dense, norm=norm)))
    for member in range(3):
        assert_orthogonal(embedding[member])
        assert_orthogonal(output[member])
        assert_he_normal(inner[member], 64)
        assert_he_normal(back[member], 256)
    assert not torch.equal(embedding[0], embedding[1])


def encoder() -> tuple[nn.Module, int]:
    return nn.Identity(), 3


def test_redqs_first_weights_are_those_of_its_network() -> None:
    torch.manual_seed(0)
    simba = MLPREDQModel(encoder, 2, (64,), num_critics=2, residual=True)
    assert_orthogonal(matrices(simba.actor)[0])
    assert_he_normal(matrices(simba.critics)[1][0], 64)
    plain = matrices(MLPREDQModel(encoder, 2, (64,), num_critics=2).actor)[0]
    assert 0.95 < plain.abs().max().item() / math.sqrt(6.0 / (3 + 64)) <= 1.0  # Xavier


def test_rebracs_first_weights_are_those_of_its_network() -> None:
    torch.manual_seed(0)
    simba = MLPReBRACModel(encoder, 2, (64,), residual=True)
    for part in (simba.actor, simba.critics):
        dense = [layer for layer in part.modules() if isinstance(layer, nn.Linear | StackedLinear)]
        assert len(dense) == 4
        assert not any(layer.bias.any() for layer in dense)
    assert_orthogonal(matrices(simba.actor)[-1])
    assert_orthogonal(matrices(simba.critics)[-1][0])


def test_orthogonal_weights_of_a_policy_leave_its_blocks_as_they_are() -> None:
    torch.manual_seed(0)
    network = MLPActorCritic(encoder, 2, (64,), residual=True)
    embedding, inner, back, output = matrices(network.policy)
    assert_orthogonal(embedding, gain=math.sqrt(2.0))
    assert_he_normal(inner, 64)
    assert_he_normal(back, 256)
    assert_orthogonal(output, gain=0.01)


# --- Algorithms ------------------------------------------------------------------------------------------------------

RESIDUAL_ALGORITHMS = ["dqn", "rainbow_dqn", "qr_dqn", "iqn", "fqf", "ppo", "sac", "td3", "redq"]


@pytest.mark.learning
@pytest.mark.parametrize("algo", RESIDUAL_ALGORITHMS)
def test_every_algorithm_trains_residual_networks(algo: str, tmp_path: Path) -> None:
    box = algo in ("sac", "td3", "redq", "ppo")
    config = make_config(
        tmp_path,
        algo=algo,
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": "box" if box else "discrete"},
        total_timesteps=20,
        algo_kwargs={"network": "simba", "hidden_sizes": [8, 8]},
    )
    result = train(config, RunOptions(show_progress=False))
    assert result.gradient_step > 0
    assert all(np.isfinite(value) for value in result.metrics.values())
    shapes = [tuple(value.shape) for value in result.algorithm.policy_state_dict().values() if hasattr(value, "shape")]
    assert (32, 8) in shapes  # the inside of a block has four times its units


@pytest.mark.parametrize("algo", ["dqn", "ppo", "sac"])
@pytest.mark.parametrize("sizes", [[8, 16], []])
def test_residual_blocks_of_unequal_sizes_are_refused(algo: str, sizes: list[int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(tmp_path, algo=algo, algo_kwargs={"network": "simba", "hidden_sizes": sizes})
    expected = f"{algo}.algo_kwargs: network: simba needs hidden_sizes that are all alike, got {sizes}"
    assert str(caught.value) == expected


def test_an_unknown_kind_of_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^sac\.algo_kwargs\.network must be 'mlp' or 'simba', got 'resnet'$"):
        make_config(tmp_path, algo="sac", algo_kwargs={"network": "resnet"})
