"""The return's quantile function as a network of its own: any fraction in, the value at that fraction out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.layers import PLAIN, CosineEmbedding, HeadStyle, action_layers, mlp


class MLPIQNetwork(nn.Module):
    """(batch, *obs), (batch, n) fractions -> (batch, actions, n) values, and the fractions.

    Without fractions: at `num_quantiles` evenly spaced ones, whose mean is the Q-value.

    Fractions meet the features of a convolutional encoder, as in the paper: the hidden layers come after. Where the
    encoder learns nothing, the hidden layers make the features, and only the output (with dueling streams, the last
    hidden layer too) is computed for each fraction.
    """

    midpoints: Tensor

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
        encoder = encoder or nn.Identity()
        learns = any(True for _ in encoder.parameters())
        num_shared = 0 if learns else len(hidden_sizes) - style.dueling
        shared, own = hidden_sizes[:num_shared], hidden_sizes[num_shared:]
        self.features = shared[-1] if shared else obs_dim
        hidden = mlp(obs_dim, shared, None, layer_norm=style.layer_norm, residual=style.residual)
        self.trunk = nn.Sequential(encoder, *hidden)
        self.embedding = CosineEmbedding(embedding_dim, self.features)
        self.head = nn.Sequential(*action_layers(self.features, own, action_dim, style=style))
        midpoints = (torch.arange(num_quantiles) + 0.5) / num_quantiles
        self.register_buffer("midpoints", midpoints, persistent=False)

    def forward(self, obs: Tensor, taus: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if taus is None:
            taus = self.midpoints[None]  # one row for all: their embedding is computed once
        return self.quantiles(self.trunk(obs), taus), taus

    def quantiles(self, features: Tensor, taus: Tensor) -> Tensor:
        """Values of every action at the fractions: (batch, features), (batch or 1, n) -> (batch, actions, n)."""
        met = features[:, None] * self.embedding(taus)  # (batch, n, features)
        values: Tensor = self.head(met).transpose(1, 2)
        return values
