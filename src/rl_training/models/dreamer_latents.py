"""Categorical variables as one-hot vectors: Dreamer's stochastic state, and the choices of its policy."""

import torch
from torch import Tensor


def mixed_probs(logits: Tensor, unimix: float) -> Tensor:
    """Return (1 - unimix) softmax + unimix uniform, over the last axis: no probability is 0."""
    return (1.0 - unimix) * logits.softmax(-1) + unimix / logits.shape[-1]


def mixed_log_probs(logits: Tensor, unimix: float) -> Tensor:
    """Return the log of `mixed_probs`."""
    return mixed_probs(logits, unimix).log()


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL[p || q] in nats, summed over the latents: (..., latents, classes) -> (...)."""
    return (log_p.exp() * (log_p - log_q)).sum((-2, -1))


def draw_index(probs: Tensor, noise: Tensor) -> Tensor:
    """Sample a class by noise in [0, 1): the first whose cumulative probability exceeds it. (..., classes) -> (...)"""
    passed = (cumulative_sum(probs) <= noise[..., None]).sum(-1)
    return passed.clamp(max=probs.shape[-1] - 1)  # rounding may leave the sum of all below the noise


def cumulative_sum(x: Tensor) -> Tensor:
    """Return `x.cumsum(-1)`, which has no deterministic kernel on a GPU: each round adds twice as many terms."""
    reach = 1
    while reach < x.shape[-1]:
        x = torch.cat((x[..., :reach], x[..., reach:] + x[..., :-reach]), -1)
        reach *= 2
    return x


def unit_vectors(index: Tensor, size: int) -> Tensor:
    # Not `F.one_hot`, which reads the values and therefore cannot be compiled.
    return (index[..., None] == torch.arange(size, device=index.device)).float()


def draw_latents(probs: Tensor, noise: Tensor | None) -> Tensor:
    """Sample one-hot vectors, concatenated in one row: (..., latents, classes) -> (..., latents * classes).

    Without noise, take the most likely classes. Gradients are straight-through: they flow to the probabilities.
    """
    fixed = probs.detach()
    index = fixed.argmax(-1) if noise is None else draw_index(fixed, noise)
    return straight_through(unit_vectors(index, probs.shape[-1]).flatten(-2), probs)


def straight_through(drawn: Tensor, probs: Tensor) -> Tensor:
    """Return what was drawn, (..., latents * classes), with the gradient of the probabilities."""
    return drawn + (probs - probs.detach()).flatten(-2)
