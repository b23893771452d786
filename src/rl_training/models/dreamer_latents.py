"""Categorical variables as unit vectors: the stochastic state of Dreamer's world models, and its policy's actions."""

import torch
from torch import Tensor


def mixed_log_probs(logits: Tensor, unimix: float) -> Tensor:
    """Log-probabilities of (1 - unimix) softmax + unimix uniform, over the last axis: none is ever 0."""
    return ((1.0 - unimix) * logits.softmax(-1) + unimix / logits.shape[-1]).log()


def draw_index(log_probs: Tensor, noise: Tensor) -> Tensor:
    """Draw a class by a number in [0, 1): that in which the cumulated probability passes it. (..., classes) -> (...)"""
    passed = (log_probs.exp().cumsum(-1) <= noise[..., None]).sum(-1)
    return passed.clamp(max=log_probs.shape[-1] - 1)  # rounding may leave the sum below the largest number


def unit_vectors(index: Tensor, size: int) -> Tensor:
    # Not `F.one_hot`, which looks at the values and hence cannot be compiled.
    return (index[..., None] == torch.arange(size, device=index.device)).float()


def draw_latents(log_probs: Tensor, noise: Tensor | None) -> Tensor:
    """Draw unit vectors, side by side in one row: (..., latents, classes) -> (..., latents * classes).

    Without noise the likeliest. Gradients pass straight through to the probabilities.
    """
    index = log_probs.argmax(-1) if noise is None else draw_index(log_probs.detach(), noise)
    probs = log_probs.exp()
    return (unit_vectors(index, log_probs.shape[-1]) + (probs - probs.detach())).flatten(-2)
