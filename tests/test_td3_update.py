"""TD3: both losses worked out by hand, whole updates beside plain PyTorch, the delay, the noise."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.td3 import build_td3, td3_actor_loss, td3_critic_loss
from rl_training.core.seeding import Streams
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.td3 import TD3HParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.models.mlp_td3 import MLPTD3Model

# In the tests of the losses an action is one number, the actor's parameter is its output for every observation, before
# it is squashed, and a critic's are a constant and a slope: Q(s, a) = constant + slope * a.


def actor(params: Tensor, obs: Tensor) -> Tensor:
    return params.expand(len(obs), 1)


def critics(params: Tensor, obs: Tensor, actions: Tensor, members: slice | None = None) -> Tensor:
    lines = params.view(-1, 2) if members is None else params.view(-1, 2)[members]
    return lines[:, :1] + lines[:, 1:] * actions[:, 0]


def lines(*constant_and_slope: tuple[float, float]) -> Tensor:
    return torch.tensor(constant_and_slope).view(-1)


def make_rows(rewards: list[float], terminated: list[bool], next_noise: list[float] | None = None) -> Batch:
    size = len(rewards)
    return {
        "obs": torch.zeros(size, 1),
        "next_obs": torch.zeros(size, 1),
        "actions": torch.zeros(size, 1),
        "rewards": torch.tensor(rewards),
        "terminated": torch.tensor(terminated),
        "next_noise": torch.tensor(next_noise or [0.0] * size)[:, None],
    }


ZERO_ACTION = torch.zeros(1)


def critic_loss(
    params: Tensor, target: Tensor, batch: Batch, *, actor_params: Tensor = ZERO_ACTION, **hparams: float
) -> Metrics:
    settings = TD3HParams(**{"gamma": 0.5, **hparams})
    return td3_critic_loss(params, target, actor_params, batch, settings, apply_actor=actor, apply_critics=critics)


# --- The losses ------------------------------------------------------------------------------------------------------


def test_bootstraps_through_truncation_but_not_termination_from_the_lesser_target() -> None:
    # 2 + 0.5 * min(3, 5) = 3.5 if alive or at a time limit, 2 if terminated.
    target, batch = lines((5.0, 0.0), (3.0, 0.0)), make_rows([2.0, 2.0], [False, True])
    metrics = critic_loss(lines((1.0, 0.0), (4.0, 0.0)), target, batch)
    assert metrics["target_mean"] == pytest.approx((3.5 + 2.0) / 2)
    # Squared errors are summed over the critics, without a half: 2.5^2 + 0.5^2 and 1^2 + 2^2.
    assert metrics["loss"] == pytest.approx((6.25 + 0.25 + 1.0 + 4.0) / 2)
    assert metrics["td_errors"].tolist() == [(2.5 + 0.5) / 2, (1.0 + 2.0) / 2]
    assert metrics["q_value_mean"] == pytest.approx(2.5)


def test_the_targets_action_is_clipped_twice() -> None:
    # Noise of deviation 0.2, clipped to 0.5: 0.2, 0.5 (of 0.8), -0.5 (of -2). The actor's tanh(1) = 0.7616 plus it:
    # 0.9616, 1 (of 1.2616), 0.2616. With Q = a and gamma = 0.5 the targets are half of that.
    batch = make_rows([0.0] * 3, [False] * 3, next_noise=[1.0, 4.0, -10.0])
    metrics = critic_loss(lines((0.0, 0.0)), lines((0.0, 1.0)), batch, actor_params=torch.ones(1))
    action = math.tanh(1.0)
    assert metrics["td_errors"].tolist() == pytest.approx([0.5 * (action + 0.2), 0.5, 0.5 * (action - 0.5)])
    wide = critic_loss(
        lines((0.0, 0.0)), lines((0.0, 1.0)), batch, actor_params=torch.ones(1), target_noise=1.0, target_noise_clip=9.0
    )
    assert wide["td_errors"].tolist() == pytest.approx([0.5, 0.5, 0.5])  # at 1, 1 and -1


def test_discounts_and_weights_of_the_rows_are_heeded() -> None:
    # 1 + 0.25 * 3 = 1.75 and 1 + 0.125 * 3 = 1.375; squared, with weights 0.5 and 2: (1.53125 + 3.78125) / 2.
    batch = make_rows([1.0, 1.0], [False, False]) | {"discounts": torch.tensor([0.25, 0.125])}
    metrics = critic_loss(lines((0.0, 0.0)), lines((3.0, 0.0)), batch | {"weights": torch.tensor([0.5, 2.0])})
    assert metrics["td_errors"].tolist() == [1.75, 1.375]
    assert metrics["loss"] == pytest.approx((0.5 * 1.75**2 + 2.0 * 1.375**2) / 2)


def test_the_gradient_of_the_critics_loss_reaches_the_critics_alone() -> None:
    params, target = lines((1.0, 0.0), (4.0, 0.0)).requires_grad_(), lines((1.0, 1.0), (2.0, 1.0)).requires_grad_()
    outputs = torch.tensor([0.1]).requires_grad_()
    loss = critic_loss(params, target, make_rows([2.0], [False]), actor_params=outputs)["loss"]
    gradient, *others = torch.autograd.grad(loss, (params, target, outputs), allow_unused=True)
    # The lesser target at tanh(0.1): 1 + 0.0997. Errors 1 - 2.5498 and 4 - 2.5498, twice that for the constants.
    y = 2.0 + 0.5 * (1.0 + math.tanh(0.1))
    assert gradient.tolist() == pytest.approx([2 * (1 - y), 0.0, 2 * (4 - y), 0.0])
    assert others == [None, None]


def test_the_actor_climbs_the_first_critic_alone() -> None:
    # Q_1 = 1 + 3 a at a = tanh(0.5): loss -(1 + 3 a), gradient -3 (1 - a^2); the second pulls the other way.
    params = torch.tensor([0.5]).requires_grad_()
    batch = make_rows([0.0, 0.0], [False, False])
    loss = td3_actor_loss(params, lines((1.0, 3.0), (-9.0, -50.0)), batch, apply_actor=actor, apply_critics=critics)
    action = math.tanh(0.5)
    assert loss["loss"].item() == pytest.approx(-(1.0 + 3.0 * action))
    (gradient,) = torch.autograd.grad(loss["loss"], params)
    assert gradient.tolist() == pytest.approx([-3.0 * (1.0 - action**2)])


# --- Whole updates ---------------------------------------------------------------------------------------------------


def new_model() -> MLPTD3Model:
    torch.manual_seed(1)
    return MLPTD3Model(lambda: (nn.Flatten(), 3), 2, (16,))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


class PlainTD3:
    """TD3 as one would write it in plain PyTorch."""

    def __init__(self, model: MLPTD3Model, *, rate: float, tau: float) -> None:
        self.model, self.target = model, copy.deepcopy(model)
        self.critic_optimizer = torch.optim.Adam(model.critics.parameters(), lr=rate)
        self.actor_optimizer = torch.optim.Adam(model.actor.parameters(), lr=rate / 2)
        self.tau, self.count = tau, 0

    def update(self, batch: Batch, noise: Tensor) -> Mapping[str, Any]:
        with torch.no_grad():
            clipped = (0.3 * noise).clamp(-0.4, 0.4)
            next_actions = (torch.tanh(self.target.actor(batch["next_obs"])) + clipped).clamp(-1.0, 1.0)
            next_values = torch.min(*self.target.critics(batch["next_obs"], next_actions))
            targets = batch["rewards"] + 0.9 * (1.0 - batch["terminated"].float()) * next_values
        first, second = self.model.critics(batch["obs"], batch["actions"])
        losses = {
            "critic_loss": nn.functional.mse_loss(first, targets) + nn.functional.mse_loss(second, targets),
        }
        self.critic_optimizer.zero_grad()
        losses["critic_loss"].backward()
        self.critic_optimizer.step()
        self.count += 1
        if self.count % 2 == 0:
            actions = torch.tanh(self.model.actor(batch["obs"]))
            losses["actor_loss"] = -self.model.critics(batch["obs"], actions)[0].mean()
            self.actor_optimizer.zero_grad()
            losses["actor_loss"].backward()
            self.actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(self.target.parameters(), self.model.parameters(), strict=True):
                    slow.copy_((1.0 - self.tau) * slow + self.tau * fast)
        return losses


def test_twenty_updates_equal_a_plain_pytorch_td3() -> None:
    learner = build_td3(
        make_box_setup(
            "td3",
            network=new_model(),
            gamma=0.9,
            tau=0.1,
            learning_rate=0.01,
            actor_learning_rate=0.005,
            target_noise=0.3,
            target_noise_clip=0.4,
        )
    )
    plain, generator = PlainTD3(new_model(), rate=0.01, tau=0.1), Streams(0).numpy("noise")
    for seed in range(20):
        noise = torch.from_numpy(generator.standard_normal((8, 2), np.float32))
        expected = plain.update(make_box_batch(seed), noise)
        metrics = learner.update(make_box_batch(seed)).metrics
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value.detach(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(learner.state["actor.params"], flat(plain.model.actor), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["critic.params"], flat(plain.model.critics), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["target_actor"], flat(plain.target.actor), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["target_critic"], flat(plain.target.critics), rtol=1e-3, atol=1e-4)


def moved(learner: ActorCritic, rounds: int, seed: int) -> tuple[int, bool]:
    """Let a call of `update` make some updates; tell the actor's steps in it, and whether the slow copies moved."""
    before = {name: value.clone() for name, value in learner.state.items()}
    result = learner.update(make_box_batch(seed, size=8 * rounds))
    assert result.num_gradient_steps == rounds
    after = learner.state
    assert int(after["critic.adam_count"] - before["critic.adam_count"]) == rounds
    slow = [not torch.equal(after[name], before[name]) for name in ("target_actor", "target_critic")]
    assert slow[0] == slow[1]
    return int(after["actor.adam_count"] - before["actor.adam_count"]), slow[0]


def test_the_delay_counts_gradient_steps_across_calls_of_several_updates() -> None:
    # Updates 3, 6, 9 and 12 are the actor's: calls of 1, 1, 2, 5 and 3 updates end at 1, 2, 4, 9 and 12.
    learner = build_td3(make_box_setup("td3", policy_delay=3))
    found = [moved(learner, rounds, seed) for seed, rounds in enumerate((1, 1, 2, 5, 3))]
    assert found == [(0, False), (0, False), (1, True), (2, True), (1, True)]
    assert learner.num_updates == 12


def test_the_slow_copies_move_by_tau_at_the_actors_updates_alone() -> None:
    learner = build_td3(make_box_setup("td3", policy_delay=2, tau=0.25))
    for seed in range(6):
        before = {name: learner.state[name].clone() for name in ("target_actor", "target_critic")}
        learner.update(make_box_batch(seed))
        share = 0.25 * (seed % 2)
        for name, slow in before.items():
            fast = learner.state[f"{name.removeprefix('target_')}.params"]
            torch.testing.assert_close(learner.state[name], slow + share * (fast - slow))


def test_the_actors_metrics_stay_those_of_its_latest_update() -> None:
    learner = build_td3(make_box_setup("td3", policy_delay=2))
    assert "actor_loss" not in learner.update(make_box_batch(0)).metrics
    first = learner.update(make_box_batch(1)).metrics
    second = learner.update(make_box_batch(2)).metrics
    assert second["actor_loss"] == first["actor_loss"]
    assert second["critic_loss"] != first["critic_loss"]
    assert set(second) == {"critic_loss", "actor_loss", "q_value_mean", "target_mean", "td_error_mean"}


# --- Acting ----------------------------------------------------------------------------------------------------------


def test_exploring_adds_noise_of_its_deviation_and_stays_within_the_bounds() -> None:
    learner = build_td3(make_box_setup("td3", exploration_noise=0.05))
    obs = np.tile(np.array([[0.3, -0.2, 0.5]], np.float32), (20_000, 1))
    best = learner.act(obs).actions
    noise = learner.act(obs, step=10, explore=True).actions - best
    assert noise.dtype == np.float32
    assert noise.mean(0) == pytest.approx([0.0, 0.0], abs=5 * 0.05 / math.sqrt(20_000))
    assert noise.std(0) == pytest.approx([0.05, 0.05], rel=0.03)
    loud = build_td3(make_box_setup("td3", exploration_noise=5.0)).act(obs, step=10, explore=True).actions
    assert np.abs(loud).max() == 1.0
    silent = build_td3(make_box_setup("td3", exploration_noise=0.0))
    assert np.array_equal(silent.act(obs, step=10, explore=True).actions, silent.act(obs).actions)
