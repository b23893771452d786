"""Policy and value of an episode so far: encoder, recurrent cell, hidden layers.

    h_t = cell(h_{t-1} (1 - start_t), encoder(o_t))

Policy and value have a cell of their own, or one that both read. All cells of a network are computed together: a loop
over the steps is many small operations, and their number is its cost.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.core.spaces import Spaces, observation_kind
from rl_training.hparams.recurrent_ppo import CellKind, RecurrentPPOHParams
from rl_training.models.distributions import Gaussian, build_distribution
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import LearnedRow, Parallel, init_orthogonal, mlp

GATES = {"lstm": 4, "gru": 3}
STATES = {"lstm": ("hidden", "cell"), "gru": ("hidden",)}  # what a cell remembers


class RecurrentCells(nn.Module):
    """LSTM (Hochreiter and Schmidhuber 1997; with forget gates) or GRU (Cho et al. 2014) cells side by side.

    The gates are in PyTorch's order: input, forget, candidate, output; reset, update, candidate.
    """

    def __init__(self, kind: CellKind, num_cells: int, in_features: int, size: int, *, orthogonal: bool) -> None:
        super().__init__()
        self.kind, self.num_cells, self.size = kind, num_cells, size
        gates = GATES[kind]
        self.input_weight = nn.Parameter(torch.zeros(num_cells, in_features, gates * size))
        self.hidden_weight = nn.Parameter(torch.zeros(num_cells, size, gates * size))
        self.bias = nn.Parameter(torch.zeros(num_cells, 1, gates * size))
        # GRU: the reset gate multiplies the part of the candidate that comes from the state, with its own bias.
        self.candidate_bias = nn.Parameter(torch.zeros(num_cells, 1, size)) if kind == "gru" else None
        self._init_weights(orthogonal)

    @torch.no_grad()
    def _init_weights(self, orthogonal: bool) -> None:
        """Initialise each gate by an orthogonal matrix and zero biases, or all as PyTorch does."""
        if self.bias.is_meta:  # the network is only measured; `copy_` there would import sympy
            return
        if orthogonal:
            for stacked in (self.input_weight, self.hidden_weight):
                for weight in stacked:
                    for gate in weight.split(self.size, 1):
                        gate.copy_(nn.init.orthogonal_(torch.empty_like(gate)))
            return
        bound = 1.0 / math.sqrt(self.size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @property
    def state_size(self) -> int:
        """Numbers that all cells remember per env."""
        return len(STATES[self.kind]) * self.num_cells * self.size

    def first(self) -> "RecurrentCells":
        """Return the first cell, with the same parameters."""
        first = copy.copy(self)
        first.num_cells, first._parameters = 1, {}
        for name, parameter in self.named_parameters():
            first.register_parameter(name, nn.Parameter(parameter[:1], requires_grad=parameter.requires_grad))
        return first

    def forward(self, features: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, (cells, steps, envs, size), and the state after each step, (steps, envs, state_size).

        `features`: (cells, steps, envs, in_features). `state`: (envs, state_size), before the first step. `starts`:
        (steps, envs), whether a step is the first of an episode: the state before it is then zeros.
        """
        cells, steps, envs, _ = features.shape
        inputs = torch.bmm(features.flatten(1, 2), self.input_weight) + self.bias
        keep = (~starts).to(inputs.dtype)[:, None, :, None]  # (steps, 1, envs, 1)
        parts = state.unflatten(1, (cells, -1, self.size)).permute(2, 1, 0, 3)  # (parts, cells, envs, size)
        hidden, memory = parts[0], parts[-1]
        outputs, memories = [], list[Tensor]()
        # `unbind`, because the backward pass of indexing writes a tensor of all steps at each step.
        for now, kept in zip(inputs.unflatten(1, (steps, envs)).unbind(1), keep.unbind(0), strict=True):
            if self.kind == "lstm":
                hidden, memory = self._lstm(now, hidden * kept, memory * kept)
                memories.append(memory)
            else:
                hidden = self._gru(now, hidden * kept)
            outputs.append(hidden)
        read = torch.stack(outputs, 1)
        parts = torch.stack([read, torch.stack(memories, 1)] if memories else [read], 3)
        return read, parts.permute(1, 2, 0, 3, 4).flatten(2)  # from (cells, steps, envs, parts, size)

    def _lstm(self, inputs: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gates = torch.baddbmm(inputs, hidden, self.hidden_weight)
        write, forget, candidate, read = gates.chunk(4, -1)
        memory = forget.sigmoid() * memory + write.sigmoid() * candidate.tanh()
        return read.sigmoid() * memory.tanh(), memory

    def _gru(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        assert self.candidate_bias is not None
        from_inputs, candidate = inputs.split((2 * self.size, self.size), -1)
        from_hidden, recalled = torch.bmm(hidden, self.hidden_weight).split((2 * self.size, self.size), -1)
        reset, update = (from_inputs + from_hidden).sigmoid().chunk(2, -1)
        candidate = (candidate + reset * (recalled + self.candidate_bias)).tanh()
        return torch.lerp(candidate, hidden, update)


class RecurrentActorCritic(nn.Module):
    """Observations of consecutive steps -> the parameters of the policy's distribution, then the value."""

    def __init__(self, spaces: Spaces, hparams: RecurrentPPOHParams) -> None:
        super().__init__()
        distribution = build_distribution(spaces.action)
        is_gaussian = isinstance(distribution, Gaussian)
        policy_dim = distribution.num_outputs // (2 if is_gaussian else 1)
        self.num_cells = num_cells(spaces, hparams)
        encoders = [build_encoder(spaces.observation) for _ in range(self.num_cells)]
        self.encoders = nn.ModuleList(encoder for encoder, _ in encoders)
        orthogonal, size, hidden_sizes = hparams.orthogonal_init, hparams.cell_size, hparams.hidden_sizes
        self.cells = RecurrentCells(hparams.cell, self.num_cells, encoders[0][1], size, orthogonal=orthogonal)

        def head(outputs: int) -> list[nn.Module]:
            activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[hparams.activation]
            hidden = mlp(size, hidden_sizes, None, activation=activation, residual=hparams.network == "simba")
            return [*hidden, nn.Linear(hidden_sizes[-1] if hidden_sizes else size, outputs)]

        actor, critic = head(policy_dim), head(1)
        constants = [LearnedRow(policy_dim, hparams.log_std_init)] if is_gaussian else []
        self.actor, self.critic = Parallel(nn.Sequential(*actor), *constants), nn.Sequential(*critic)
        if orthogonal:
            for part in (self.encoders, self.actor, self.critic):
                init_orthogonal(part, math.sqrt(2.0))
            init_orthogonal(actor[-1], 0.01)  # the first policy is nearly uniform, as PPO's
            init_orthogonal(critic[-1], 1.0)

    def forward(self, obs: Any, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, (steps * envs, outputs + 1), and the state after each step, (steps, envs, state_size).

        `obs`: (steps * envs, *shape), step by step. `state`, `starts`: as for `RecurrentCells`.
        """
        features = torch.stack([encoder(obs) for encoder in self.encoders])
        read, states = self.cells(features.unflatten(1, starts.shape), state, starts)
        rows = read.flatten(1, 2)  # the value reads the last cell, which is also the policy's if there is one
        return torch.cat((self.actor(rows[0]), self.critic(rows[-1])), 1), states

    def policy(self) -> "RecurrentPolicy":
        """Return the part that the policy needs; it has the same parameters."""
        return RecurrentPolicy(self.encoders[0], self.cells.first(), self.actor)


class RecurrentPolicy(nn.Module):
    """One step of the policy: (batch, *obs), (batch, state_size) -> (batch, outputs), (batch, state_size)."""

    def __init__(self, encoder: nn.Module, cells: RecurrentCells, actor: nn.Module) -> None:
        super().__init__()
        self.encoder, self.cells, self.actor = encoder, cells, actor

    def forward(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(obs)[None, None]
        read, states = self.cells(features, state, no_starts(state))
        return self.actor(read[0, 0]), states[0]


def no_starts(state: Tensor) -> Tensor:
    """Return `starts` for one step in these states, (envs, numbers), of episodes that go on."""
    return torch.zeros_like(state[None, :, 0], dtype=torch.bool)


def num_cells(spaces: Spaces, hparams: RecurrentPPOHParams) -> int:
    """Return 1 if policy and value share encoder and cell, else 2."""
    if hparams.shared_trunk == "auto":
        return 1 if observation_kind(spaces.observation) in ("image", "dict") else 2
    return 1 if hparams.shared_trunk == "yes" else 2


def carry_sizes(spaces: Spaces, hparams: RecurrentPPOHParams) -> dict[str, int]:
    """Return the parts of the carry, in the order in which they are columns of a state, and their numbers."""
    owners: Sequence[str] = ("policy", "value")[: num_cells(spaces, hparams)]
    return {f"{owner}_{part}": hparams.cell_size for owner in owners for part in STATES[hparams.cell]}
