"""An actor and an ensemble of critics: the networks of algorithms for continuous actions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.models.layers import Dropout, StackedLayerNorm, StackedLinear, mlp

BuildEncoder = Callable[[], tuple[nn.Module, int]]  # returns an encoder and its number of features


class ContinuousActorCritic(nn.Module):
    """`actor`: (batch, *obs) -> (batch, outputs). `critics`: (batch, *obs), (batch, *action) -> (critics, batch).

    Each has its own encoder. `layer_norm` applies to the critics, whose values could diverge. `critic_hidden_sizes`:
    None: as the actor. `num_quantiles`, `dropout`: as in `CriticEnsemble`.
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
        dropout: float = 0.0,
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
            dropout=dropout,
        )


class CriticEnsemble(nn.Module):
    """Several Q-functions that share only an encoder: (batch, *obs), (batch, *action) -> (critics, batch).

    `members`: compute only these. `masks`: 0 for the hidden units that `dropout`, a rate, drops in this call and 1 for
    the others, (critics, batch, units of all hidden layers); without masks nothing is dropped. With `num_quantiles` the
    output is (critics, batch, quantiles).
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
        dropout: float = 0.0,
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
            dropout=dropout > 0.0,
        )
        self.layers = nn.Sequential(*layers)
        self._is_distribution = num_quantiles is not None
        self._unit_counts, self._kept_share = list(hidden_sizes), 1.0 - dropout

    def forward(
        self, obs: Tensor, actions: Tensor, members: Tensor | slice | None = None, masks: Tensor | None = None
    ) -> Tensor:
        inputs = torch.cat((self.encoder(obs), actions.reshape(len(actions), -1)), 1)
        replaced: dict[str, Tensor] = {}
        if members is not None:
            replaced = {name: stacked[members] for name, stacked in self.layers.named_parameters()}
        if masks is not None:
            replaced |= self._dropout_factors(masks)
        values: Tensor = (
            torch.func.functional_call(self.layers, replaced, (inputs,)) if replaced else self.layers(inputs)
        )
        return values if self._is_distribution else values.squeeze(2)

    def _dropout_factors(self, masks: Tensor) -> dict[str, Tensor]:
        """Return the buffers of the dropout layers; kept units are scaled so that their mean stays."""
        names = [name for name, layer in self.layers.named_children() if isinstance(layer, Dropout)]
        factors = torch.split(masks.to(torch.float32) / self._kept_share, self._unit_counts, 2)
        return {f"{name}.factors": part for name, part in zip(names, factors, strict=True)}
