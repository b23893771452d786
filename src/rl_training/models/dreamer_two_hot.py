"""Numbers of any size as probabilities of bins: DreamerV3 predicts rewards and values in this way.

The bins are symexp of evenly spaced numbers: close together around 0, far apart where numbers are large. A number
between two bins is the distribution over these two whose mean is the number. Hafner et al. 2025, Mastering diverse
control tasks through world models, section "Critic learning".
"""

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """Compute sign(x) log(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Compute sign(x) (e^|x| - 1), the inverse of symlog."""
    return x.sign() * x.abs().expm1()


def make_bins(count: int, limit: float) -> Tensor:
    """Return an odd number of bins from -symexp(limit) to symexp(limit), exactly symmetric about 0."""
    positive = symexp(torch.linspace(0.0, limit, count // 2 + 1, dtype=torch.float64)).float()
    return torch.cat((-positive.flip(0), positive[1:]))


def neighbours(x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each number the index of the bin below it, and the weight of the bin above it; both shaped like `x`.

    Numbers beyond the last bins are clipped to them.
    """
    x = x.clamp(bins[0], bins[-1])
    below = (torch.bucketize(x, bins, right=True) - 1).clamp(0, len(bins) - 2)
    return below, (x - bins[below]) / (bins[below + 1] - bins[below])


def two_hot(x: Tensor, bins: Tensor) -> Tensor:
    """Return the distributions whose means are the numbers: (...) -> (..., bins)."""
    below, share = neighbours(x, bins)
    place = torch.arange(len(bins), device=x.device) - below[..., None]
    # Not `scatter`, and no `gather` in the loss: their memory accesses are slow in the deterministic mode of a GPU.
    return torch.where(place == 0, 1.0 - share[..., None], torch.where(place == 1, share[..., None], 0.0))


def two_hot_loss(logits: Tensor, x: Tensor, bins: Tensor) -> Tensor:
    """Compute the cross-entropy of the predicted distributions, (..., bins), with those of the numbers: (...)."""
    return -(two_hot(x, bins) * logits.log_softmax(-1)).sum(-1)


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the means of the predicted distributions: (..., bins) -> (...).

    Bins of opposite sign are added in pairs: the largest are huge, and equal probabilities must result in exactly 0.
    """
    probs, middle = logits.softmax(-1), len(bins) // 2
    pairs = probs[..., middle + 1 :] - probs[..., :middle].flip(-1)
    return (pairs * bins[middle + 1 :]).sum(-1)
