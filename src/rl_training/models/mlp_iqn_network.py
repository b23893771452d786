"""The quantile function of the return as a network: it maps any fraction to the value at that fraction."""

from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.models.layers import PLAIN, CosineEmbedding, HeadStyle, action_layers, constants, mlp


class MLPIQNetwork(nn.Module):
    """(batch, *obs), (batch, n) fractions -> (batch, actions, n) values, and the fractions.

    Without fractions, it uses `num_quantiles` evenly spaced ones; the mean of their values is the Q-value.

    As in the paper, fractions are combined with the features of a convolutional encoder, and the hidden layers follow.
    If the encoder has no parameters, the hidden layers compute the features, and only the output (with dueling streams,
    the last hidden layer too) is computed for each fraction.
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
        midpoints = constants(num_quantiles, lambda i: (i + 0.5) / num_quantiles)
        self.register_buffer("midpoints", midpoints, persistent=False)

    def forward(self, obs: Tensor, taus: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if taus is None:
            taus = self.midpoints[None]  # one row for all: their embedding is computed once
        return self.quantiles(self.trunk(obs), taus), taus

    def quantiles(self, features: Tensor, taus: Tensor) -> Tensor:
        """Return the values of every action at `taus`: (batch, features), (batch or 1, n) -> (batch, actions, n)."""
        combined = features[:, None] * self.embedding(taus)  # (batch, n, features)
        values: Tensor = self.head(combined).transpose(1, 2)
        return values
