"""Building blocks shared by the networks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mlp(
    in_features: int,
    hidden_sizes: Sequence[int],
    out_features: int | None,
    *,
    layer_norm: bool = False,
    activation: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Give the layers of a network: (batch, in_features) -> (batch, out_features), or None: -> the last hidden ones."""
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [nn.Linear(in_features, size), *([nn.LayerNorm(size)] if layer_norm else []), activation()]
        in_features = size
    return layers if out_features is None else [*layers, nn.Linear(in_features, out_features)]


class Parallel(nn.ModuleList):
    """Several networks on one input, their outputs side by side: (batch, *in) -> (batch, sum of outputs)."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self], dim=1)


class LearnedRow(nn.Module):
    """The same learnt numbers whatever the input: (batch, *in) -> (batch, size)."""

    def __init__(self, size: int, initial: float) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.full((size,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return self.row.expand(len(x), -1)
