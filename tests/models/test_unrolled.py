"""The gradient of an unrolled cell: that of automatic differentiation of the loop."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.models.dreamer_rssm import CELLS, RSSM, Sizes
from rl_training.models.layers import init_truncated
from rl_training.models.unrolled import chain, take_steps

TINY = Sizes(deter=8, blocks=2, latents=3, classes=4, hidden=5, depth=2, bins=11, unimix=0.01)


def test_gradients_of_a_cell_with_two_states_and_an_output() -> None:
    generator = torch.Generator().manual_seed(0)
    w, v = (torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    x = torch.randn(6, 2, 3, generator=generator, dtype=torch.float64).requires_grad_()
    weights = torch.randn(3, 6, 2, 3, generator=generator, dtype=torch.float64)

    def cell(a: Tensor, b: Tensor, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.tanh(a @ w + b + x)
        return a, torch.sin(a @ v) * b + 0.5 * x, a * b

    def loss(outputs: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(outputs)) * weights).sum()

    a = b = start = torch.zeros(2, 3, dtype=torch.float64)
    found = []
    for each in x:
        a, b, product = cell(a, b, each, w, v)
        found.append((a, b, product))
    plain = [torch.stack(each) for each in zip(*found, strict=True)]
    steps = take_steps(
        lambda a, b, x: cell(a, b, x, w.detach(), v.detach()), (start, start), [(each,) for each in x.detach()]
    )
    a, b = (torch.stack(each).detach() for each in zip(*(step.before for step in steps), strict=True))
    ours = chain(steps, *cell(a, b, x, w, v))
    torch.testing.assert_close(list(ours), plain)
    torch.testing.assert_close(
        torch.autograd.grad(loss(ours), (w, v, x)), torch.autograd.grad(loss(plain), (w, v, x)), rtol=1e-12, atol=1e-12
    )


def plain_observe(rssm: RSSM, embeddings: Tensor, actions: Tensor, is_first: Tensor, noise: Tensor) -> Tensor:
    """The states of sequences by a plain loop, every step from the one before."""
    is_first = torch.cat((torch.ones_like(is_first[:, :1]), is_first[:, 1:]), 1)  # there is no state before
    h, z = (torch.zeros(len(noise), size, dtype=noise.dtype) for size in (rssm.sizes.deter, rssm.sizes.stoch))
    steps = []
    for t in range(noise.shape[1]):
        keep = (~is_first[:, t, None]).to(noise.dtype)
        features = rssm.filter(embeddings[:, t], torch.cat((h, z), -1) * keep, actions[:, t] * keep, noise[:, t])
        h, z = features.split([rssm.sizes.deter, rssm.sizes.stoch], -1)
        steps.append(features)
    return torch.stack(steps, 1)


def test_sequences_have_the_states_and_gradients_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    rssm = RSSM(7, 2, TINY).double()
    init_truncated(rssm)
    embeddings, actions, noise = (torch.from_numpy(rng.random((4, 6, size))) for size in (7, 2, 3))
    embeddings.requires_grad_()
    is_first = torch.from_numpy(rng.random((4, 6)) < 0.3)
    weight = torch.from_numpy(rng.normal(size=(4, 6, TINY.features)))
    wanted = (embeddings, *rssm.parameters())
    results = []
    for features in (
        rssm.observe(embeddings, actions, is_first, noise, CELLS.observe).features,
        plain_observe(rssm, embeddings, actions, is_first, noise),
    ):
        gradients = torch.autograd.grad((features * weight).sum(), wanted, allow_unused=True)
        results.append((features.detach(), gradients))
    (ours, our_gradients), (plain, plain_gradients) = results
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(our_gradients, plain_gradients, rtol=1e-9, atol=1e-12)
