"""Quantiles of the distribution of the return for every action."""

from collections.abc import Sequence

from torch import nn

from rl_training.models.layers import PLAIN, HeadStyle, action_layers


class MLPQRQNetwork(nn.Sequential):
    """(batch, *obs) -> (batch, actions, quantiles): values at the fractions (i + 0.5) / quantiles."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        encoder: nn.Module | None = None,
        *,
        num_quantiles: int = 51,
        style: HeadStyle = PLAIN,
    ) -> None:
        layers = action_layers(obs_dim, hidden_sizes, action_dim, num_quantiles, style=style)
        super().__init__(encoder or nn.Identity(), *layers, nn.Unflatten(1, (action_dim, num_quantiles)))
