"""Batch renormalisation: features are normalised by the moments of the batch, corrected by running ones (Ioffe 2017).

The running moments are no parameters: gradients and optimizers do not see them. A network's are one flat vector beside
its parameters, which a pure step receives and returns like any other part of its state.
"""

from itertools import chain

import torch
from torch import Tensor, nn

EPS = 1e-3  # added to variances
MAX_SCALE, MAX_SHIFT = 3.0, 5.0  # bounds of the correction: of the ratio of deviations, and of the distance of means
_TINY = 1e-12  # keeps the gradient of a root at 0 finite: a ReLU may be 0 for the whole batch


class BatchRenorm(nn.Module):
    """Normalisation of (batch, size), or of (members, batch, size) with moments for each member of an ensemble.

    Called as a module, it normalises by the running moments; `by_batch` is the way in training.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, *members: int) -> None:
        super().__init__()
        shape = (*members, 1, size)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape), persistent=False)
        self.register_buffer("variance", torch.ones(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._normalized(x, self.mean, self.variance)

    def by_batch(self, x: Tensor, corrects: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised input, and the mean and (biased) variance of the batch.

        Where `corrects`, 0-d bool, is false, the moments are those of the batch, as in batch normalisation. Gradients
        flow through them; the correction is a constant.
        """
        variance, mean = torch.var_mean(x, dim=-2, correction=0, keepdim=True)
        running_std = (self.variance + EPS).sqrt()
        scale = ((variance.detach() + EPS).sqrt() / running_std).clamp(1.0 / MAX_SCALE, MAX_SCALE)
        shift = ((mean.detach() - self.mean) / running_std).clamp(-MAX_SHIFT, MAX_SHIFT)
        corrected_mean = mean - shift * (variance + _TINY).sqrt() / scale
        corrected_variance = variance / scale.square()
        output = self._normalized(
            x, torch.where(corrects, corrected_mean, mean), torch.where(corrects, corrected_variance, variance)
        )
        return output, mean, variance

    def _normalized(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self.weight * (x - mean) / (variance + EPS).sqrt() + self.bias


class Renormalized(nn.Sequential):
    """Layers, some of them `BatchRenorm`: by their running moments, or by those of the batch if `corrects` is given."""

    def forward(self, x: Tensor, corrects: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output and, in training, the moments of the batch, laid out as those of `FlatMoments`."""
        moments: list[Tensor] = []
        for layer in self:
            if corrects is not None and isinstance(layer, BatchRenorm):
                x, mean, variance = layer.by_batch(x, corrects)
                moments += [mean, variance]
            else:
                x = layer(x)
        return x if corrects is None else (x, torch.cat([values.reshape(-1) for values in moments]))


class FlatMoments:
    """The running moments of a network as views on one flat vector, `self.values`: mean and variance of each layer.

    Writing into it changes what the network does, like the parameters of a `FlatModule`.
    """

    def __init__(self, module: nn.Module, values: Tensor | None = None) -> None:
        """`values`: the vector to use; by default, a new one with the moments of the layers."""
        self._layers = {name: part for name, part in module.named_modules() if isinstance(part, BatchRenorm)}
        moments = list(chain.from_iterable((layer.mean, layer.variance) for layer in self._layers.values()))
        self._shapes, self._sizes = [values.shape for values in moments], [values.numel() for values in moments]
        self.use(torch.cat([part.reshape(-1) for part in moments]) if values is None else values)

    def use(self, values: Tensor) -> None:
        """Make the moments of the layers views on another vector, in place of `self.values`."""
        self.values: Tensor = values
        views = self.named(values)
        for name, layer in self._layers.items():
            layer.mean, layer.variance = views[f"{name}.mean"], views[f"{name}.variance"]

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """Return views on the flat vector by the names of the module's buffers."""
        names = (f"{name}.{moment}" for name in self._layers for moment in ("mean", "variance"))
        parts = zip(names, torch.split(values, self._sizes), self._shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}
