"""TD3+BC: its paper's loss, which is ReBRAC's without what that adds, and whole updates."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import BOX, make_box_batch, make_setup
from rl_training.algorithms.rebrac import build_rebrac, build_td3_bc, first_critic, rebrac_actor_loss
from rl_training.algorithms.td3 import TD3
from rl_training.core.setup import Setup
from test_iql_update import make_dataset


def td3_bc_setup(**changes: Any) -> Setup[Any]:
    return replace(make_setup(algo="td3_bc", action=BOX, **changes), dataset=make_dataset(returns=tuple(range(50))))


def td3_bc_loss_of_the_paper(actions: Tensor, q_values: Tensor, data_actions: Tensor, alpha: float = 2.5) -> Tensor:
    """-lambda * mean Q + mean squared error, lambda = alpha / mean |Q| (Fujimoto and Gu 2021, equations 3 and 5)."""
    weight = alpha / q_values.abs().mean().detach()
    return -weight * q_values.mean() + nn.functional.mse_loss(actions, data_actions)


def test_td3_bc_is_rebrac_without_what_it_adds() -> None:
    # No penalty of the target, no layer norm, the first critic, beta_1 = 0.4 / dim(A): 2.5 times the loss is TD3+BC's.
    learner = build_rebrac(make_setup(algo="rebrac", action=BOX, layer_norm=False, critic_penalty=0.0))
    recipe, batch = learner.recipe, make_box_batch()
    assert isinstance(recipe, TD3)
    apply = {"apply_actor": recipe.actor.apply, "apply_critics": recipe.critics.apply}
    params, critic_params = learner.state["actor.params"], learner.state["critic.params"]
    loss = rebrac_actor_loss(params, critic_params, batch, penalty=0.4 / 2, estimate=first_critic, **apply)["loss"]
    actions = recipe.actor.apply(params, batch["obs"]).tanh()
    q_values = recipe.critics.apply(critic_params, batch["obs"], actions)[0]
    expected = td3_bc_loss_of_the_paper(actions, q_values, batch["actions"])
    assert 2.5 * loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_td3_bc_takes_its_papers_step() -> None:
    learner = build_td3_bc(td3_bc_setup(policy_delay=1, alpha=4.0, learning_rate=1e-2, normalize_observations=False))
    recipe = learner.recipe
    assert isinstance(recipe, TD3)
    batch, before = make_box_batch(), {name: value.clone() for name, value in learner.state.items()}
    result = learner.update(batch)
    params = before["actor.params"].requires_grad_()
    actions = recipe.actor.apply(params, batch["obs"]).tanh()
    q_values = recipe.critics.apply(learner.state["critic.params"], batch["obs"], actions)[0]
    loss = td3_bc_loss_of_the_paper(actions, q_values, batch["actions"], alpha=4.0)
    assert 4.0 * result.metrics["actor_loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    (gradient,) = torch.autograd.grad(loss, params)
    steps = learner.state["actor.params"] - before["actor.params"]
    large = gradient.abs() > 1e-4  # Adam's first step is its rate against the sign of the gradient, of any size
    torch.testing.assert_close(steps[large], -1e-2 * gradient[large].sign(), rtol=1e-2, atol=0.0)


def test_updates_see_normalised_observations_and_scaled_rewards() -> None:
    dataset = make_dataset(returns=tuple(range(50)))
    obs, next_obs = (torch.from_numpy(values[:8].copy()) for values in (dataset.obs, dataset.next_obs))
    batch = make_box_batch() | {"obs": obs, "next_obs": next_obs}
    mean, std = torch.from_numpy(dataset.obs.mean(0)), torch.from_numpy(dataset.obs.std(0))
    scaled = batch | {"obs": (obs - mean) / std, "next_obs": (next_obs - mean) / std, "rewards": batch["rewards"] * 0.5}
    learner = build_td3_bc(td3_bc_setup(reward_scale=0.5))
    plain = build_td3_bc(td3_bc_setup(normalize_observations=False))
    expected = plain.update(scaled | {"rewards": scaled["rewards"]}).metrics
    torch.testing.assert_close(learner.update(batch).metrics, expected, rtol=1e-3, atol=1e-4)
    shown = np.array(dataset.obs[:8])
    expected_actions = plain.act(scaled["obs"].numpy()).actions
    np.testing.assert_allclose(learner.act(shown).actions, expected_actions, atol=1e-4)


def test_exploring_is_playing_as_learned() -> None:
    learner, obs = build_td3_bc(td3_bc_setup()), np.array(make_dataset().obs)
    assert np.array_equal(learner.act(obs, explore=True).actions, learner.act(obs).actions)
