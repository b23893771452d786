"""QR-DQN: the quantile Huber loss by hand, against plain loops in float64, and what it must not depend on."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders import make_batch, make_setup
from quantile_reference import best_valid_action, quantile_loss, random_quantile_batch, target_quantiles
from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.qr_dqn import build_qr_dqn, qr_dqn_loss
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.qr_dqn import QRDQNHParams
from rl_training.learners.distributional import quantile_huber

# --- The quantile Huber loss -----------------------------------------------------------------------------------------


def row_loss(values: list[float], targets: list[float], taus: list[float], kappa: float) -> float:
    losses = quantile_huber(torch.tensor([values]), torch.tensor([targets]), torch.tensor(taus), kappa)
    assert losses.shape == (1,)
    return float(losses)


@pytest.mark.parametrize(
    ("error", "tau", "kappa", "expected"),
    [
        (0.5, 0.25, 1.0, 0.25 * 0.125),  # the target lies above: tau * u^2 / 2
        (-0.5, 0.25, 1.0, 0.75 * 0.125),  # below: (1 - tau) * u^2 / 2
        (3.0, 0.25, 1.0, 0.25 * 2.5),  # beyond kappa: tau * (|u| - kappa / 2)
        (-3.0, 0.25, 1.0, 0.75 * 2.5),
        (1.0, 0.9, 2.0, 0.9 * 0.25),  # u^2 / (2 kappa) = 1/4
        (5.0, 0.9, 2.0, 0.9 * 4.0),  # kappa (|u| - kappa / 2) / kappa = 5 - 1
        (0.01, 0.9, 0.01, 0.9 * 0.005),  # where both branches meet
        (3.0, 0.25, 0.0, 0.25 * 3.0),  # kappa = 0: the plain quantile loss
        (-3.0, 0.25, 0.0, 0.75 * 3.0),
        (0.0, 0.25, 0.0, 0.0),
        (0.0, 0.25, 1.0, 0.0),
    ],
)
def test_one_value_and_one_target_by_hand(error: float, tau: float, kappa: float, expected: float) -> None:
    assert row_loss([2.0], [2.0 + error], [tau], kappa) == pytest.approx(expected, rel=1e-5)


def test_values_are_summed_and_targets_averaged() -> None:
    # kappa = 0, value 0 at tau 1/4, targets 4, 8, -4: (1 + 2 + 3) / 3 = 2; value 4 at 3/4: (0 + 3 + 2) / 3 = 5/3.
    assert row_loss([0.0, 4.0], [4.0, 8.0, -4.0], [0.25, 0.75], 0.0) == pytest.approx(2.0 + 5.0 / 3.0)


def test_the_roles_of_values_and_targets_are_not_the_same() -> None:
    values, targets, taus = [0.0, 1.0], [3.0, 2.0], [0.1, 0.9]
    assert row_loss(values, targets, taus, 1.0) != pytest.approx(row_loss(targets, values, taus, 1.0), rel=0.01)
    # Each target twice changes nothing; each value twice doubles the loss.
    assert row_loss(values, targets * 2, taus, 1.0) == pytest.approx(row_loss(values, targets, taus, 1.0))
    assert row_loss(values * 2, targets, taus * 2, 1.0) == pytest.approx(2 * row_loss(values, targets, taus, 1.0))


numbers = st.floats(-5, 5, width=32)


@given(
    values=st.lists(numbers, min_size=1, max_size=5),
    targets=st.lists(numbers, min_size=1, max_size=5),
    kappa=st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_loss_of_a_row_equals_plain_loops(values: Any, targets: Any, kappa: float, seed: int) -> None:
    taus = np.random.default_rng(seed).random(len(values))
    ours_of, theirs_of = (torch.tensor(numbers, dtype=torch.float64)[None] for numbers in (values, targets))
    ours = quantile_huber(ours_of, theirs_of, torch.from_numpy(taus), kappa)
    assert float(ours) == pytest.approx(quantile_loss(values, targets, taus.tolist(), kappa), rel=1e-9, abs=1e-12)


def test_a_target_of_twice_the_probability_counts_as_two_targets() -> None:
    values, taus = torch.tensor([[0.5, 3.0]]), torch.tensor([0.2, 0.7])
    weighted = quantile_huber(
        values, torch.tensor([[1.0, 4.0]]), taus, 1.0, probabilities=torch.tensor([[2.0, 1.0]]) / 3
    )
    torch.testing.assert_close(weighted, quantile_huber(values, torch.tensor([[1.0, 1.0, 4.0]]), taus, 1.0))


def test_fractions_may_be_shared_or_one_set_per_row() -> None:
    generator = torch.Generator().manual_seed(0)
    values, targets = torch.randn(4, 3, generator=generator), torch.randn(4, 5, generator=generator)
    taus = torch.rand(4, 3, generator=generator)
    together = quantile_huber(values, targets, taus, 1.0)
    for k in range(4):
        alone = quantile_huber(values[k : k + 1], targets[k : k + 1], taus[k], 1.0)
        torch.testing.assert_close(together[k : k + 1], alone)
    same = taus[:1].expand(4, -1)
    torch.testing.assert_close(
        quantile_huber(values, targets, same, 1.0), quantile_huber(values, targets, taus[0], 1.0)
    )


def test_a_smaller_kappa_comes_nearer_to_the_plain_quantile_loss() -> None:
    values, targets, taus = [0.0, 1.0], [3.0, -2.0], [0.2, 0.7]
    plain = row_loss(values, targets, taus, 0.0)
    gaps = [abs(row_loss(values, targets, taus, kappa) - plain) for kappa in (1.0, 0.1, 0.001)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


def test_the_gradient_goes_through_the_error_alone() -> None:
    # kappa = 0, one value: the mean over the targets of -tau where they lie above and 1 - tau where below.
    values = torch.tensor([[1.0]], requires_grad=True)
    targets = torch.tensor([[3.0, 5.0, 0.0, -4.0]], requires_grad=True)
    taus = torch.tensor([0.3], requires_grad=True)
    gradient, taus_gradient = torch.autograd.grad(quantile_huber(values, targets.detach(), taus, 0.0), (values, taus))
    assert gradient.item() == pytest.approx((-0.3 * 2 + 0.7 * 2) / 4)
    # d/dtau: the mean of u where u > 0, of -|u| where below.
    assert taus_gradient.item() == pytest.approx((2.0 + 4.0 - 1.0 - 5.0) / 4)
    # Huber: u / kappa within kappa, 1 beyond, times the weight; no part of it through the indicator.
    gradient, _ = torch.autograd.grad(quantile_huber(values, targets, taus, 2.0), (values, targets))
    expected = (-0.3 * 1.0 - 0.3 * 1.0 + 0.7 * 0.5 + 0.7 * 1.0) / 4
    assert gradient.item() == pytest.approx(expected)


def test_its_minimum_is_the_quantile() -> None:
    # kappa = 0: the best values for the targets 0, 1, ..., 100 at the fractions 0.1, 0.5 and 0.9 are 10, 50 and 90.
    targets, taus = torch.arange(101.0)[None], torch.tensor([0.1, 0.5, 0.9])
    candidates = torch.arange(101.0)[:, None].expand(-1, 3)
    alone = torch.stack(
        [quantile_huber(candidates[:, i : i + 1], targets.expand(101, -1), taus[i : i + 1], 0.0) for i in range(3)]
    )
    assert alone.argmin(1).tolist() == [10, 50, 90]


# --- The loss --------------------------------------------------------------------------------------------------------
# Parameters are a table, (states, actions, quantiles).


def table_quantiles(num_quantiles: int, params: Tensor, obs: Tensor) -> Tensor:
    return params.view(4, 3, num_quantiles)[obs]


def loss(online: Tensor, target: Tensor, batch: Any, **hparams: Any) -> Any:
    count = online.shape[2]
    settings = QRDQNHParams(num_quantiles=max(2, count), **hparams)
    return qr_dqn_loss(
        online.reshape(-1), target.reshape(-1), batch, settings, lambda params, obs: table_quantiles(count, params, obs)
    )


def test_the_loss_by_hand() -> None:
    # Two quantiles at 1/4 and 3/4. Taken: [0, 2]. The best action of state 1 by its mean is 1: [1, 5], not 0: [-9, 6].
    # gamma = 0.5, r = 1: targets [1.5, 3.5]. kappa = 1, errors of 0: 1.5, 3.5; of 2: -0.5, 1.5.
    online = torch.zeros(4, 3, 2)
    online[0, 2] = torch.tensor([0.0, 2.0])
    target = torch.full((4, 3, 2), -10.0)
    target[1, 0], target[1, 1] = torch.tensor([-9.0, 6.0]), torch.tensor([1.0, 5.0])
    batch = {
        "obs": torch.tensor([0]),
        "next_obs": torch.tensor([1]),
        "actions": torch.tensor([2]),
        "rewards": torch.tensor([1.0]),
        "terminated": torch.tensor([False]),
    }
    metrics = loss(online, target, batch, gamma=0.5)
    first = 0.25 * (1.0 + 3.0) / 2
    second = (0.25 * 0.125 + 0.75 * 1.0) / 2
    assert metrics["loss"] == pytest.approx(first + second)
    assert metrics["q_value_mean"] == pytest.approx(1.0)
    assert metrics["target_mean"] == pytest.approx(2.5)
    assert metrics["td_errors"].tolist() == pytest.approx([1.5])


def test_every_quantile_of_the_target_is_clipped_to_the_returns_that_exist() -> None:
    # r = -1, gamma = 0.5: -1 + 0.5 * [-6, -1, 4] = [-4, -1.5, 1], of which returns are in [-2, 0].
    target = torch.tensor([-6.0, -1.0, 4.0]).expand(4, 3, 3)
    batch = {
        "obs": torch.tensor([0]),
        "next_obs": torch.tensor([1]),
        "actions": torch.tensor([0]),
        "rewards": torch.tensor([-1.0]),
        "terminated": torch.tensor([False]),
    }
    plain, clipped = (loss(target, target, batch, gamma=0.5, clip_targets=on) for on in (False, True))
    assert plain["target_mean"] == pytest.approx((-4.0 - 1.5 + 1.0) / 3)
    assert clipped["target_mean"] == pytest.approx((-2.0 - 1.5 + 0.0) / 3)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_the_loss_equals_plain_loops_in_float64(kappa: float, double_q: bool) -> None:
    rng = np.random.default_rng(int(10 * kappa))
    online, target = (rng.normal(size=(4, 3, 5)) for _ in range(2))
    batch = random_quantile_batch(rng)
    taus = [(i + 0.5) / 5 for i in range(5)]
    losses, errors = [], []
    for row in range(len(batch["rewards"])):
        obs, next_obs, action = (int(batch[name][row]) for name in ("obs", "next_obs", "actions"))
        q_values = [float(np.mean(quantiles)) for quantiles in (online if double_q else target)[next_obs]]
        best = best_valid_action(q_values, batch["next_action_mask"][row].numpy())
        targets = target_quantiles(batch, row, target[next_obs, best])
        losses.append(quantile_loss(online[obs, action], targets, taus, kappa))
        errors.append(abs(np.mean(targets) - np.mean(online[obs, action])))
    metrics = loss(torch.from_numpy(online), torch.from_numpy(target), batch, kappa=kappa, double_q=double_q)
    assert metrics["loss"] == pytest.approx((batch["weights"].numpy() * losses).mean(), rel=1e-6)
    assert metrics["td_errors"].tolist() == pytest.approx(errors, rel=1e-6)


@given(seed=st.integers(0, 2**32 - 1), double_q=st.booleans())
def test_one_quantile_gives_half_the_huber_loss_of_dqn(seed: int, double_q: bool) -> None:
    rng = np.random.default_rng(seed)
    online, target = (torch.from_numpy(rng.normal(size=(4, 3, 1), scale=3.0)) for _ in range(2))
    batch = random_quantile_batch(rng)
    ours = loss(online, target, batch, kappa=1.0, double_q=double_q)
    plain = dqn_loss(
        online.reshape(-1),
        target.reshape(-1),
        batch,
        DQNHParams(double_q=double_q),
        lambda params, obs: params.view(4, 3)[obs],
    )
    assert ours["loss"] == pytest.approx(0.5 * float(plain["loss"]), rel=1e-6)
    assert ours["td_errors"].tolist() == pytest.approx(plain["td_errors"].tolist(), rel=1e-6)
    assert ours["target_mean"] == pytest.approx(float(plain["target_mean"]), rel=1e-6, abs=1e-9)


# --- The learner -----------------------------------------------------------------------------------------------------


def test_acting_looks_at_the_mean_of_the_quantiles() -> None:
    learner = build_qr_dqn(make_setup(algo="qr_dqn", num_actions=4))
    obs = make_batch(size=50)["obs"]
    quantiles = learner.recipe.network(obs)
    assert quantiles.shape == (50, 4, 6)
    assert learner.act(obs.numpy()).actions.tolist() == quantiles.mean(2).argmax(1).tolist()


def test_updates_follow_the_loss_downhill() -> None:
    learner = build_qr_dqn(make_setup(algo="qr_dqn", gamma=0.0, learning_rate=0.01, learning_rate_schedule="constant"))
    losses = [float(learner.update(make_batch()).metrics["loss"]) for _ in range(100)]
    assert losses[-1] < 0.2 * losses[0]
