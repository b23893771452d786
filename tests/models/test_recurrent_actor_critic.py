"""Recurrent cells: the values of PyTorch's, resets inside a sequence, and one step after the other."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from rl_training.core.spaces import Spaces
from rl_training.hparams.recurrent_ppo import CellKind, RecurrentPPOHParams
from rl_training.models.recurrent_actor_critic import RecurrentActorCritic, RecurrentCells, carry_sizes

SPACES = Spaces(Box(-1.0, 1.0, (3,), np.float32), Discrete(2), False)
KINDS: list[CellKind] = ["lstm", "gru"]


def no_start(steps: int, envs: int) -> Tensor:
    return torch.zeros((steps, envs), dtype=torch.bool)


def as_pytorch(cells: RecurrentCells, number: int) -> nn.LSTM | nn.GRU:
    """PyTorch's own layer with the weights of one cell."""
    kinds: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
    layer = kinds[cells.kind](cells.input_weight.shape[1], cells.size)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(cells.input_weight[number].T)
        layer.weight_hh_l0.copy_(cells.hidden_weight[number].T)
        layer.bias_ih_l0.copy_(cells.bias[number, 0])
        layer.bias_hh_l0.zero_()
        if cells.candidate_bias is not None:
            layer.bias_hh_l0[2 * cells.size :] = cells.candidate_bias[number, 0]
    return layer  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_each_cell_computes_what_pytorchs_layer_does(kind: CellKind) -> None:
    torch.manual_seed(0)
    cells = RecurrentCells(kind, 2, 3, 4, orthogonal=False)
    features = torch.randn(2, 5, 7, 3)
    outputs, states = cells(features, torch.zeros(7, cells.state_size), no_start(5, 7))
    per_cell = states.unflatten(2, (2, -1))  # (steps, envs, cells, numbers)
    for number in range(2):
        expected, last = as_pytorch(cells, number)(features[number])
        torch.testing.assert_close(outputs[number], expected)
        after = torch.cat([part[0] for part in last], 1) if kind == "lstm" else last[0]
        torch.testing.assert_close(per_cell[-1, :, number], after)


@pytest.mark.parametrize("kind", KINDS)
def test_an_lstm_and_a_gru_of_one_unit_by_hand(kind: CellKind) -> None:
    # All weights 1, biases 0, input 1, state h = 0.5 (LSTM: c = 2). Every gate is s = sigmoid(1.5), the candidate
    # tanh(1.5). LSTM: c' = 2 s + s tanh(1.5), h' = s tanh(c'). GRU: n = tanh(1 + s * 0.5), h' = (1 - s) n + s * 0.5.
    cells = RecurrentCells(kind, 1, 1, 1, orthogonal=False)
    with torch.no_grad():
        for name, parameter in cells.named_parameters():
            parameter.fill_(0.0 if "bias" in name else 1.0)
    state = torch.tensor([[0.5, 2.0]] if kind == "lstm" else [[0.5]])
    outputs, states = cells(torch.ones(1, 1, 1, 1), state, no_start(1, 1))
    gate = 1.0 / (1.0 + np.exp(-1.5))
    memory = 2.0 * gate + gate * np.tanh(1.5)
    gru = (1.0 - gate) * np.tanh(1.0 + gate * 0.5) + gate * 0.5
    expected = [gate * np.tanh(memory), memory] if kind == "lstm" else [gru]
    assert states.flatten().tolist() == pytest.approx(expected, rel=1e-5)
    assert outputs.item() == pytest.approx(expected[0], rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_inside_a_sequence_is_the_start_of_an_episode(kind: CellKind) -> None:
    # Env 0 starts again at step 2, env 1 goes on: env 0 then computes what a sequence from zeros would.
    torch.manual_seed(0)
    cells = RecurrentCells(kind, 1, 3, 4, orthogonal=True)
    features, state = torch.randn(1, 5, 2, 3), torch.randn(2, cells.state_size)
    starts = no_start(5, 2)
    starts[2, 0] = True
    outputs, states = cells(features, state, starts)
    whole, _ = cells(features, state, no_start(5, 2))
    alone, after = cells(features[:, 2:, :1], torch.zeros(1, cells.state_size), no_start(3, 1))
    torch.testing.assert_close(outputs[:, :, 1], whole[:, :, 1])
    torch.testing.assert_close(outputs[:, :2, 0], whole[:, :2, 0])
    torch.testing.assert_close(outputs[:, 2:, :1], alone)
    torch.testing.assert_close(states[2:, :1], after)


@pytest.mark.parametrize("shared", ["yes", "no"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_one_by_one_equal_a_sequence(kind: CellKind, shared: Any) -> None:
    torch.manual_seed(0)
    network = RecurrentActorCritic(SPACES, RecurrentPPOHParams(cell=kind, cell_size=4, shared_trunk=shared))
    obs, state = torch.randn(4 * 2, 3), torch.randn(2, network.cells.state_size)
    outputs, states = network(obs, state, no_start(4, 2))
    policy = network.policy()
    policy_state = state[:, : policy.cells.state_size]
    for step in range(4):
        now, after = network(obs[2 * step : 2 * step + 2], state, no_start(1, 2))
        torch.testing.assert_close(now, outputs[2 * step : 2 * step + 2])
        logits, policy_state = policy(obs[2 * step : 2 * step + 2], policy_state)
        torch.testing.assert_close(logits, now[:, :2])
        state = after[0]
        torch.testing.assert_close(state, states[step])
        torch.testing.assert_close(policy_state, state[:, : policy.cells.state_size])


def test_the_exported_policy_reads_the_weights_that_learn() -> None:
    network = RecurrentActorCritic(SPACES, RecurrentPPOHParams(cell_size=4))
    policy = network.policy()
    with torch.no_grad():
        network.cells.hidden_weight.fill_(7.0)
    assert torch.all(policy.cells.hidden_weight == 7.0)


@pytest.mark.parametrize(
    ("hparams", "names"),
    [
        ({}, ["policy_hidden", "policy_cell", "value_hidden", "value_cell"]),
        ({"cell": "gru"}, ["policy_hidden", "value_hidden"]),
        ({"cell": "gru", "shared_trunk": "yes"}, ["policy_hidden"]),
    ],
)
def test_the_carry_names_the_columns_of_the_state(hparams: dict[str, Any], names: list[str]) -> None:
    values = RecurrentPPOHParams(cell_size=4, **hparams)
    sizes = carry_sizes(SPACES, values)
    assert list(sizes) == names
    assert sum(sizes.values()) == RecurrentActorCritic(SPACES, values).cells.state_size


def test_a_shared_trunk_has_one_encoder_and_cell() -> None:
    image = Spaces(Box(0, 255, (12, 12, 1), np.uint8), Discrete(2), False)
    network = RecurrentActorCritic(image, RecurrentPPOHParams(cell_size=4))  # auto: there is an image
    assert (len(network.encoders), network.cells.num_cells) == (1, 1)
    outputs, states = network(torch.zeros(6, 12, 12, 1, dtype=torch.uint8), torch.zeros(2, 8), no_start(3, 2))
    assert (outputs.shape, states.shape) == ((6, 3), (3, 2, 8))
