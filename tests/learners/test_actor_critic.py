"""The actor-critic network: its outputs and parts, its first weights, and acting without PyTorch's overhead."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from rl_training.acceleration.acting import fast_forward
from rl_training.algorithms.ppo import build_ppo
from rl_training.core.spaces import pack_space
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rollouts import make_ppo_setup

VECTOR = Box(-1.0, 1.0, (3,), np.float32)
IMAGE = Box(0, 255, (8, 8, 1), np.uint8)


def make_network(observation: Any = VECTOR, policy_dim: int = 4, **settings: Any) -> MLPActorCritic:
    torch.manual_seed(0)
    return MLPActorCritic(lambda: build_encoder(observation), policy_dim, (16, 8), **settings)


def some_obs(observation: Any = VECTOR, rows: int = 7) -> Tensor:
    observation.seed(0)
    return torch.from_numpy(np.stack([observation.sample() for _ in range(rows)]))


def moved(network: MLPActorCritic) -> MLPActorCritic:
    """Weights of ordinary size everywhere: at the small first ones of the policy a mistake would hardly show."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.5)
    return network


@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("log_std_init", "outputs"), [(None, 4), (-0.5, 8)])
def test_the_policy_is_the_first_part_of_the_whole(
    observation: Any, shared: bool, log_std_init: float | None, outputs: int
) -> None:
    network = moved(make_network(observation, shared=shared, log_std_init=log_std_init))
    obs = some_obs(observation)
    whole = network(obs)
    assert whole.shape == (7, outputs + 1)
    torch.testing.assert_close(network.policy(obs), whole[:, :-1])
    assert len({tuple(row) for row in whole.tolist()}) == 7  # it looks at the observation


@pytest.mark.parametrize(("shared", "touched"), [(False, False), (True, True)])
def test_only_a_shared_trunk_is_moved_by_both(shared: bool, touched: bool) -> None:
    network = moved(make_network(shared=shared))
    network(some_obs())[:, -1].sum().backward()
    gradients = [parameter.grad for parameter in network.policy.parameters()]
    assert any(gradient is not None and (gradient != 0.0).any() for gradient in gradients) == touched


@pytest.mark.parametrize(
    ("choice", "observation", "trunks"),
    [
        ("auto", VECTOR, 2),
        ("auto", IMAGE, 1),
        ("auto", pack_space(Dict({"numbers": VECTOR})), 1),
        ("yes", VECTOR, 1),
        ("no", VECTOR, 2),
        ("no", IMAGE, 2),
    ],
)
def test_images_and_dicts_share_a_trunk_unless_told_otherwise(choice: str, observation: Any, trunks: int) -> None:
    setup = make_ppo_setup(observation=observation, shared_trunk=choice, hidden_sizes=(16,))
    network = build_ppo(setup)._network.module
    hidden = [part for part in network.modules() if isinstance(part, nn.Linear) and part.out_features == 16]
    assert len(hidden) == trunks


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [part for part in network.modules() if isinstance(part, nn.Linear)]


@pytest.mark.parametrize("shared", [False, True])
def test_first_weights_are_orthogonal_with_the_gains_of_the_paper(shared: bool) -> None:
    network = make_network(shared=shared)
    for layer in linear_layers(network):
        gain = {4: 0.01, 1: 1.0}.get(layer.out_features, math.sqrt(2.0))
        weight = layer.weight / gain
        small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(small, torch.eye(len(small)), rtol=0.0, atol=1e-4)
        assert (layer.bias == 0.0).all()
    assert len(linear_layers(network)) == (4 if shared else 6)


def test_convolutions_are_orthogonal_too() -> None:
    (conv,) = [part for part in make_network(IMAGE, shared=True).modules() if isinstance(part, nn.Conv2d)]
    weight = conv.weight.flatten(1) / math.sqrt(2.0)  # 16 filters of 9 numbers
    torch.testing.assert_close(weight.T @ weight, torch.eye(9), rtol=0.0, atol=1e-4)


def test_without_orthogonal_weights_they_are_pytorchs() -> None:
    network, plain = make_network(orthogonal=False), make_network()
    assert any((layer.bias != 0.0).any() for layer in linear_layers(network))
    assert not torch.equal(linear_layers(network)[0].weight, linear_layers(plain)[0].weight)


def test_the_first_policy_hardly_prefers_any_action() -> None:
    outputs = make_network()(some_obs(rows=200))
    probabilities = torch.softmax(outputs[:, :4], 1)
    torch.testing.assert_close(probabilities, torch.full((200, 4), 0.25), rtol=0.0, atol=0.01)


def test_deviations_begin_at_their_setting_and_do_not_depend_on_the_observation() -> None:
    network = make_network(policy_dim=2, log_std_init=-0.7)
    outputs = network(some_obs())
    torch.testing.assert_close(outputs[:, 2:4], torch.full((7, 2), -0.7))
    (row,) = [parameter for name, parameter in network.named_parameters() if name.endswith("row")]
    assert row.shape == (2,)  # learnt, one for each number of an action


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_activation_is_the_settings(activation: str) -> None:
    network = build_ppo(make_ppo_setup(activation=activation))._network.module
    kinds = {type(part) for part in network.modules()} & {nn.Tanh, nn.ReLU}
    assert kinds == {{"tanh": nn.Tanh, "relu": nn.ReLU}[activation]}


@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete([2, 3]), MultiBinary((2, 2)), Box(-1.0, 1.0, (2, 2))])
def test_the_network_fits_the_kind_of_action(action: Any) -> None:
    outputs = {Discrete: 3, MultiDiscrete: 5, MultiBinary: 4, Box: 2 * 4}[type(action)]
    network = build_ppo(make_ppo_setup(action=action))._network.module
    assert network(some_obs()).shape == (7, outputs + 1)


def test_without_hidden_layers_it_is_linear() -> None:
    network = MLPActorCritic(lambda: build_encoder(VECTOR), 2, ())
    assert [layer.in_features for layer in linear_layers(network)] == [3, 3]


@pytest.mark.parametrize("rows", [1, 8, 3_000])  # the last is above the limit for numpy
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("part", [lambda network: network, lambda network: network.policy], ids=["whole", "policy"])
def test_fast_acting_equals_the_network(part: Callable[[Any], nn.Module], shared: bool, rows: int) -> None:
    network = moved(make_network(shared=shared, log_std_init=-0.5)).requires_grad_(False)
    forward = fast_forward(part(network), "cpu")
    assert forward is not None
    obs = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    output = forward(obs.numpy())
    np.testing.assert_allclose(output, part(network)(obs).numpy(), rtol=1e-4, atol=1e-5)
    assert output.dtype == np.float32


def test_fast_acting_follows_the_parameters() -> None:
    algorithm = build_ppo(make_ppo_setup(action=Box(-1.0, 1.0, (2,), np.float32), acceleration="compile"))
    obs = some_obs().numpy()
    before = algorithm._policy(obs).copy()
    algorithm._state["params"].add_(0.3)
    expected = algorithm._network.module(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(algorithm._policy(obs), expected[:, :-1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(algorithm._policy(obs), before)
