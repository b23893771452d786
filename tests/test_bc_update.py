"""BC's loss by hand, for numbers and for choices, and one update."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete
from torch import nn

from builders import BOX, make_batch, make_box_batch, make_setup
from rl_training.algorithms.bc import bc_loss, build_bc
from rl_training.errors import ConfigError
from rl_training.hparams.bc import BCHParams
from rl_training.models.mlp_policy import MLPPolicy, policy_distribution
from state_comparison import clone

LOG_NORMAL = -0.5 * math.log(2.0 * math.pi)


def loss_of(outputs: list[list[float]], actions: list[Any], space: Any, **hparams: Any) -> dict[str, float]:
    """The loss of a network whose parameters are what it puts out."""
    batch = {"obs": torch.zeros(len(outputs), 1), "actions": torch.tensor(actions)}
    found = bc_loss(
        torch.tensor(outputs),
        batch,
        BCHParams(**hparams),
        apply_actor=lambda params, obs: params,
        policy=policy_distribution(space),
    )
    return {name: float(value) for name, value in found.items()}


def test_numbers_are_cloned_by_their_density() -> None:
    # Means (0.5, 0) and deviations (1, e); actions (0.5, e): densities at the mean, and one deviation off.
    metrics = loss_of([[0.5, 0.0, 0.0, 1.0]], [[0.5, math.e]], BOX)
    assert metrics["log_likelihood"] == pytest.approx(2 * LOG_NORMAL - 1.0 - 0.5)
    assert metrics["loss"] == pytest.approx(-metrics["log_likelihood"])
    assert metrics["action_error"] == pytest.approx(math.e**2 / 2)


def test_deviations_stay_within_their_range() -> None:
    metrics = loss_of([[0.0, 0.0, -50.0, 50.0]], [[0.0, 0.0]], BOX)
    assert metrics["log_likelihood"] == pytest.approx(2 * LOG_NORMAL + 5.0 - 2.0)


def test_numbers_are_cloned_by_their_squared_error_if_asked() -> None:
    metrics = loss_of([[0.5, 0.0, 3.0, 3.0]], [[0.0, 1.0]], BOX, loss="mse")
    assert metrics["loss"] == metrics["action_error"] == pytest.approx((0.25 + 1.0) / 2)


def test_choices_are_cloned_by_their_cross_entropy() -> None:
    # Probabilities 1/4, 3/4 of which the first was chosen, and 1/2, 1/2 of which the second was.
    metrics = loss_of([[0.0, math.log(3.0)], [0.0, 0.0]], [0, 1], Discrete(2))
    assert metrics["loss"] == pytest.approx((math.log(4.0) + math.log(2.0)) / 2)
    assert metrics["action_error"] == pytest.approx(1.0)  # of equal choices the first counts as made


@pytest.mark.parametrize("space", [BOX, Discrete(2)], ids=str)
def test_an_update_makes_the_actions_likelier(space: Any) -> None:
    learner = build_bc(make_setup(algo="bc", action=space, learning_rate=1e-2))
    batch = make_box_batch() if space is BOX else make_batch()
    before, first = clone(learner.state), learner.update(batch).metrics
    assert not torch.equal(before["actor.params"], learner.state["actor.params"])
    for _ in range(50):
        last = learner.update(batch).metrics
    assert last["log_likelihood"] > first["log_likelihood"] + 0.1
    assert set(last) == {"actor_loss", "log_likelihood", "action_error"}


def test_squared_errors_of_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bc\.algo_kwargs\.loss: mse needs a Box action space, but it is Discrete"):
        build_bc(make_setup(algo="bc", loss="mse"))


def test_a_network_of_ones_own_must_fit() -> None:
    with pytest.raises(
        ValueError, match=r"must return \(observations, policy outputs\), shape \(2, 4\) .* returned shape \(2, 3\)"
    ):
        build_bc(make_setup(algo="bc", action=BOX, network=nn.Linear(3, 3)))
    mine = nn.Linear(3, 4)
    before = mine.weight.detach().clone()
    build_bc(make_setup(algo="bc", action=BOX, network=mine)).update(make_box_batch())
    assert not torch.equal(mine.weight, before)


def test_the_step_size_may_fall_to_zero() -> None:
    setup = make_setup(algo="bc", action=BOX, learning_rate_schedule="cosine", total_timesteps=2)
    learner = build_bc(replace(setup))
    learner.update(make_box_batch()), learner.update(make_box_batch())
    before = clone(learner.state)
    learner.update(make_box_batch())
    assert torch.equal(before["actor.params"], learner.state["actor.params"])


def test_residual_policies_are_there_too() -> None:
    learner = build_bc(make_setup(algo="bc", network=None, hidden_sizes=(8, 8)))
    assert isinstance(learner.recipe.actor.module, MLPPolicy)
    simba = make_setup(algo="bc")
    simba = replace(simba, hparams=BCHParams(network="simba", hidden_sizes=(8, 8), batch_size=8))
    assert build_bc(simba).update(make_batch()).num_gradient_steps == 1
