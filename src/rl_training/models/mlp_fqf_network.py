"""Quantile values at fractions that the network proposes for each state."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.layers import PLAIN, HeadStyle
from rl_training.models.mlp_iqn_network import MLPIQNetwork

# A lower bound on each width, as a share of an even one: if one fraction covers nearly all of [0, 1], the others become
# meaningless and quantiles explode.
EVEN_SHARE = 0.02


class FQFOutput(NamedTuple):
    """`values`: (batch, actions, n) at the midpoints; `taus`: (batch, n + 1) from 0 to 1; `tau_hats`: (batch, n).

    `entropy`: (batch,) of the widths; `edge_values`: (batch, actions, n - 1) at the inner taus, if requested.
    """

    values: Tensor
    taus: Tensor
    tau_hats: Tensor
    entropy: Tensor
    edge_values: Tensor | None

    @property
    def widths(self) -> Tensor:
        """(batch, n): the part of [0, 1] that each midpoint represents, without gradient."""
        return (self.taus[:, 1:] - self.taus[:, :-1]).detach()

    @property
    def q_values(self) -> Tensor:
        """(batch, actions): values weighted by the widths of their fractions."""
        return (self.widths[:, None] * self.values).sum(2)


class MLPFQFNetwork(nn.Module):
    """(batch, *obs) -> FQFOutput: an IQN and a fraction proposal on its features.

    With `taus`, (batch, n + 1), it uses their midpoints instead of its own proposal.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        encoder: nn.Module | None = None,
        *,
        num_quantiles: int = 32,
        embedding_dim: int = 64,
        style: HeadStyle = PLAIN,
    ) -> None:
        super().__init__()
        self.quantile = MLPIQNetwork(
            obs_dim,
            action_dim,
            hidden_sizes,
            encoder,
            num_quantiles=num_quantiles,
            embedding_dim=embedding_dim,
            style=style,
        )
        self.fraction = nn.Linear(self.quantile.features, num_quantiles)  # the last parameters: FQF splits them off
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights of the proposal, as at the start: fractions are then nearly even."""
        nn.init.xavier_uniform_(self.fraction.weight, gain=0.01)
        nn.init.zeros_(self.fraction.bias)

    def forward(self, obs: Tensor, taus: Tensor | None = None, edges: bool = False) -> FQFOutput:
        features = self.quantile.trunk(obs)
        # The fractions' loss must not reach the features.
        widths = self.fraction(features.detach()).softmax(1) * (1.0 - EVEN_SHARE)
        widths = widths + EVEN_SHARE / widths.shape[1]
        entropy = -(widths * widths.log()).sum(1)
        if taus is None:
            inner = widths[:, :-1].cumsum(1)  # the sum of all widths is 1 up to rounding; exactly 1 is used
            taus = torch.cat((torch.zeros_like(inner[:, :1]), inner, torch.ones_like(inner[:, :1])), 1)
        tau_hats = (taus[:, 1:] + taus[:, :-1]) / 2.0
        values = self.quantile.quantiles(features, tau_hats.detach())  # the values' loss must not reach the fractions
        edge_values = None
        if edges:
            with torch.no_grad():
                edge_values = self.quantile.quantiles(features, taus[:, 1:-1])
        return FQFOutput(values, taus, tau_hats, entropy, edge_values)
