"""Losses and projections of return distributions, as pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor


def quantile_huber(
    values: Tensor, targets: Tensor, taus: Tensor, kappa: float, probabilities: Tensor | None = None
) -> Tensor:
    """Return the quantile regression loss of each row: (batch, n), (batch, m), taus (batch, n) or (n,) -> (batch,).

    |tau_i - 1{u < 0}| * Huber_kappa(u) / kappa with u = target_j - value_i; kappa = 0: |tau_i - 1{u < 0}| * |u|. Mean
    over targets, sum over values: each value's gradient then depends on neither count. Dabney et al. 2018, equation 10.
    `probabilities`, (batch, m), are those of the targets; without them all are equally likely.
    """
    errors = targets[:, None, :] - values[:, :, None]  # (batch, values, targets)
    weights = (taus[..., None] - (errors.detach() < 0.0).to(errors.dtype)).abs()
    if kappa == 0.0:
        losses = errors.abs()
    else:
        losses = F.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=kappa) / kappa
    losses = weights * losses
    expected = losses.mean(2) if probabilities is None else (losses * probabilities[:, None, :]).sum(2)
    return expected.sum(1)


def project(probabilities: Tensor, positions: Tensor, atoms: Tensor) -> Tensor:
    """Project probability mass from any positions to evenly spaced atoms: (batch, n), (batch, n), (m,) -> (batch, m).

    Mass between two atoms is split so that its mean stays; mass beyond an end goes to that end.
    Bellemare et al. 2017, equation 7.
    """
    last = len(atoms) - 1
    places = (positions.clamp(atoms[0], atoms[-1]) - atoms[0]) * (last / (atoms[-1] - atoms[0]))  # in [0, last]
    # On a GPU the order in which `scatter_add` adds depends on timing.
    return _spread_densely(probabilities, places, last) if places.is_cuda else _spread(probabilities, places, last)


def _spread(probabilities: Tensor, places: Tensor, last: int) -> Tensor:
    # The upper end belongs to the last gap: a mass exactly on an atom is then counted once, there too.
    lower = places.floor().clamp(max=last - 1)
    upper_share = places - lower
    index = lower.long()
    shape = (len(probabilities), last + 1)
    projected = torch.zeros(shape, dtype=probabilities.dtype, device=probabilities.device)
    projected = projected.scatter_add(1, index, probabilities * (1.0 - upper_share))
    return projected.scatter_add(1, index + 1, probabilities * upper_share)


def _spread_densely(probabilities: Tensor, places: Tensor, last: int) -> Tensor:
    distances = (places[:, :, None] - torch.arange(last + 1, device=places.device)).abs()
    return (probabilities[:, :, None] * (1.0 - distances).clamp(min=0.0)).sum(1)
