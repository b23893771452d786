"""Layers on the unit hypersphere (Lee et al. 2025, SimBaV2): features and the rows of all matrices have length 1.

No matrix has a bias. What changes lengths, scalers and interpolations, are vectors. With `members`, a layer holds one
copy per member of an ensemble: (batch, inputs), the same for all members, or (members, batch, inputs) ->
(members, batch, outputs).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EPS = 1e-8
CONSTANT = 3.0  # an additional number of each input, without which its length would be lost on the sphere
WIDENING = 4  # of a block


def unit(x: Tensor) -> Tensor:
    """Divide each row by its length."""
    return F.normalize(x, dim=-1, eps=_EPS)


class UnitLinear(nn.Module):
    """Linear layer whose rows, the weights into one output, have length 1; whoever changes them divides again."""

    def __init__(self, in_features: int, out_features: int, *members: int) -> None:
        super().__init__()
        weight = torch.empty(*members, out_features, in_features)
        for matrix in weight.view(-1, out_features, in_features):
            nn.init.orthogonal_(matrix)
        # Networks are measured on the meta device, where a division by a sum would import sympy.
        self.weight = nn.Parameter(weight if weight.is_meta else unit(weight))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT


class Scaler(nn.Module):
    """A learned factor per feature, which starts at `initial`. Adam's steps of it are multiplied by initial / scale."""

    def __init__(self, size: int, *members: int, initial: float, scale: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((*members, 1, size), scale))
        self._unit = initial / scale

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.values * self._unit)


class UnitEmbedding(nn.Module):
    """From any input to the sphere: n(s * W n([x; 3]))."""

    def __init__(self, in_features: int, size: int, *members: int) -> None:
        super().__init__()
        gain = math.sqrt(2.0 / size)
        self.linear = UnitLinear(in_features + 1, size, *members)
        self.scaler = Scaler(size, *members, initial=gain, scale=gain)

    def forward(self, x: Tensor) -> Tensor:
        x = unit(F.pad(x, (0, 1), value=CONSTANT))
        return unit(self.scaler(self.linear(x)))


class UnitBlock(nn.Module):
    """h <- n(h + a * (n(W2 relu(s * W1 h)) - h)): an interpolation on the sphere in place of a residual sum."""

    def __init__(self, size: int, *members: int, num_blocks: int) -> None:
        super().__init__()
        gain, hidden = math.sqrt(2.0 / size) / 2.0, WIDENING * size
        self.widen, self.narrow = UnitLinear(size, hidden, *members), UnitLinear(hidden, size, *members)
        self.scaler = Scaler(hidden, *members, initial=gain, scale=gain)
        self.interpolation = Scaler(size, *members, initial=1.0 / (num_blocks + 1), scale=1.0 / math.sqrt(size))

    def forward(self, x: Tensor) -> Tensor:
        change = unit(self.narrow(self.scaler(self.widen(x)).relu() + _EPS))  # _EPS: no row of zeros
        return unit(x + self.interpolation(change - x))


class UnitHead(nn.Module):
    """W_b (s * W_a h) + b: two linear layers without an activation, whose outputs have any length."""

    def __init__(self, size: int, outputs: int, *members: int) -> None:
        super().__init__()
        self.hidden, self.output = UnitLinear(size, size, *members), UnitLinear(size, outputs, *members)
        self.scaler = Scaler(size, *members, initial=1.0, scale=1.0)
        self.bias = nn.Parameter(torch.zeros(*members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.output(self.scaler(self.hidden(x))) + self.bias
        return output
