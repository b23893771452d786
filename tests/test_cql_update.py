"""CQL: the conservative term by hand, SAC where its weight is zero, what gradients reach."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.cql import build_cql, conservative_gap, cql_critic_loss, sampled_actions
from rl_training.algorithms.sac import build_sac
from rl_training.core.types import Batch, Metrics
from rl_training.models.distributions import SquashedGaussian
from test_td3_update import critics, lines, make_rows

LOG_NORMAL = -0.5 * math.log(2.0 * math.pi)  # of the standard normal density at its mean
POLICY = SquashedGaussian((1,))


def actor(params: Tensor, obs: Tensor) -> Tensor:
    """Return mean and log standard deviation, the same for all observations."""
    return params.expand(len(obs), 2)


def one_row() -> Batch:
    """One uniform action, 0.5 (of 0.75), and one of the policy at each observation, without noise."""
    return make_rows([2.0], [False]) | {
        "uniform_numbers": torch.full((1, 1, 1), 0.75),
        "policy_noise": torch.zeros(1, 1, 1),
        "next_policy_noise": torch.zeros(1, 1, 1),
    }


def critic_loss(params: Tensor, batch: Batch, *, actor_params: Tensor | None = None, weight: float = 10.0) -> Metrics:
    return cql_critic_loss(
        params,
        lines((5.0, 0.0), (3.0, 0.0)),
        torch.zeros(2) if actor_params is None else actor_params,
        torch.tensor(0.0),
        batch,
        weight=weight,
        gamma=0.5,
        policy=POLICY,
        apply_actor=actor,
        apply_critics=critics,
    )


def test_the_gap_by_hand() -> None:
    # Actions 0.5 (density 1/2), 0 and 0 (density of the standard normal at 0, squashed with slope 1). Q = 1 + 2 a:
    # 2, 1 and 1. The dataset's action is 0, of value 1.
    batch = one_row()
    actions, log_densities = sampled_actions(torch.zeros(2), batch, policy=POLICY, apply_actor=actor)
    assert actions.flatten().tolist() == [0.5, 0.0, 0.0]
    assert log_densities.flatten().tolist() == pytest.approx([-math.log(2.0), LOG_NORMAL, LOG_NORMAL])
    gap = conservative_gap(lines((1.0, 2.0)), actions, log_densities, batch, critics)
    expected = math.log(2.0 * math.exp(2.0) + 2.0 * math.exp(1.0 - LOG_NORMAL)) - 1.0
    assert gap.tolist() == [[pytest.approx(expected)]]


def test_the_loss_adds_the_gaps_of_both_critics() -> None:
    # y = 2 + 0.5 * min(5, 3) = 3.5. Constant critics 1 and 4: squared errors 6.25 and 0.25. Each gap of a constant is
    # the logarithm of the sum of 1 / density.
    metrics = critic_loss(lines((1.0, 0.0), (4.0, 0.0)), one_row(), weight=3.0)
    gap = math.log(2.0 + 2.0 * math.exp(-LOG_NORMAL))
    assert metrics["target_mean"].item() == pytest.approx(3.5)
    assert metrics["conservative_gap"].item() == pytest.approx(gap)
    assert metrics["loss"].item() == pytest.approx(6.5 + 3.0 * 2.0 * gap)


def test_every_policy_sample_is_of_its_own_observation() -> None:
    def by_obs(params: Tensor, obs: Tensor) -> Tensor:
        return torch.cat((obs[:, :1], torch.full_like(obs[:, :1], -20.0)), 1)  # mean: the observation; hardly any noise

    batch = {
        "obs": torch.tensor([[0.1], [0.2]]),
        "next_obs": torch.tensor([[0.3], [0.4]]),
        "uniform_numbers": torch.zeros(2, 2, 1),
        "policy_noise": torch.zeros(2, 2, 1),
        "next_policy_noise": torch.zeros(2, 2, 1),
    }
    actions, _ = sampled_actions(torch.zeros(2), batch, policy=POLICY, apply_actor=by_obs)
    expected = [[-1.0, -1.0, *np.tanh([0.1, 0.1, 0.3, 0.3])], [-1.0, -1.0, *np.tanh([0.2, 0.2, 0.4, 0.4])]]
    np.testing.assert_allclose(actions[:, :, 0].numpy(), expected, atol=1e-6)


def test_the_gradient_reaches_the_critics_alone() -> None:
    params, outputs = lines((1.0, 1.0), (4.0, 1.0)).requires_grad_(), torch.zeros(2).requires_grad_()
    loss = critic_loss(params, one_row(), actor_params=outputs)["loss"]
    gradient, other = torch.autograd.grad(loss, (params, outputs), allow_unused=True)
    assert gradient.abs().min() > 0.0
    assert other is None


def test_without_the_term_an_update_is_sacs() -> None:
    soft = {"conservative_weight": 0.0, "entropy_in_target": True, "normalize_observations": False}
    rates = {"learning_rate": 1e-3, "actor_learning_rate": 2e-3, "alpha_learning_rate": 3e-3}
    cql = build_cql(make_box_setup("cql", **soft, **rates))
    sac = build_sac(make_box_setup("sac", **rates))
    batch = make_box_batch()
    found, expected = cql.update(batch).metrics, sac.update(batch).metrics
    torch.testing.assert_close({name: found[name] for name in expected}, expected)
    torch.testing.assert_close({name: cql.state[name] for name in sac.state}, sac.state)


def test_the_target_has_no_entropy_unless_it_is_asked_for() -> None:
    def target_mean(alpha: float, **settings: Any) -> float:
        learner = build_cql(make_box_setup("cql", alpha=alpha, normalize_observations=False, **settings))
        return float(learner.update(make_box_batch()).metrics["target_mean"])

    assert target_mean(0.1) == target_mean(50.0)
    assert target_mean(0.1, entropy_in_target=True) != pytest.approx(target_mean(50.0, entropy_in_target=True), abs=1.0)
