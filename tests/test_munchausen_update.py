"""Munchausen targets of DQN and IQN: by hand, against plain loops, and at the limits of the temperature."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import make_batch, make_setup
from rl_training.algorithms.dqn import build_dqn, dqn_loss
from rl_training.algorithms.iqn import build_iqn, iqn_loss
from rl_training.core.types import Batch
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.iqn import IQNHParams
from rl_training.learners.munchausen import scaled_log_policy, soft_values

# The parameters are a table: a row per state, a column per action. Every row of a batch goes from state 0 to state 1.
LOG_3 = math.log(3.0)
ZERO = torch.zeros(4)


def table_q(params: Tensor, obs: Tensor) -> Tensor:
    return params.view(-1, 2)[obs]


def transitions(actions: list[int], rewards: list[float], terminated: list[bool]) -> Batch:
    return {
        "obs": torch.zeros(len(actions), dtype=torch.int64),
        "next_obs": torch.ones(len(actions), dtype=torch.int64),
        "actions": torch.tensor(actions),
        "rewards": torch.tensor(rewards),
        "terminated": torch.tensor(terminated),
    }


def munchausen(**settings: Any) -> DQNHParams:
    return DQNHParams(munchausen=True, **{"gamma": 0.5, "munchausen_tau": 1.0, **settings})


def test_the_target_of_dqn_by_hand() -> None:
    # tau = 1, Q_target(s) = (0, log 3): pi = (1/4, 3/4). Bonus of action 0: 0.9 * clip(log 1/4, -1) = -0.9; of action
    # 1: 0.9 * log 3/4. Q_target(s') = (log 3, 0): the soft value is log(3 + 1). Nothing follows a termination.
    target = torch.tensor([0.0, LOG_3, LOG_3, 0.0])
    batch = transitions([0, 1, 1], [2.0, 2.0, 2.0], [False, False, True])
    metrics = dqn_loss(ZERO, target, batch, munchausen(), table_q)
    expected = [2.0 - 0.9 + 0.5 * math.log(4.0), 2.0 + 0.9 * math.log(0.75) + 0.5 * math.log(4.0)]
    expected.append(2.0 + 0.9 * math.log(0.75))
    assert metrics["td_errors"].tolist() == pytest.approx(expected, rel=1e-5)


def test_the_clip_applies_before_alpha() -> None:
    # log 1/4 = -1.39 is clipped to -0.5, then halved; clipped after alpha it would be max(-0.69, -0.5) = -0.5.
    target = torch.tensor([0.0, LOG_3, 0.0, 0.0])
    hparams = munchausen(munchausen_alpha=0.5, munchausen_clip=-0.5)
    metrics = dqn_loss(ZERO, target, transitions([0], [0.0], [True]), hparams, table_q)
    assert metrics["td_errors"].tolist() == pytest.approx([0.25], rel=1e-5)


def test_the_policy_is_the_target_networks() -> None:
    # The online network prefers action 1 by far, the target network nothing: pi = (1/2, 1/2), the value log 2.
    online = torch.tensor([0.0, 50.0, 0.0, 50.0])
    metrics = dqn_loss(online, ZERO, transitions([0], [0.0], [False]), munchausen(munchausen_alpha=1.0), table_q)
    assert metrics["target_mean"].item() == pytest.approx(math.log(0.5) + 0.5 * math.log(2.0), rel=1e-5)


def test_with_n_steps_the_first_action_has_the_bonus_and_the_row_its_own_discount() -> None:
    target = torch.tensor([0.0, LOG_3, LOG_3, 0.0])
    batch = transitions([1], [2.0], [False]) | {"discounts": torch.tensor([0.125])}
    metrics = dqn_loss(ZERO, target, batch, munchausen(), table_q)
    assert metrics["target_mean"].item() == pytest.approx(2.0 + 0.9 * math.log(0.75) + 0.125 * math.log(4.0), rel=1e-5)


def test_no_gradient_reaches_the_target() -> None:
    online, target = (torch.tensor([0.0, LOG_3, LOG_3, 0.0]).requires_grad_() for _ in range(2))
    loss = dqn_loss(online, target, transitions([0, 1], [2.0, 1.0], [False, False]), munchausen(), table_q)["loss"]
    assert torch.autograd.grad(loss, [online, target], allow_unused=True)[1] is None


@pytest.mark.parametrize("tau", [0.03, 1.0])
def test_log_policies_of_large_values_are_finite_and_sum_to_one(tau: float) -> None:
    values = torch.tensor([[1000.0, 1000.03, 990.0], [-1e6, 0.0, 0.0]])
    scaled = scaled_log_policy(values, tau)
    assert torch.isfinite(scaled).all()
    assert (scaled / tau).exp().sum(1).tolist() == pytest.approx([1.0, 1.0], rel=1e-4)
    torch.testing.assert_close(scaled, tau * torch.log_softmax(values.double() / tau, 1).float(), rtol=1e-3, atol=1e-3)


def test_a_small_temperature_gives_the_largest_value_and_no_bonus_for_it() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20, 4, generator=generator)
    torch.testing.assert_close(soft_values(values, values, 1e-3), values.amax(1), rtol=1e-3, atol=1e-3)
    assert scaled_log_policy(values, 1e-3).amax(1).abs().max() < 1e-3


def test_the_loss_of_iqn_equals_plain_loops_in_float64() -> None:
    # Z(tau) = c0 + c1 tau; the policy comes from the mean at the fractions 1/4 and 3/4.
    rng = np.random.default_rng(0)
    online, target = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2, 2))
    hparams = IQNHParams(munchausen=True, munchausen_tau=0.3, gamma=0.9, kappa=1.0)

    def quantiles(params: Tensor, obs: Tensor, taus: Tensor | None = None) -> tuple[Tensor, Tensor]:
        given = torch.tensor([[0.25, 0.75]], dtype=torch.float64) if taus is None else taus
        c0, c1 = params.view(3, 2, 2)[obs].unsqueeze(-1).unbind(2)
        return c0 + c1 * given[:, None, :], given

    obs, next_obs, actions = (rng.integers(high, size=6) for high in (3, 3, 2))
    rewards, terminated = rng.normal(size=6), rng.random(6) < 0.3
    taus, target_taus = rng.random((6, 4)), rng.random((6, 5))
    arrays = {"obs": obs, "next_obs": next_obs, "actions": actions, "rewards": rewards, "terminated": terminated}
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch |= {"taus": torch.from_numpy(taus), "target_taus": torch.from_numpy(target_taus)}
    ours, theirs = (torch.from_numpy(table).reshape(-1) for table in (online, target))
    found = iqn_loss(ours, theirs, batch, hparams, quantiles)

    def log_policy(state: int) -> np.ndarray:
        q = target[state, :, 0] + target[state, :, 1] * 0.5
        return q / 0.3 - math.log(sum(math.exp(value / 0.3) for value in q))

    total = 0.0
    for row in range(6):
        bonus = 0.9 * max(0.3 * log_policy(obs[row])[actions[row]], -1.0)
        targets = []
        for tau in target_taus[row]:
            logs = log_policy(next_obs[row])
            z = target[next_obs[row], :, 0] + target[next_obs[row], :, 1] * tau
            soft = sum(math.exp(log) * (value - 0.3 * log) for log, value in zip(logs, z, strict=True))
            targets.append(rewards[row] + bonus + 0.9 * soft * (not terminated[row]))
        for tau in taus[row]:
            value = online[obs[row], actions[row], 0] + online[obs[row], actions[row], 1] * tau
            for wanted in targets:
                error = wanted - value
                huber = 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
                total += abs(tau - (error < 0.0)) * huber / len(targets)
    assert found["loss"].item() == pytest.approx(total / 6, rel=1e-6)


@pytest.mark.parametrize("build", [build_dqn, build_iqn])
def test_it_learns_with_noise_n_steps_and_priorities(build: Any) -> None:
    algo = build.__name__.removeprefix("build_")
    setup = make_setup(algo=algo, munchausen=True, noisy=True, n_step=3, prioritized=True)
    learner = build(setup)
    before = learner._state["params"].clone()
    result = learner.update(make_batch() | {"discounts": torch.full((8,), 0.9), "weights": torch.ones(8)})
    assert all(torch.isfinite(value) for value in result.metrics.values())
    assert not torch.equal(learner._state["params"], before)


def test_what_munchausen_does_not_combine_with_is_refused() -> None:
    with pytest.raises(ConfigError, match="munchausen: true takes the mean over all actions"):
        TrainConfig(algo="double_dqn", env_id="CartPole-v1", total_timesteps=10, algo_kwargs={"munchausen": True})
    with pytest.raises(ConfigError, match="munchausen: true does not work with action masks"):
        build_dqn(make_setup(munchausen=True, action_mask=True))
