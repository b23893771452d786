"""C51 and Rainbow: the projection and the cross-entropy by hand, and against plain loops in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders import make_batch, make_setup
from rl_training.algorithms.c51_dqn import build_c51_dqn, c51_loss, support
from rl_training.core.types import Batch
from rl_training.hparams.c51_dqn import C51HParams
from rl_training.learners.distributional import _spread, _spread_densely, project
from rl_training.models.layers import Dueling, NoisyLayers

ATOMS = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])


def project_by_loops(probabilities: np.ndarray, positions: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Each mass goes to the atoms left and right of its place; one at a time, in float64."""
    gap = atoms[1] - atoms[0]
    projected = np.zeros((len(probabilities), len(atoms)))
    for row, column in np.ndindex(probabilities.shape):
        place = min(max(positions[row, column], atoms[0]), atoms[-1])
        for k, atom in enumerate(atoms):
            nearness = max(0.0, 1.0 - abs(place - atom) / gap)
            projected[row, k] += probabilities[row, column] * nearness
    return projected


# --- The projection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (1.25, [0.0, 0.75, 0.25, 0.0, 0.0]),  # between two atoms: by nearness
        (2.0, [0.0, 0.0, 1.0, 0.0, 0.0]),  # on an atom: once
        (0.0, [1.0, 0.0, 0.0, 0.0, 0.0]),  # on the first
        (4.0, [0.0, 0.0, 0.0, 0.0, 1.0]),  # on the last
        (-7.0, [1.0, 0.0, 0.0, 0.0, 0.0]),  # beyond the ends
        (4.5, [0.0, 0.0, 0.0, 0.0, 1.0]),
        (1e9, [0.0, 0.0, 0.0, 0.0, 1.0]),
        (3.9, [0.0, 0.0, 0.0, 0.1, 0.9]),
    ],
)
def test_where_mass_goes(position: float, expected: list[float]) -> None:
    projected = project(torch.ones(1, 1), torch.tensor([[position]]), ATOMS)
    assert projected[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_masses_add_up_where_they_meet() -> None:
    # 0.5 at 1.5 and 0.3 at 1 and 0.2 at 5 (beyond the end): 0.25 + 0.3 at 1, 0.25 at 2, 0.2 at 4.
    projected = project(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1.5, 1.0, 5.0]]), ATOMS)
    assert projected[0].tolist() == pytest.approx([0.0, 0.55, 0.25, 0.0, 0.2])


@given(
    low=st.floats(-50, 50),
    width=st.floats(0.1, 100),
    num_atoms=st.integers(2, 60),
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0.0, 2.0),
)
def test_the_projection_equals_plain_loops_keeps_the_mass_and_inside_the_support_the_mean(
    low: float, width: float, num_atoms: int, seed: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    atoms = np.linspace(low, low + width, num_atoms)
    probabilities = rng.dirichlet(np.ones(7), size=3)
    # Up to half a width beyond the ends; every third position is exactly that of an atom.
    positions = low + width * (0.5 + spread * (rng.random((3, 7)) - 0.5))
    positions[:, ::3] = rng.choice(atoms, (3, 3))
    given = [torch.from_numpy(array) for array in (probabilities, positions, atoms)]
    projected = project(*given).numpy()
    np.testing.assert_allclose(projected, project_by_loops(probabilities, positions, atoms), atol=1e-9)
    np.testing.assert_allclose(projected.sum(1), 1.0, atol=1e-9)
    means = (probabilities * positions.clip(atoms[0], atoms[-1])).sum(1)
    np.testing.assert_allclose(projected @ atoms, means, atol=1e-9 * max(1.0, abs(low) + width))
    # And in float32, as training computes it.
    in_float32 = project(*(tensor.float() for tensor in given)).numpy()
    np.testing.assert_allclose(in_float32.sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize(("low", "high", "count"), [(-10.0, 10.0, 51), (0.0, 200.0, 101), (-0.3, 0.7, 11), (0, 1, 2)])
def test_atoms_projected_onto_themselves_stay_where_they_are(low: float, high: float, count: int) -> None:
    atoms = support(C51HParams(v_min=low, v_max=high, num_atoms=count))
    assert (float(atoms[0]), float(atoms[-1]), len(atoms)) == pytest.approx((low, high, count))
    probabilities = torch.rand(1, count, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(project(probabilities, atoms[None], atoms), probabilities, rtol=0, atol=2e-5)


def test_mass_is_spread_on_a_gpu_as_on_a_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    probabilities, places = (torch.rand(40, 7, generator=generator) for _ in range(2))
    places = torch.cat((4.0 * places, torch.tensor([0.0, 1.0, 4.0]).expand(40, 3)), 1)  # between atoms, and on them
    probabilities = torch.cat((probabilities, torch.ones(40, 3)), 1)
    torch.testing.assert_close(_spread_densely(probabilities, places, 4), _spread(probabilities, places, 4))


# --- The loss --------------------------------------------------------------------------------------------------------
# Parameters are a table of logits, (states, actions, atoms); a batch goes from any state to any other.

HPARAMS = {"v_min": 0.0, "v_max": 4.0, "num_atoms": 5, "gamma": 0.5}


def table_logits(params: Tensor, obs: Tensor) -> Tensor:
    return params.view(-1, 3, 5)[obs]


def logits_of(*distributions: list[float]) -> Tensor:
    """The table of one state: an action per distribution."""
    return torch.tensor(distributions).clamp(min=1e-30).log()[None]


def one_step(reward: float, *, terminated: bool = False, action: int = 0) -> Batch:
    return {
        "obs": torch.tensor([0]),
        "next_obs": torch.tensor([0]),
        "actions": torch.tensor([action]),
        "rewards": torch.tensor([reward]),
        "terminated": torch.tensor([terminated]),
    }


UNIFORM = [0.2] * 5


def loss(online: Tensor, target: Tensor, batch: Batch, **hparams: Any) -> Any:
    return c51_loss(online.reshape(-1), target.reshape(-1), batch, C51HParams(**{**HPARAMS, **hparams}), table_logits)


def test_the_cross_entropy_and_the_divergence_by_hand() -> None:
    # The best action of the target has half its mass at 0 and half at 4. r + 0.5 z: 1 and 3. Predicted: 1/2, 1/4 there.
    online = logits_of([0.125, 0.5, 0.0625, 0.25, 0.0625], UNIFORM, UNIFORM)
    target = logits_of([1.0, 0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0, 0.0])
    metrics = loss(online, target, one_step(1.0))
    cross_entropy = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25))
    assert metrics["loss"] == pytest.approx(cross_entropy, rel=1e-5)
    # The divergence is less by the target's own entropy, log 2.
    assert metrics["td_errors"].tolist() == pytest.approx([cross_entropy - math.log(2.0)], rel=1e-5)
    assert metrics["target_mean"] == pytest.approx(0.5 * 1 + 0.5 * 3, rel=1e-5)
    assert metrics["q_value_mean"] == pytest.approx(0.5 * 1 + 0.0625 * 2 + 0.25 * 3 + 0.0625 * 4, rel=1e-5)


def test_atoms_move_within_the_returns_that_exist() -> None:
    # 0.5 * [-4, -2, 0, 2, 4] = [-2, -1, 0, 1, 2], each with mass 0.2; returns of rewards -1 and 0 are in [-2, 0].
    uniform = logits_of(UNIFORM, UNIFORM, UNIFORM)
    metrics = loss(uniform, uniform, one_step(0.0), v_min=-4.0, clip_targets=True)
    assert metrics["target_mean"] == pytest.approx(0.2 * (-2.0 - 1.0))


def test_a_right_prediction_has_no_error_but_the_entropy_as_its_loss() -> None:
    certain = logits_of([0.0, 0.25, 0.5, 0.25, 0.0], UNIFORM, UNIFORM)
    target = logits_of([0.0, 0.0, 0.5, 0.0, 0.5], UNIFORM, UNIFORM)  # mean 3, the others 2: z / 2 + 0.5 is 1.5 or 2.5
    metrics = loss(certain, target, one_step(0.5))
    assert metrics["td_errors"].tolist() == pytest.approx([0.0], abs=1e-6)
    assert metrics["loss"] == pytest.approx(0.5 * math.log(2.0) + 0.5 * math.log(4.0), rel=1e-5)


@pytest.mark.parametrize(("reward", "at"), [(2.0, 2.0), (1.25, 1.25), (9.0, 4.0), (-9.0, 0.0)])
def test_after_a_termination_all_mass_is_at_the_clipped_reward(reward: float, at: float) -> None:
    batch = one_step(reward, terminated=True)
    online = logits_of(UNIFORM, UNIFORM, UNIFORM)
    metrics = loss(online, torch.randn(1, 3, 5), batch)
    assert metrics["target_mean"] == pytest.approx(at, abs=1e-5)
    assert metrics["loss"] == pytest.approx(math.log(5.0), rel=1e-5)  # whatever has mass 1, -log(1/5)
    assert metrics["mass_at_v_max"] == pytest.approx(float(at == 4.0))
    assert metrics["mass_at_v_min"] == pytest.approx(float(at == 0.0))


def test_the_action_is_selected_by_the_mean_and_not_by_the_likeliest_atom() -> None:
    # Action 0 is likeliest to give 4 but has the mean 2; action 1 has the mean 3. gamma = 1.
    target = logits_of([0.5, 0.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.3, 0.4, 0.3], [1.0, 0.0, 0.0, 0.0, 0.0])
    metrics = loss(logits_of(UNIFORM, UNIFORM, UNIFORM), target, one_step(0.0), gamma=1.0)
    assert metrics["target_mean"] == pytest.approx(3.0, rel=1e-5)


def reference(online: np.ndarray, target: np.ndarray, batch: Batch, hparams: C51HParams) -> dict[str, Any]:
    """Bellemare et al. 2017, algorithm 1, row by row; `online`, `target`: logits (states, actions, atoms)."""

    def softmax(logits: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(logits) / np.exp(logits).sum())

    atoms = np.linspace(hparams.v_min, hparams.v_max, hparams.num_atoms)
    losses, divergences, means = [], [], []
    for row in range(len(batch["rewards"])):
        obs, next_obs, action = (int(batch[name][row]) for name in ("obs", "next_obs", "actions"))
        selecting = (online if hparams.double_q else target)[next_obs]
        valid = batch["next_action_mask"][row].numpy()
        q_values = [
            float(softmax(logits) @ atoms) if ok else -np.inf for logits, ok in zip(selecting, valid, strict=True)
        ]
        next_probabilities = softmax(target[next_obs, int(np.argmax(q_values))])
        alive = 0.0 if batch["terminated"][row] else 1.0
        positions = float(batch["rewards"][row]) + float(batch["discounts"][row]) * alive * atoms
        projected = project_by_loops(next_probabilities[None], positions[None], atoms)[0]
        predicted = softmax(online[obs, action])
        losses.append(-sum(p * math.log(q) for p, q in zip(projected, predicted, strict=True)))
        divergences.append(sum(p * math.log(p / q) for p, q in zip(projected, predicted, strict=True) if p > 0))
        means.append(projected @ atoms)
    weights = batch["weights"].numpy()
    return {"loss": (weights * losses).mean(), "td_errors": divergences, "target_mean": np.mean(means)}


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_equals_plain_loops_in_float64(seed: int, double_q: bool) -> None:
    rng = np.random.default_rng(seed)
    online, target = (rng.normal(size=(4, 3, 5)) for _ in range(2))
    mask = rng.random((20, 3)) < 0.6
    mask[:, 0] |= ~mask.any(1)
    batch = {
        "obs": torch.from_numpy(rng.integers(4, size=20)),
        "next_obs": torch.from_numpy(rng.integers(4, size=20)),
        "actions": torch.from_numpy(rng.integers(3, size=20)),
        "rewards": torch.from_numpy(rng.normal(1.0, 2.0, size=20)),
        "terminated": torch.from_numpy(rng.random(20) < 0.3),
        "discounts": torch.from_numpy(0.9 ** rng.integers(1, 4, size=20)),
        "weights": torch.from_numpy(rng.random(20)),
        "next_action_mask": torch.from_numpy(mask),
    }
    hparams = C51HParams(**HPARAMS, double_q=double_q)
    expected = reference(online, target, batch, hparams)
    metrics = loss(torch.from_numpy(online), torch.from_numpy(target), batch, double_q=double_q)
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert metrics["td_errors"].tolist() == pytest.approx(expected["td_errors"], rel=1e-5, abs=1e-7)
    assert metrics["target_mean"] == pytest.approx(expected["target_mean"], rel=1e-6)


def test_the_gradient_is_predicted_minus_target_probabilities() -> None:
    # d cross-entropy / d logits = softmax - target, of the action taken alone.
    online = logits_of([0.1, 0.2, 0.3, 0.2, 0.2], UNIFORM, UNIFORM).requires_grad_()
    target = logits_of([1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0], UNIFORM)
    loss(online, target, one_step(1.0))["loss"].backward()  # 1 + 0.5 * 4 = 3
    assert online.grad is not None
    assert online.grad[0, 0].tolist() == pytest.approx([0.1, 0.2, 0.3, -0.8, 0.2], abs=1e-6)
    assert online.grad[0, 1:].abs().sum() == 0.0


# --- The learner -----------------------------------------------------------------------------------------------------


def test_the_first_distributions_are_nearly_uniform_and_acting_looks_at_their_means() -> None:
    learner = build_c51_dqn(make_setup(algo="c51_dqn", num_actions=3, hidden_sizes=(64, 64), num_atoms=51))
    obs = make_batch(size=40)["obs"]
    with torch.no_grad():
        probabilities = learner.recipe.network(obs).softmax(2)
    assert probabilities.shape == (40, 3, 51)
    assert probabilities.max() < 3 / 51
    means = (probabilities * torch.linspace(-10.0, 10.0, 51)).sum(2)
    torch.testing.assert_close(torch.from_numpy(learner._q_values(obs.numpy())), means, rtol=1e-4, atol=1e-4)
    assert learner.act(obs.numpy()).actions.tolist() == means.argmax(1).tolist()


def test_rainbow_is_all_of_them_at_once() -> None:
    setup = make_setup(algo="rainbow_dqn", num_actions=3)
    learner = build_c51_dqn(setup)
    hparams = setup.hparams
    assert (hparams.double_q, hparams.n_step, hparams.prioritized, hparams.prioritized_alpha) == (True, 3, True, 0.5)
    assert any(isinstance(part, Dueling) for part in learner.recipe.network.modules())
    assert NoisyLayers(learner.recipe.network).size > 0
    batch = make_batch(num_actions=3) | {"discounts": torch.full((8,), 0.99**3), "weights": torch.rand(8)}
    result = learner.update(batch)
    assert result.td_errors is not None
    assert result.td_errors.shape == (8,)
    assert all(torch.isfinite(value) for value in result.metrics.values())
