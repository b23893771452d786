"""LaProp with adaptive gradient clipping, DreamerV3's optimizer, on one flat vector of parameters.

LaProp divides by the root of the second moment before it averages, so that one large gradient cannot dominate the
average (Ziyin et al. 2020, LaProp: separating momentum and adaptivity in Adam). Adaptive clipping limits the gradient
of each weight tensor to a share of the norm of its weights (Brock et al. 2021, High-performance large-scale image
recognition without normalization).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.core.types import Metrics, State

MIN_NORM = 1e-3  # of weights; without it, weights that start at 0 would never move


def clip_adaptively(gradient: Tensor, params: Tensor, sizes: Sequence[int], share: float) -> tuple[Tensor, Tensor]:
    """Limit the norm of each tensor's gradient to `share` times that of its weights; return it and the norm before.

    `sizes`: the lengths of the tensors of which the flat vectors consist. The norm is that of the whole gradient.
    """
    norms, weights = (
        torch.stack([torch.linalg.vector_norm(part) for part in vector.split(list(sizes))])
        for vector in (gradient, params)
    )
    limits = share * weights.clamp(min=MIN_NORM)
    factors = limits / torch.maximum(norms, limits)
    expanded = [factor.expand(size) for factor, size in zip(factors.unbind(), sizes, strict=True)]
    return gradient * torch.cat(expanded), torch.linalg.vector_norm(norms)


def laprop(
    params: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    *,
    learning_rate: float | Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the new `(params, mean, square, count)` after one step of LaProp; the arguments are those of `adam`.

    `mean`: running mean of the scaled gradient.
    """
    count = count + 1
    square = beta2 * square + (1.0 - beta2) * gradient * gradient
    mean_correction = -torch.expm1(count * math.log(beta1))
    square_correction = -torch.expm1(count * math.log(beta2))
    step_size, scale = torch.stack((learning_rate / mean_correction, square_correction.rsqrt())).unbind()
    mean = torch.lerp(mean, gradient / (square.sqrt() * scale + eps), 1.0 - beta1)
    return params - step_size * mean, mean, square, count


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLaProp:
    """LaProp on an adaptively clipped gradient, with a linear warm-up of the learning rate.

    `sizes`: the lengths of the tensors in the flat vector. `warmup`: updates until the learning rate is reached; the
    first one has the share 1 / warmup of it.
    """

    sizes: Sequence[int]
    learning_rate: float
    warmup: int
    clip: float

    def state(self, params: Tensor) -> State:
        return {
            "params": params,
            "mean": torch.zeros_like(params),
            "square": torch.zeros_like(params),
            "count": torch.zeros((), dtype=torch.int64, device=params.device),
            "learning_rate": torch.tensor(self.learning_rate, device=params.device),
        }

    def step(self, gradient: Tensor, state: State) -> tuple[State, Metrics]:
        clipped, norm = clip_adaptively(gradient, state["params"], self.sizes, self.clip)
        share = ((state["count"] + 1) / max(1, self.warmup)).clamp(max=1.0)
        params, mean, square, count = laprop(
            state["params"],
            clipped,
            state["mean"],
            state["square"],
            state["count"],
            learning_rate=share * state["learning_rate"],
        )
        return {"params": params, "mean": mean, "square": square, "count": count}, {"grad_norm": norm}
