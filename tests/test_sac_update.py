"""SAC: both losses worked out by hand, whole updates beside plain PyTorch, the temperature, the slow copies."""

import copy
import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.sac import SAC, build_sac, minimum_over_critics, sac_actor_loss, sac_critic_loss
from rl_training.core.seeding import Streams
from rl_training.core.types import Batch, Metrics
from rl_training.learners.actor_critic import ActorCritic
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.mlp_sac import MLPSACModel

# In the tests of the losses an action is one number, the actor's parameters are its outputs, (mean, log-deviation), for
# every observation, and a critic's are a constant and a slope: Q(s, a) = constant + slope * a.

POLICY = SquashedGaussian((1,))
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def actor(params: Tensor, obs: Tensor) -> Tensor:
    return params.expand(len(obs), 2)


def critics(params: Tensor, obs: Tensor, actions: Tensor, members: Tensor | None = None) -> Tensor:
    lines = params.view(-1, 2) if members is None else params.view(-1, 2)[members]
    return lines[:, :1] + lines[:, 1:] * actions[:, 0]


def lines(*constant_and_slope: tuple[float, float]) -> Tensor:
    return torch.tensor(constant_and_slope).view(-1)


def make_rows(rewards: list[float], terminated: list[bool], **more: list[float]) -> Batch:
    size = len(rewards)
    batch = {
        "obs": torch.zeros(size, 1),
        "next_obs": torch.zeros(size, 1),
        "actions": torch.zeros(size, 1),
        "rewards": torch.tensor(rewards),
        "terminated": torch.tensor(terminated),
        "noise": torch.zeros(size, 1),
        "next_noise": torch.zeros(size, 1),
    }
    return batch | {
        name: torch.tensor(values).view(size, *batch.get(name, torch.zeros(1)).shape[1:])
        for name, values in more.items()
    }


STANDARD = torch.zeros(2)  # without noise: action 0, of density 1 / sqrt(2 pi), where the squashing has slope 1


def critic_loss(
    params: Tensor, target: Tensor, batch: Batch, *, actor_params: Tensor = STANDARD, alpha: float | Tensor = 0.5
) -> Metrics:
    alpha = torch.as_tensor(alpha)
    return sac_critic_loss(
        params,
        target,
        actor_params,
        alpha,
        batch,
        gamma=0.5,
        policy=POLICY,
        apply_actor=actor,
        apply_critics=critics,
        estimate=minimum_over_critics,
    )


def actor_loss(params: Tensor, critic_params: Tensor, batch: Batch, alpha: float = 0.5) -> Metrics:
    return sac_actor_loss(
        params, critic_params, torch.tensor(alpha), batch, policy=POLICY, apply_actor=actor, apply_critics=critics
    )


# --- The critics' loss -----------------------------------------------------------------------------------------------


def test_bootstraps_through_truncation_but_not_termination_from_the_lesser_target_and_the_entropy() -> None:
    # min(3, 5) - 0.5 * log pi = 3 + 0.5 * 0.9189 = 3.4595; 2 + 0.5 * 3.4595 = 3.7297 if alive or at a limit, else 2.
    target = lines((5.0, 0.0), (3.0, 0.0))
    metrics = critic_loss(lines((1.0, 0.0), (4.0, 0.0)), target, make_rows([2.0, 2.0], [False, True]))
    alive = 2.0 + 0.5 * (3.0 + 0.5 * HALF_LOG_2PI)
    assert alive == pytest.approx(3.7297, abs=1e-4)
    assert metrics["target_mean"] == pytest.approx((alive + 2.0) / 2)
    # Squared errors are summed over the critics, without a half: (1 - y)^2 + (4 - y)^2, the mean over the rows.
    row, ended = (1 - alive) ** 2 + (4 - alive) ** 2, (1 - 2) ** 2 + (4 - 2) ** 2
    assert metrics["loss"] == pytest.approx((row + ended) / 2)
    assert metrics["q_value_mean"] == pytest.approx(2.5)
    # The error of a row, for prioritized replay, is the mean over the critics.
    expected = [(alive - 1 + 4 - alive) / 2, (1 + 2) / 2]
    assert metrics["td_errors"].tolist() == pytest.approx(expected)
    assert metrics["td_error_mean"] == pytest.approx(sum(expected) / 2)


def test_the_next_action_is_drawn_from_the_actor_by_the_noise() -> None:
    # Mean 0.3, deviation 0.5, noise 1 and -1: raw actions 0.8 and -0.2, squashed 0.6640 and -0.1974.
    # Targets 1 + 2 a and 1.5 - a: the lesser is 1.5 - a = 0.8360 at the first, 1 + 2 a = 0.6052 at the second.
    batch = make_rows([0.0, 0.0], [False, False], next_noise=[1.0, -1.0])
    outputs = torch.tensor([0.3, math.log(0.5)])
    metrics = critic_loss(lines((0.0, 0.0)), lines((1.0, 2.0), (1.5, -1.0)), batch, actor_params=outputs)
    expected = []
    for raw, value in ((0.8, 1.5 - math.tanh(0.8)), (-0.2, 1.0 + 2.0 * math.tanh(-0.2))):
        log_density = -0.5 - math.log(0.5) - HALF_LOG_2PI - math.log(1.0 - math.tanh(raw) ** 2)
        expected.append(0.5 * (value - 0.5 * log_density))
    assert metrics["td_errors"].tolist() == pytest.approx([abs(each) for each in expected], rel=1e-5)


def test_discounts_of_the_rows_replace_gamma() -> None:
    # As after n steps: 1 + 0.25 * 3 and 1 + 0.125 * 3 with alpha near 0.
    batch = make_rows([1.0, 1.0], [False, False], discounts=[0.25, 0.125])
    metrics = critic_loss(lines((0.0, 0.0)), lines((3.0, 0.0)), batch, alpha=0.0)
    assert metrics["td_errors"].tolist() == [1.75, 1.375]


def test_importance_weights_scale_each_row_of_the_loss_and_nothing_else() -> None:
    # Errors 2 and 1, squared 4 and 1, weights 0.5 and 4: (2 + 4) / 2.
    batch, zero = make_rows([2.0, 1.0], [True, True]), lines((0.0, 0.0))
    plain = critic_loss(zero, zero, batch)
    weighted = critic_loss(zero, zero, batch | {"weights": torch.tensor([0.5, 4.0])})
    assert plain["loss"] == pytest.approx((4.0 + 1.0) / 2)
    assert weighted["loss"] == pytest.approx(3.0)
    assert torch.equal(weighted["td_errors"], plain["td_errors"])


def test_the_gradient_reaches_the_critics_alone_and_each_as_if_it_were_the_only_one() -> None:
    # Targets 2: the gradient of (Q - 2)^2 is 2 (Q - 2), for the constant; actions are 0, so that slopes get none.
    params, target = lines((1.0, 0.0), (4.0, 0.0)).requires_grad_(), lines((1.0, 1.0), (2.0, 1.0)).requires_grad_()
    outputs, alpha = torch.tensor([0.1, 0.2]).requires_grad_(), torch.tensor(0.5).requires_grad_()
    batch = make_rows([2.0, 2.0], [True, True])
    loss = critic_loss(params, target, batch, actor_params=outputs, alpha=alpha)["loss"]
    gradient, *others = torch.autograd.grad(loss, (params, target, outputs, alpha), allow_unused=True)
    assert gradient.tolist() == [-2.0, 0.0, 4.0, 0.0]
    assert others == [None, None, None]
    alive = critic_loss(params, target, make_rows([2.0], [False]), actor_params=outputs, alpha=alpha)["loss"]
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(alive, (target, outputs, alpha), allow_unused=True)
    assert gradients == (None, None, None)


def test_permuting_the_batch_leaves_the_loss_unchanged() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = make_rows([0.0] * 6, [False, True] * 3) | {
        name: torch.randn(6, *shape, generator=generator)
        for name, shape in (("rewards", ()), ("next_noise", (1,)), ("actions", (1,)), ("weights", ()))
    }
    order = torch.randperm(6, generator=generator)
    params, target = lines((1.0, 0.5), (0.5, -1.0)), lines((1.0, 2.0), (1.5, -1.0))
    plain = critic_loss(params, target, batch)
    permuted = critic_loss(params, target, {name: values[order] for name, values in batch.items()})
    torch.testing.assert_close(permuted["loss"], plain["loss"])
    torch.testing.assert_close(permuted["td_errors"], plain["td_errors"][order])


# --- The actor's loss ------------------------------------------------------------------------------------------------


def test_the_actors_loss_and_its_gradient_by_hand() -> None:
    # As above: raw 0.8 and -0.2; the lesser critic is 1.5 - a at the first row and 1 + 2 a at the second.
    params = torch.tensor([0.3, math.log(0.5)]).requires_grad_()
    batch = make_rows([0.0, 0.0], [False, False], noise=[1.0, -1.0])
    metrics = actor_loss(params, lines((1.0, 2.0), (1.5, -1.0)), batch)
    loss, entropy, by_mean, by_log_std = 0.0, 0.0, 0.0, 0.0
    for raw, noise, constant, slope in ((0.8, 1.0, 1.5, -1.0), (-0.2, -1.0, 1.0, 2.0)):
        action = math.tanh(raw)
        log_density = -0.5 - math.log(0.5) - HALF_LOG_2PI - math.log(1.0 - action**2)
        loss += (0.5 * log_density - (constant + slope * action)) / 2
        entropy -= log_density / 2
        # d log pi / d raw = 2 tanh(raw), d a / d raw = 1 - a^2; raw moves with 1 by the mean, with std * noise by the
        # log-deviation, which log pi has itself with -1, too.
        by_raw = 0.5 * 2.0 * action - slope * (1.0 - action**2)
        by_mean += by_raw / 2
        by_log_std += (by_raw * 0.5 * noise - 0.5) / 2
    assert metrics["loss"].item() == pytest.approx(loss, rel=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-5)
    (gradient,) = torch.autograd.grad(metrics["loss"], params)
    assert gradient.tolist() == pytest.approx([by_mean, by_log_std], rel=1e-4)


def test_the_actors_step_changes_neither_the_critics_nor_their_copies() -> None:
    learner = build_sac(make_box_setup())
    batch = make_box_batch() | {"noise": torch.randn(8, 2)}
    new, _ = learner.recipe.learn_actor(learner.state, batch)
    assert {name.partition(".")[0] for name in new} == {"actor", "temperature"}
    critics_alone, _ = learner.recipe.learn_critics(learner.state, batch | {"next_noise": torch.randn(8, 2)})
    assert {name.partition(".")[0] for name in critics_alone} == {"critic", "target_critic"}


# --- Whole updates ---------------------------------------------------------------------------------------------------


def new_model() -> MLPSACModel:
    torch.manual_seed(1)
    return MLPSACModel(lambda: (nn.Flatten(), 3), 2, (16,))


class PlainSAC:
    """SAC as one would write it in plain PyTorch."""

    def __init__(
        self, model: MLPSACModel, *, rate: float, alpha_rate: float, tau: float, target_entropy: float
    ) -> None:
        self.model, self.target = model, copy.deepcopy(model.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.critic_optimizer = torch.optim.Adam(model.critics.parameters(), lr=rate)
        self.actor_optimizer = torch.optim.Adam(model.actor.parameters(), lr=rate / 2)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=alpha_rate)
        self.tau, self.target_entropy = tau, target_entropy

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.actor(obs).chunk(2, 1)
        normal = distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * noise
        actions = raw.tanh()
        return actions, (normal.log_prob(raw) - torch.log(1.0 - actions**2)).sum(1)

    def update(self, batch: Batch, next_noise: Tensor, noise: Tensor) -> Mapping[str, Any]:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, next_log_probs = self.draw(batch["next_obs"], next_noise)
            next_values = self.target(batch["next_obs"], next_actions).min(0).values - alpha * next_log_probs
            targets = batch["rewards"] + 0.9 * (1.0 - batch["terminated"].float()) * next_values
        first, second = self.model.critics(batch["obs"], batch["actions"])
        critic_loss = nn.functional.mse_loss(first, targets) + nn.functional.mse_loss(second, targets)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        actions, log_probs = self.draw(batch["obs"], noise)
        actor_loss = (alpha * log_probs - torch.min(*self.model.critics(batch["obs"], actions))).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        # The loss is linear in alpha's logarithm, as is usual, not in alpha.
        alpha_loss = -(self.log_alpha * (log_probs + self.target_entropy).detach()).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.model.critics.parameters(), strict=True):
                slow.copy_((1.0 - self.tau) * slow + self.tau * fast)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": -log_probs.mean(), "alpha": alpha}


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def test_twenty_updates_equal_a_plain_pytorch_sac() -> None:
    setup = make_box_setup(
        network=new_model(),
        gamma=0.9,
        tau=0.1,
        learning_rate=0.01,
        actor_learning_rate=0.005,
        alpha_learning_rate=0.02,
        target_entropy=-1.5,
    )
    learner = build_sac(setup)
    plain = PlainSAC(new_model(), rate=0.01, alpha_rate=0.02, tau=0.1, target_entropy=-1.5)
    generator = Streams(0).numpy("noise")
    for seed in range(20):
        noises = [torch.from_numpy(generator.standard_normal((8, 2), "float32")) for _ in range(2)]
        expected = plain.update(make_box_batch(seed), *noises)
        metrics = learner.update(make_box_batch(seed)).metrics
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value.detach(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(learner.state["actor.params"], flat(plain.model.actor), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["critic.params"], flat(plain.model.critics), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["target_critic"], flat(plain.target), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["temperature.params"], plain.log_alpha.detach(), rtol=1e-3, atol=1e-5)


def test_an_update_gives_named_scalars_and_the_error_of_each_row() -> None:
    result = build_sac(make_box_setup(max_grad_norm=1.0)).update(make_box_batch())
    assert set(result.metrics) == {
        *("critic_loss", "actor_loss", "alpha", "entropy", "q_value_mean", "target_mean", "td_error_mean"),
        *("critic_grad_norm", "actor_grad_norm"),
    }
    assert all(value.shape == () and not value.requires_grad for value in result.metrics.values())
    assert result.num_gradient_steps == 1
    assert result.td_errors is not None
    assert result.td_errors.shape == (8,)


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
def test_the_slow_copies_move_at_every_update(tau: float) -> None:
    learner = build_sac(make_box_setup(tau=tau))
    for seed in range(3):
        slow = learner.state["target_critic"].clone()
        learner.update(make_box_batch(seed))
        expected = slow + tau * (learner.state["critic.params"] - slow)
        torch.testing.assert_close(learner.state["target_critic"], expected)


# --- The temperature -------------------------------------------------------------------------------------------------


def alphas(learner: ActorCritic, updates: int = 5) -> list[float]:
    """The temperature before the first update and after each."""
    found = [float(learner.state["temperature.params"].exp())]
    for seed in range(updates):
        learner.update(make_box_batch(seed))
        found.append(float(learner.state["temperature.params"].exp()))
    return found


@pytest.mark.parametrize(("target_entropy", "direction"), [(50.0, 1), (-50.0, -1)])
def test_the_temperature_rises_below_the_target_entropy_and_falls_above(target_entropy: float, direction: int) -> None:
    # Of two squashed numbers the entropy is at most 2 log 2. Adam's first step is the whole learning rate: e^0.01.
    found = alphas(build_sac(make_box_setup(target_entropy=target_entropy, alpha_learning_rate=0.01)))
    assert found[:2] == pytest.approx([1.0, math.exp(direction * 0.01)], rel=1e-5)
    assert all(direction * (after - before) > 0.0 for before, after in itertools.pairwise(found))


def test_a_fixed_temperature_stays_and_is_what_the_loss_uses() -> None:
    learner = build_sac(make_box_setup(alpha=0.3))
    assert alphas(learner) == pytest.approx([0.3] * 6)
    assert learner.update(make_box_batch()).metrics["alpha"] == pytest.approx(0.3)


@pytest.mark.parametrize(("given", "expected"), [("auto", -2.0), (0.7, 0.7)])
def test_the_target_entropy_is_minus_the_number_of_action_dimensions_unless_given(
    given: float | str, expected: float
) -> None:
    learner = build_sac(make_box_setup(target_entropy=given))
    assert isinstance(learner.recipe, SAC)
    batch = make_box_batch() | {"noise": torch.zeros(8, 2)}
    new, metrics = learner.recipe.learn_actor(learner.state, batch)
    # The first gradient is the excess of entropy itself; Adam's first mean is a tenth of it.
    excess = float(metrics["entropy"]) - expected
    assert float(new["temperature.adam_mean"]) == pytest.approx(0.1 * excess, rel=1e-4)
