"""Building blocks shared by the networks."""

from collections.abc import Sequence

from torch import nn


def mlp(
    in_features: int, hidden_sizes: Sequence[int], out_features: int, *, layer_norm: bool = False
) -> list[nn.Module]:
    """Give the layers of a ReLU network: (batch, in_features) -> (batch, out_features)."""
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [nn.Linear(in_features, size), *([nn.LayerNorm(size)] if layer_norm else []), nn.ReLU()]
        in_features = size
    return [*layers, nn.Linear(in_features, out_features)]
