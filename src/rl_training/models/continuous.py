"""An actor and an ensemble of critics: the networks of algorithms for continuous actions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.models.layers import StackedLayerNorm, StackedLinear, mlp

BuildEncoder = Callable[[], tuple[nn.Module, int]]  # returns an encoder and its number of features


class ContinuousActorCritic(nn.Module):
    """`actor`: (batch, *obs) -> (batch, outputs). `critics`: (batch, *obs), (batch, *action) -> (critics, batch).

    Each has its own encoder. `layer_norm` applies to the critics, whose values could diverge. `critic_hidden_sizes`:
    None: as the actor. `num_quantiles`: as in `CriticEnsemble`.
    """

    outputs_per_action: ClassVar[int]  # outputs of the actor for each number of an action
    norm_after_activation: ClassVar[bool] = False  # where `layer_norm` stands in the critics

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        num_critics: int = 2,
        num_quantiles: int | None = None,
        layer_norm: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        encoder, features = build_encoder()
        outputs = action_dim * self.outputs_per_action
        self.actor = nn.Sequential(encoder, *mlp(features, hidden_sizes, outputs, residual=residual))
        self.critics = CriticEnsemble(
            build_encoder,
            action_dim,
            hidden_sizes if critic_hidden_sizes is None else critic_hidden_sizes,
            num_critics=num_critics,
            num_quantiles=num_quantiles,
            layer_norm=layer_norm,
            norm_after_activation=self.norm_after_activation,
            residual=residual,
        )


class CriticEnsemble(nn.Module):
    """Several Q-functions that share only an encoder: (batch, *obs), (batch, *action) -> (critics, batch).

    `members`: compute only these. With `num_quantiles` the output is (critics, batch, quantiles).
    """

    def __init__(
        self,
        build_encoder: BuildEncoder,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        num_critics: int = 2,
        num_quantiles: int | None = None,
        layer_norm: bool = False,
        norm_after_activation: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, features = build_encoder()
        layers = mlp(
            features + action_dim,
            hidden_sizes,
            num_quantiles or 1,
            layer_norm=layer_norm,
            norm_after_activation=norm_after_activation,
            dense=partial(StackedLinear, num_critics),
            norm=partial(StackedLayerNorm, num_critics),
            residual=residual,
        )
        self.layers = nn.Sequential(*layers)
        self._is_distribution = num_quantiles is not None

    def forward(self, obs: Tensor, actions: Tensor, members: Tensor | slice | None = None) -> Tensor:
        inputs = torch.cat((self.encoder(obs), actions.reshape(len(actions), -1)), 1)
        if members is None:
            values: Tensor = self.layers(inputs)
        else:
            chosen = {name: stacked[members] for name, stacked in self.layers.named_parameters()}
            values = torch.func.functional_call(self.layers, chosen, (inputs,))
        return values if self._is_distribution else values.squeeze(2)
