"""PQN: targets by hand, the loss, RAdam, exploration by rollouts, and the same update on the device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import make_setup
from device_loops import QUIET, Orders, as_host_rollout, config, device_loop
from rl_training.algorithms.pqn import build_pqn, pqn_loss, q_lambda_targets
from rl_training.envs.tiny import Chain
from rl_training.learners.optim import ClippedAdam
from rl_training.runtime.trainer import train


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


# ------------------------------------------------------------------------------------------------------------- targets


def test_targets_mix_the_next_return_with_the_best_next_value() -> None:
    # gamma 0.5, lambda 0.5. Last: 3 + 0.5 * 8 = 7. Before: 2 + 0.5 * (0.5 * 7 + 0.5 * 4) = 4.75.
    # First: 1 + 0.5 * (0.5 * 4.75 + 0.5 * 6) = 3.6875.
    targets = q_lambda_targets(
        column(1.0, 2.0, 3.0), column(6.0, 4.0, 8.0), flags(0, 0, 0), flags(0, 0, 0), gamma=0.5, q_lambda=0.5
    )
    assert targets[:, 0].tolist() == pytest.approx([3.6875, 4.75, 7.0])


def test_a_termination_ends_the_return_and_a_time_limit_bootstraps_from_the_final_observation() -> None:
    # Terminated at the first row: 1. Truncated at the second: 2 + 0.5 * 4, without the trace of the third.
    targets = q_lambda_targets(
        column(1.0, 2.0, 3.0), column(6.0, 4.0, 8.0), flags(1, 0, 0), flags(0, 1, 0), gamma=0.5, q_lambda=0.9
    )
    assert targets[:, 0].tolist() == pytest.approx([1.0, 4.0, 7.0])


def test_lambda_0_gives_one_step_targets_and_lambda_1_the_whole_rollout() -> None:
    given: Any = (column(1.0, 2.0), column(6.0, 4.0), flags(0, 0), flags(0, 0))
    assert q_lambda_targets(*given, gamma=0.5, q_lambda=0.0)[:, 0].tolist() == pytest.approx([4.0, 4.0])
    assert q_lambda_targets(*given, gamma=0.5, q_lambda=1.0)[:, 0].tolist() == pytest.approx([1 + 0.5 * 4.0, 4.0])


# ---------------------------------------------------------------------------------------------------------------- loss


def test_the_loss_is_half_the_squared_error_of_the_taken_action() -> None:
    table = torch.tensor([1.0, 3.0])
    batch = {"obs": torch.zeros(2, 1), "actions": torch.tensor([0, 1]), "targets": torch.tensor([2.0, 0.0])}
    metrics = pqn_loss(table, batch, lambda params, obs: params.expand(len(obs), 2))
    assert float(metrics["loss"]) == pytest.approx(0.5 * (1.0 + 9.0) / 2)
    assert float(metrics["q_value_mean"]) == pytest.approx(2.0)
    assert float(metrics["target_mean"]) == pytest.approx(1.0)
    assert float(metrics["td_error_mean"]) == pytest.approx(2.0)


def test_a_wrong_shape_is_refused() -> None:
    batch = {"obs": torch.zeros(2, 1), "actions": torch.tensor([0, 1]), "targets": torch.zeros(2, 1)}
    with pytest.raises(ValueError, match="pqn_loss: targets"):
        pqn_loss(torch.zeros(2), batch, lambda params, obs: params.expand(len(obs), 2))


def test_the_optimizer_is_radam() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(5, generator=generator)
    theirs = ours.clone().requires_grad_()
    reference = torch.optim.RAdam([theirs], lr=0.01)
    optimizer = ClippedAdam(learning_rate=0.01, eps=1e-8, max_grad_norm=None, rectified=True)
    state = optimizer.state(ours)
    for _ in range(12):  # the first steps are those of momentum, the rest are rectified
        gradient = torch.randn(5, generator=generator)
        theirs.grad = gradient.clone()
        reference.step()
        state = state | optimizer.step(gradient, state)[0]
        assert torch.allclose(state["params"], theirs.detach(), rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------- exploring


def test_exploration_decays_from_rollout_to_rollout() -> None:
    # 1,000 steps are 50 rollouts of 20 rows; epsilon falls from 1 to 0.2 over the first 10.
    setup = make_setup(
        algo="pqn", num_envs=2, num_steps=10, minibatch_size=20, epsilon_end=0.2, exploration_fraction=0.2
    )
    pqn = build_pqn(setup)
    assert pqn.status(0)["epsilon"] == 1.0
    pqn.num_updates = 5
    assert pqn.status(0)["epsilon"] == pytest.approx(0.6)
    pqn.num_updates = 30
    assert pqn.status(0)["epsilon"] == pytest.approx(0.2)
    obs = np.zeros((4_000, 3), np.float32)
    greedy = pqn.act(obs).actions
    assert (greedy == greedy[0]).all()
    explored = pqn.act(obs, explore=True).actions
    assert (explored != greedy).mean() == pytest.approx(0.1, abs=0.02)  # half of the random ones are another action


# ---------------------------------------------------------------------------------------------------------- on a device

PQN = {"algo": "pqn", "algo_kwargs": {"q_lambda": 0.8, "epsilon_end": 0.3}}


def test_learning_on_the_device_equals_the_update_of_the_host(tmp_path: Path) -> None:
    settings = config(tmp_path, max_episode_steps=14, **PQN)
    loop, algorithm, _ = device_loop(settings)
    _, other, _ = device_loop(settings)
    for _ in range(2):
        result = loop.iteration()
        rows = loop._rollout.rows()
        other._generators["shuffle"] = Orders(loop._learning._memory["words"])
        expected = other.update(as_host_rollout(rows, 8))
        for name, value in expected.metrics.items():
            assert float(result.metrics[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), name
    for name, value in other.policy_state_dict().items():
        assert torch.allclose(algorithm.policy_state_dict()[name], value, rtol=1e-4, atol=1e-6), name


def test_the_device_explores_as_the_host_does(tmp_path: Path) -> None:
    settings = config(tmp_path, num_envs=2_048, total_timesteps=2_048 * 16 * 100, **PQN)
    loop, algorithm, _ = device_loop(settings.updated(algo_kwargs={**settings.algo_kwargs, "num_steps": 2}))
    algorithm.num_updates = 10**6  # epsilon 0.3
    loop.iteration()
    rows = loop._rollout.rows()
    greedy = algorithm.act(rows["obs"][:2_048].numpy()).actions
    assert (rows["actions"][:2_048].numpy() != greedy).mean() == pytest.approx(0.15, abs=0.03)


def test_a_run_on_the_device_has_the_usual_logs(tmp_path: Path) -> None:
    result = train(config(tmp_path, **PQN), QUIET)
    assert result.step == 512
    assert result.metrics.keys() >= {"loss", "q_value_mean", "target_mean", "td_error_mean"}


@pytest.mark.learning
def test_pqn_learns_the_values_of_the_chain(tmp_path: Path) -> None:
    settings = config(tmp_path, env_id="rl_training/Chain-v0", execution_backend="local_sync", total_timesteps=6_000)
    kwargs = {"update_epochs": 4, "learning_rate": 3e-3, "gamma": 0.9, "exploration_fraction": 0.5}
    small = {"num_steps": 16, "minibatch_size": 32, "hidden_sizes": [32]}
    result = train(settings.updated(algo="pqn", algo_kwargs=kwargs | small, num_envs=4), QUIET)
    assert result.eval_return == 1.0
    algorithm: Any = result.algorithm
    to_the_right = algorithm._q_values(np.eye(5, dtype=np.float32))[:4, 1]
    assert to_the_right == pytest.approx(Chain.optimal_q(0.9)[:4, 1], abs=0.03)
