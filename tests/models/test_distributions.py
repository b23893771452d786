"""Distributions over actions: log-probabilities and entropies equal those of torch.distributions, and samples fit."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Text
from torch import Tensor, distributions

from rl_training.core.spaces import action_field, mask_size
from rl_training.errors import SpaceError
from rl_training.models.distributions import Distribution, SquashedGaussian, build_distribution

SPACES: dict[str, gym.Space[Any]] = {
    "discrete": Discrete(5),
    "one choice": Discrete(1),
    "multidiscrete": MultiDiscrete([3, 1, 4]),
    "multibinary": MultiBinary(4),
    "multibinary 2-d": MultiBinary((2, 3)),
    "box": Box(-1.0, 1.0, (3,), np.float32),
    "box 2-d": Box(-1.0, 1.0, (2, 3), np.float32),
    "box without axes": Box(-1.0, 1.0, (), np.float32),
}
CHOICES = ["discrete", "multidiscrete"]
ROWS = 40


def outputs_for(distribution: Distribution, rows: int = ROWS, seed: int = 0, extra: int = 1) -> Tensor:
    """The output of a network: the columns of the policy, then the value."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, distribution.num_outputs + extra, generator=generator)


def masks_for(space: gym.Space[Any], rows: int = ROWS) -> Tensor:
    """Random masks that allow at least one option of every choice."""
    sizes = space.nvec.tolist() if isinstance(space, MultiDiscrete) else [mask_size(space)]
    rng = np.random.default_rng(0)
    parts = [rng.random((rows, size)) < 0.5 for size in sizes]
    for part in parts:
        part[np.arange(rows), rng.integers(part.shape[1], size=rows)] = True
    return torch.from_numpy(np.concatenate(parts, axis=1))


def draw(
    distribution: Distribution, outputs: Tensor, mask: Tensor | None = None, seed: int = 0
) -> tuple[np.ndarray, Tensor]:
    """Sampled actions, as arrays and as the tensor that a buffer would return."""
    flags = None if mask is None else mask.numpy()
    actions = distribution.sample(outputs.numpy(), np.random.default_rng(seed), flags)
    return actions, torch.from_numpy(actions)


def reference(space: gym.Space[Any], outputs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same by torch.distributions; masked choices get a logit of minus infinity."""
    if isinstance(space, Box):
        size = math.prod(space.shape)
        normal = distributions.Normal(outputs[:, :size], outputs[:, size : 2 * size].exp())
        return normal.log_prob(actions.reshape(len(actions), -1)).sum(1), normal.entropy().sum(1)
    if isinstance(space, MultiBinary):
        bernoulli = distributions.Bernoulli(logits=outputs[:, : math.prod(space.shape)])
        return bernoulli.log_prob(actions.flatten(1).float()).sum(1), bernoulli.entropy().sum(1)
    sizes = space.nvec.tolist() if isinstance(space, MultiDiscrete) else [mask_size(space)]
    logits = outputs[:, : sum(sizes)]
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    parts = [distributions.Categorical(logits=part) for part in torch.split(logits, sizes, dim=1)]
    chosen = actions.reshape(len(actions), -1).unbind(1)
    log_prob = torch.stack([part.log_prob(one) for part, one in zip(parts, chosen, strict=True)]).sum(0)
    # p log p of a masked choice is 0 * -inf; its limit is 0.
    entropies = [-(part.probs * part.logits.clamp(min=-1e30)).sum(1) for part in parts]
    return log_prob, torch.stack(entropies).sum(0)


# --- Log-probability and entropy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACES)
def test_log_probability_and_entropy_are_those_of_torch(kind: str) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs = outputs_for(distribution)
    _, actions = draw(distribution, outputs)
    log_prob, entropy = distribution.evaluate(outputs, actions, None)
    assert log_prob.shape == entropy.shape == (ROWS,)
    torch.testing.assert_close((log_prob, entropy), reference(SPACES[kind], outputs, actions, None))


@pytest.mark.parametrize("kind", CHOICES)
def test_masked_log_probability_and_entropy_are_those_of_torch(kind: str) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs, mask = outputs_for(distribution), masks_for(SPACES[kind])
    _, actions = draw(distribution, outputs, mask)
    evaluated = distribution.evaluate(outputs, actions, mask)
    torch.testing.assert_close(evaluated, reference(SPACES[kind], outputs, actions, mask))


@pytest.mark.parametrize("kind", CHOICES)
def test_a_mask_that_allows_everything_changes_nothing(kind: str) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs, everything = outputs_for(distribution), torch.ones_like(masks_for(SPACES[kind]))
    free, masked = (draw(distribution, outputs, mask)[0] for mask in (None, everything))
    assert np.array_equal(free, masked)
    actions = torch.from_numpy(free)
    free_values, masked_values = (distribution.evaluate(outputs, actions, mask) for mask in (None, everything))
    assert all(torch.equal(one, other) for one, other in zip(free_values, masked_values, strict=True))


@pytest.mark.parametrize("kind", CHOICES)
def test_masked_choices_get_no_gradient_and_the_others_as_if_they_were_alone(kind: str) -> None:
    space = SPACES[kind]
    distribution = build_distribution(space)
    outputs, mask = outputs_for(distribution).requires_grad_(), masks_for(space)
    _, actions = draw(distribution, outputs.detach(), mask)
    log_prob, entropy = distribution.evaluate(outputs, actions, mask)
    (gradient,) = torch.autograd.grad((log_prob + 0.3 * entropy).sum(), outputs)
    assert torch.isfinite(gradient).all()
    assert (gradient[:, :-1][~mask] == 0.0).all()
    assert (gradient[:, -1] == 0.0).all()  # nor does the value's column
    assert (gradient[:, :-1][mask] != 0.0).any()


def test_masked_gradient_by_hand() -> None:
    # Of three choices the first two are left, with equal logits: d log p(0) = (1 - 1/2, -1/2), the third gets nothing.
    outputs = torch.tensor([[0.0, 0.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    log_prob, entropy = build_distribution(Discrete(3)).evaluate(outputs, torch.tensor([0]), mask)
    assert log_prob.item() == pytest.approx(math.log(1 / 2))
    assert entropy.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
    assert gradient.tolist() == [[0.5, -0.5, 0.0]]


@pytest.mark.parametrize("kind", CHOICES)
def test_with_one_choice_left_nothing_is_open(kind: str) -> None:
    space = SPACES[kind]
    distribution = build_distribution(space)
    outputs = outputs_for(distribution) * 20.0
    sizes = space.nvec.tolist() if isinstance(space, MultiDiscrete) else [mask_size(space)]
    only = torch.cat([torch.eye(size, dtype=torch.bool)[[size - 1] * ROWS] for size in sizes], 1)
    actions, drawn = draw(distribution, outputs, only)
    assert (actions.reshape(ROWS, -1) == np.array(sizes) - 1).all()
    log_prob, entropy = distribution.evaluate(outputs, drawn, only)
    torch.testing.assert_close(log_prob, torch.zeros(ROWS))
    torch.testing.assert_close(entropy, torch.zeros(ROWS))


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        *((kind, scale) for kind in ("discrete", "multidiscrete", "multibinary") for scale in (0.0, 80.0, 1e4)),
        *(("box", scale) for scale in (0.0, 5.0)),  # deviations of e^-5 to e^5
    ],
)
def test_all_stays_finite_for_extreme_outputs(kind: str, scale: float) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs = (outputs_for(distribution).clamp(-1.0, 1.0) * scale).requires_grad_()
    _, actions = draw(distribution, outputs.detach())
    log_prob, entropy = distribution.evaluate(outputs, actions, None)
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), outputs)
    assert all(torch.isfinite(values).all() for values in (log_prob, entropy, gradient))


@pytest.mark.parametrize("kind", SPACES)
def test_columns_beyond_the_policys_are_not_read(kind: str) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs = outputs_for(distribution, extra=0)
    with_value = torch.cat((outputs, torch.full((ROWS, 1), 1e6)), 1)
    ours, theirs = draw(distribution, with_value)[0], draw(distribution, outputs)[0]
    assert np.array_equal(ours, theirs)
    assert np.array_equal(distribution.mode(with_value.numpy(), None), distribution.mode(outputs.numpy(), None))
    actions = torch.from_numpy(ours)
    evaluated, expected = (distribution.evaluate(each, actions, None) for each in (with_value, outputs))
    assert all(torch.equal(one, other) for one, other in zip(evaluated, expected, strict=True))


# --- Draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACES)
def test_draws_and_modes_have_the_shape_and_type_of_stored_actions(kind: str) -> None:
    distribution, field = build_distribution(SPACES[kind]), action_field(SPACES[kind])
    outputs = outputs_for(distribution)
    for actions in (draw(distribution, outputs)[0], distribution.mode(outputs.numpy(), None)):
        assert actions.shape == (ROWS, *field.shape)
        assert actions.dtype == field.dtype


@pytest.mark.parametrize("kind", [kind for kind in SPACES if kind != "one choice"])
def test_samples_depend_on_the_generator_only(kind: str) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs = outputs_for(distribution)
    first, again, other = (draw(distribution, outputs, seed=seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("kind", [kind for kind, space in SPACES.items() if not isinstance(space, Box)])
def test_samples_and_modes_of_choices_are_in_the_space(kind: str) -> None:
    space = SPACES[kind]
    distribution = build_distribution(space)
    outputs = outputs_for(distribution) * 3.0
    for actions in (draw(distribution, outputs)[0], distribution.mode(outputs.numpy(), None)):
        assert all(space.contains(action.astype(space.dtype)) for action in actions)


def assert_shares(counts: np.ndarray, probabilities: Any) -> None:
    """Chi-square against the 99.99 % point for up to 7 degrees of freedom."""
    expected = np.asarray(probabilities) * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 29.9


def test_choices_are_drawn_with_their_softmax() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = torch.log(torch.tensor(probabilities)).float().repeat(50_000, 1)
    actions, _ = draw(build_distribution(Discrete(4)), logits)
    assert_shares(np.bincount(actions, minlength=4), probabilities)


def test_several_choices_are_drawn_independently() -> None:
    first, second = np.array([0.7, 0.3]), np.array([0.2, 0.3, 0.5])
    logits = torch.log(torch.tensor([*first, *second])).float().repeat(50_000, 1)
    actions, _ = draw(build_distribution(MultiDiscrete([2, 3])), logits)
    counts = np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=6)
    assert_shares(counts, np.outer(first, second).ravel())


def test_switches_are_drawn_independently_with_their_sigmoid() -> None:
    on = torch.tensor([0.9, 0.2, 0.5])
    actions, _ = draw(build_distribution(MultiBinary(3)), torch.logit(on).repeat(50_000, 1))
    counts = np.bincount(actions @ [4, 2, 1], minlength=8)
    p, q, r = ([1 - float(each), float(each)] for each in on)
    assert_shares(counts, np.einsum("i,j,k->ijk", p, q, r).ravel())


def test_numbers_are_drawn_with_their_mean_and_deviation() -> None:
    outputs = torch.tensor([0.5, -2.0, math.log(0.1), math.log(3.0)]).repeat(100_000, 1)
    actions, _ = draw(build_distribution(Box(-1.0, 1.0, (2,), np.float32)), outputs)
    error = 5 / math.sqrt(100_000)  # five standard errors of a mean, in deviations; of a deviation it is less
    np.testing.assert_allclose((actions.mean(0) - [0.5, -2.0]) / [0.1, 3.0], 0.0, atol=error)
    np.testing.assert_allclose(actions.std(0) / [0.1, 3.0], 1.0, atol=error)
    assert abs(np.corrcoef(actions.T)[0, 1]) < error
    assert (np.abs(actions) > 1.0).any()  # not clipped here: the collector clips what the env gets


@pytest.mark.parametrize("kind", CHOICES)
def test_a_masked_choice_is_never_drawn_and_never_the_mode(kind: str) -> None:
    space = SPACES[kind]
    distribution = build_distribution(space)
    outputs, mask = outputs_for(distribution, 100_000) * 30.0, masks_for(space, 100_000)
    sizes = space.nvec.tolist() if isinstance(space, MultiDiscrete) else [mask_size(space)]
    starts = np.cumsum(sizes) - sizes
    for actions in (draw(distribution, outputs, mask)[0], distribution.mode(outputs.numpy(), mask.numpy())):
        flags = actions.reshape(100_000, -1) + starts  # the place of each choice in the mask
        assert np.take_along_axis(mask.numpy(), flags, 1).all()


def test_masked_choices_are_drawn_in_the_proportions_that_are_left() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).repeat(50_000, 1)
    mask = torch.tensor([False, True, False, True]).repeat(50_000, 1)
    actions, _ = draw(build_distribution(Discrete(4)), logits, mask)
    assert_shares(np.bincount(actions, minlength=4)[[1, 3]], [0.3 / 0.35, 0.05 / 0.35])


# --- Modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACES)
def test_no_action_is_likelier_than_the_mode(kind: str) -> None:
    distribution = build_distribution(SPACES[kind])
    outputs = outputs_for(distribution)
    mode = torch.from_numpy(distribution.mode(outputs.numpy(), None))
    highest, _ = distribution.evaluate(outputs, mode, None)
    for seed in range(20):
        log_prob, _ = distribution.evaluate(outputs, draw(distribution, outputs, seed=seed)[1], None)
        assert (log_prob <= highest + 1e-6).all()


def test_modes_by_hand() -> None:
    outputs = np.array([[0.1, 2.0, -1.0, 3.0, 3.5, 9.0]], np.float32)
    assert build_distribution(Discrete(3)).mode(outputs, None).tolist() == [1]
    assert build_distribution(Discrete(3)).mode(outputs, np.array([[True, False, True]])).tolist() == [0]
    assert build_distribution(MultiDiscrete([3, 2])).mode(outputs, None).tolist() == [[1, 1]]
    assert build_distribution(MultiBinary((2, 2))).mode(outputs, None).tolist() == [[[1, 1], [0, 1]]]
    assert build_distribution(Box(-1.0, 1.0, (2, 1), np.float32)).mode(outputs, None).tolist() == [
        [[pytest.approx(0.1)], [2.0]]
    ]


def test_a_space_without_a_distribution_is_refused_by_name() -> None:
    with pytest.raises(SpaceError, match=r"there is no distribution over actions of Text\(1, 5"):
        build_distribution(Text(5))


# --- Squashed numbers ------------------------------------------------------------------------------------------------

SHAPES_OF_DENSITIES = [(0.0, 0.0), (0.7, -1.5), (-2.0, 0.5), (0.0, 1.5), (3.0, -3.0)]  # mean, log-deviation


def squashed(mean: float, log_std: float, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions, (n,), and the logs of their densities, (n,), in float64."""
    outputs = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(len(noise), 2)
    actions, log_probs = SquashedGaussian((1,)).rsample(outputs, noise[:, None])
    return actions[:, 0], log_probs


@pytest.mark.parametrize(("mean", "log_std"), SHAPES_OF_DENSITIES)
def test_a_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    actions, log_probs = squashed(mean, log_std, torch.linspace(-8.0, 8.0, 200_001, dtype=torch.float64))
    assert actions.abs().max() <= 1.0
    assert torch.trapezoid(log_probs.exp(), actions).item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("mean", "log_std"), SHAPES_OF_DENSITIES)
def test_a_squashed_density_is_the_slope_of_the_distribution_function(mean: float, log_std: float) -> None:
    # P(tanh(x) <= a) = Phi((atanh(a) - mean) / deviation), differentiated numerically.
    std, step = math.exp(log_std), 1e-6
    places = torch.linspace(-0.95, 0.95, 39, dtype=torch.float64)
    actions, log_probs = squashed(mean, log_std, (places.atanh() - mean) / std)
    torch.testing.assert_close(actions, places)
    normal = distributions.Normal(torch.tensor(mean, dtype=torch.float64), std)
    slopes = (normal.cdf((places + step).atanh()) - normal.cdf((places - step).atanh())) / (2.0 * step)
    torch.testing.assert_close(log_probs.exp(), slopes, rtol=1e-5, atol=1e-7)


def test_the_log_density_of_several_squashed_numbers_is_that_of_torch() -> None:
    outputs = 0.5 * outputs_for(build_distribution(SPACES["box"]), extra=0).double()
    noise = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1)).double()
    actions, log_probs = SquashedGaussian((3,)).rsample(outputs, noise)
    base = distributions.Normal(outputs[:, :3], outputs[:, 3:].exp())
    reference = distributions.TransformedDistribution(base, [distributions.TanhTransform()])
    assert log_probs.shape == (ROWS,)
    torch.testing.assert_close(log_probs, reference.log_prob(actions).sum(1))


@pytest.mark.parametrize("mean", [-1e4, -20.0, 0.0, 20.0, 1e4])
@pytest.mark.parametrize("log_std", [-1e4, -20.0, 0.0, 2.0, 1e4])
def test_squashed_numbers_stay_finite_for_extreme_outputs(mean: float, log_std: float) -> None:
    policy = SquashedGaussian((1,))
    outputs = torch.tensor([[mean, log_std]]).repeat(5, 1).requires_grad_()
    noise = torch.tensor([[-5.0], [-1.0], [0.0], [1.0], [5.0]])
    actions, log_probs = policy.rsample(outputs, noise)
    (gradient,) = torch.autograd.grad(actions.sum() + log_probs.sum(), outputs)
    drawn = policy.sample(outputs.detach().numpy(), noise.numpy())
    assert all(torch.isfinite(values).all() for values in (actions, log_probs, gradient))
    assert np.isfinite(drawn).all()
    assert np.abs(drawn).max() <= 1.0
    assert actions.abs().max() <= 1.0


def test_the_log_deviation_is_clamped_in_samples_and_in_densities() -> None:
    policy, noise = SquashedGaussian((1,)), torch.tensor([[0.1]])
    for beyond, limit in ((5.0, 2.0), (-30.0, -20.0)):
        ours, theirs = (policy.rsample(torch.tensor([[0.2, each]]), noise) for each in (beyond, limit))
        assert (ours[0].item(), ours[1].item()) == (theirs[0].item(), theirs[1].item())
        drawn = [policy.sample(np.array([[0.2, each]], np.float32), noise.numpy()) for each in (beyond, limit)]
        assert np.array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_draws_modes_and_differentiable_draws_of_squashed_numbers_agree(shape: tuple[int, ...]) -> None:
    policy = SquashedGaussian(shape)
    outputs = torch.randn(ROWS, policy.num_outputs, generator=torch.Generator().manual_seed(0))
    noise = np.random.default_rng(0).standard_normal((ROWS, policy.size), np.float32)
    drawn = policy.sample(outputs.numpy(), noise)
    assert drawn.shape == (ROWS, *shape)
    assert drawn.dtype == np.float32
    actions, _ = policy.rsample(outputs, torch.from_numpy(noise))
    np.testing.assert_allclose(drawn.reshape(ROWS, -1), actions.numpy(), rtol=1e-5, atol=1e-6)
    still, _ = policy.rsample(outputs, torch.zeros(ROWS, policy.size))
    np.testing.assert_allclose(policy.mode(outputs.numpy()).reshape(ROWS, -1), still.numpy(), rtol=1e-5, atol=1e-6)
