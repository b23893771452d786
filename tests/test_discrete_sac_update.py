"""Discrete SAC: losses by hand, whole updates beside plain PyTorch, the soft policy of a bandit, a runaway alpha."""

import copy
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from builders import make_batch, make_config, make_setup
from rl_training.algorithms.discrete_sac import (
    build_discrete_sac,
    discrete_sac_actor_loss,
    discrete_sac_critic_loss,
    target_entropy,
)
from rl_training.core.types import Batch
from rl_training.errors import TrainingError
from rl_training.hparams.discrete_sac import CriticsEstimate, DiscreteSACHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.models.mlp_discrete_sac import MLPDiscreteSACModel
from rl_training.runtime.trainer import RunOptions, TrainResult, train

# --- The losses by hand ----------------------------------------------------------------------------------------------

LOG_PROBS = torch.tensor([0.25, 0.75]).log()  # logits of a policy of two choices
TARGETS = torch.tensor([[2.0, 6.0], [4.0, 1.0]])  # of two critics


def constant_critics(params: Tensor, obs: Tensor) -> Tensor:
    return params[:, None].expand(-1, len(obs), -1)


def constant_actor(params: Tensor, obs: Tensor) -> Tensor:
    return params.expand(len(obs), -1)


def batch_of(action: int = 1, *, terminated: bool = False) -> Batch:
    return {
        "obs": torch.zeros(1, 1),
        "next_obs": torch.zeros(1, 1),
        "actions": torch.tensor([action]),
        "rewards": torch.ones(1),
        "terminated": torch.tensor([terminated]),
    }


def critic_loss(
    values: Tensor = TARGETS, *, alpha: float = 0.0, estimate: CriticsEstimate = "min", **row: Any
) -> dict[str, Tensor]:
    return discrete_sac_critic_loss(
        values,
        TARGETS,
        LOG_PROBS,
        torch.tensor(alpha),
        batch_of(**row),
        gamma=0.5,
        estimate=estimate,
        apply_actor=constant_actor,
        apply_critics=constant_critics,
    )


def test_the_target_is_the_expected_value_of_the_policy_by_the_smaller_critic() -> None:
    # min = [2, 1]: V = 0.25 * 2 + 0.75 * 1 = 1.25, y = 1 + 0.5 * 1.25 = 1.625. Q(s, a = 1) = 6 and 1.
    metrics = critic_loss()
    assert metrics["target_mean"].item() == pytest.approx(1.625)
    assert metrics["loss"].item() == pytest.approx((6 - 1.625) ** 2 + (1 - 1.625) ** 2)
    assert metrics["td_errors"].tolist() == pytest.approx([(4.375 + 0.625) / 2])
    assert critic_loss(terminated=True)["target_mean"].item() == 1.0


def test_the_mean_of_the_critics_is_a_setting() -> None:
    # mean = [3, 3.5]: V = 0.75 + 2.625 = 3.375.
    assert critic_loss(estimate="mean")["target_mean"].item() == pytest.approx(1.0 + 0.5 * 3.375)


def test_the_target_counts_the_exact_entropy() -> None:
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert critic_loss(alpha=2.0)["target_mean"].item() == pytest.approx(1.625 + 0.5 * 2.0 * entropy)


def test_only_the_chosen_action_learns() -> None:
    values = TARGETS.clone().requires_grad_()
    critic_loss(values, action=0)["loss"].backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[2 * (2 - 1.625), 0.0], [2 * (4 - 1.625), 0.0]]


def test_the_actor_minimises_the_exact_expectation_and_the_critics_get_no_gradient() -> None:
    # sum of pi * (alpha log pi - min Q) = 2 * -H - (0.25 * 2 + 0.75 * 1).
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    logits, values = LOG_PROBS.clone().requires_grad_(), TARGETS.clone().requires_grad_()
    metrics = discrete_sac_actor_loss(
        logits,
        values,
        torch.tensor(2.0),
        batch_of(),
        estimate="min",
        apply_actor=constant_actor,
        apply_critics=constant_critics,
    )
    assert metrics["loss"].item() == pytest.approx(-2.0 * entropy - 1.25)
    assert metrics["entropy"].item() == pytest.approx(entropy)
    metrics["loss"].backward()
    assert values.grad is None
    # d/d logit_a = pi_a * (f_a - sum of pi f), f = alpha log pi - Q.
    f = [2.0 * math.log(0.25) - 2.0, 2.0 * math.log(0.75) - 1.0]
    mean = 0.25 * f[0] + 0.75 * f[1]
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([0.25 * (f[0] - mean), 0.75 * (f[1] - mean)])


@pytest.mark.parametrize(
    ("ratio", "actions", "expected"),
    [
        ("auto", 2, 0.7 * math.log(2)),
        ("auto", 4, 0.7 * math.log(4)),
        ("auto", 5, 0.89 * math.log(5)),
        (0.5, 3, 0.5 * math.log(3)),
    ],
)
def test_the_entropy_aims_at_a_share_of_the_largest(ratio: Any, actions: int, expected: float) -> None:
    assert target_entropy(DiscreteSACHParams(target_entropy_ratio=ratio), actions) == pytest.approx(expected)


# --- Whole updates ---------------------------------------------------------------------------------------------------


def new_model() -> MLPDiscreteSACModel:
    torch.manual_seed(1)
    return MLPDiscreteSACModel(lambda: (nn.Flatten(), 3), 4, (16,))


def build(**settings: Any) -> ActorCritic:
    return build_discrete_sac(make_setup(algo="discrete_sac", num_actions=4, **settings))


class PlainDiscreteSAC:
    """Discrete SAC as one would write it in plain PyTorch: four actions, c = 0.7."""

    def __init__(self, model: MLPDiscreteSACModel) -> None:
        self.model, self.target = model, copy.deepcopy(model.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.critic_optimizer = torch.optim.Adam(model.critics.parameters(), lr=0.01)
        self.actor_optimizer = torch.optim.Adam(model.actor.parameters(), lr=0.01)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=0.01)

    def update(self, batch: Batch) -> None:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=self.model.actor(batch["next_obs"]))
            smaller = torch.minimum(*self.target(batch["next_obs"]))
            values = (policy.probs * smaller).sum(1) + alpha * policy.entropy()
            targets = batch["rewards"] + 0.99 * (1.0 - batch["terminated"].float()) * values
        rows = torch.arange(len(targets))
        losses = [(q[rows, batch["actions"]] - targets).square().mean() for q in self.model.critics(batch["obs"])]
        self.critic_optimizer.zero_grad()
        (losses[0] + losses[1]).backward()
        self.critic_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.model.critics.parameters(), strict=True):
                slow.copy_(0.995 * slow + 0.005 * fast)
        policy = torch.distributions.Categorical(logits=self.model.actor(batch["obs"]))
        smaller = torch.minimum(*self.model.critics(batch["obs"])).detach()
        actor_loss = -((policy.probs * smaller).sum(1) + alpha * policy.entropy()).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        excess = policy.entropy().mean().detach() - 0.7 * math.log(4)
        self.alpha_optimizer.zero_grad()
        (self.log_alpha * excess).backward()
        self.alpha_optimizer.step()


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def test_updates_equal_a_plain_pytorch_discrete_sac() -> None:
    learner, plain = build(network=new_model(), learning_rate=0.01), PlainDiscreteSAC(new_model())
    for seed in range(10):
        batch = make_batch(seed, num_actions=4)
        plain.update(batch)
        learner.update(batch)
    torch.testing.assert_close(learner.state["actor.params"], flat(plain.model.actor), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["critic.params"], flat(plain.model.critics), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["target_critic"], flat(plain.target), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["temperature.params"], plain.log_alpha.detach(), rtol=1e-3, atol=1e-5)


def test_the_critics_may_have_an_entropy_of_their_own() -> None:
    batch = make_batch(num_actions=4)
    targets = {
        name: float(build(network=new_model(), critic_entropy=weight).update(batch).metrics["target_mean"])
        for name, weight in (("auto", "auto"), ("one", 1.0), ("half", 0.5), ("none", 0.0))
    }
    assert targets["auto"] == targets["one"]  # alpha begins at 1
    assert targets["half"] == pytest.approx((targets["one"] + targets["none"]) / 2, rel=1e-5)
    assert targets["none"] < targets["one"]


def test_the_temperature_stays_below_its_limit() -> None:
    learner = build(max_alpha=1.5, learning_rate=0.1, target_entropy_ratio=0.999)
    for seed in range(30):
        learner.update(make_batch(seed, num_actions=4) | {"rewards": 100.0 * torch.arange(8.0)})
    assert float(learner.state["temperature.params"].exp()) <= 1.5 * (1 + 1e-6)


def test_a_first_temperature_that_its_limit_would_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="initial_alpha must be below max_alpha, 10, got 20"):
        DiscreteSACHParams(initial_alpha=20.0)
    assert DiscreteSACHParams(initial_alpha=20.0, max_alpha=30.0).max_alpha == 30.0
    assert DiscreteSACHParams(alpha=20.0, initial_alpha=20.0).alpha == 20.0  # fixed: it has no limit


# --- Acting ----------------------------------------------------------------------------------------------------------


def test_exploring_samples_the_policy_and_the_best_action_is_the_most_likely() -> None:
    learner = build()
    obs = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    logits = torch.from_numpy(learner._outputs(learner.scaling.rows(obs)))[0]
    many = np.repeat(obs, 20_000, axis=0)
    actions = learner.act(many, step=10**6, explore=True).actions
    assert actions.dtype == np.int64
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, logits.softmax(0).numpy(), atol=0.015)
    assert learner.act(obs).actions.tolist() == [int(logits.argmax())]


def test_warm_up_is_uniform() -> None:
    actions = build(learning_starts=5).act(np.zeros((20_000, 3), np.float32), step=4, explore=True).actions
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, 0.25, atol=0.015)


def test_estimates_are_those_of_the_chosen_actions() -> None:
    learner = build()
    obs, actions = np.ones((3, 3), np.float32), np.array([0, 3, 1])
    values = learner.recipe.critics.module(torch.from_numpy(obs)).amin(0).numpy()
    found = learner.estimated_returns(obs, actions)
    assert found is not None
    np.testing.assert_allclose(found, values[np.arange(3), actions])


def test_networks_of_ones_own_must_fit() -> None:
    with pytest.raises(ValueError, match=r"critics must return \(critics, observations, actions\)"):
        build(network=MLPDiscreteSACModel(lambda: (nn.Flatten(), 3), 4, (8,), num_critics=3))
    with pytest.raises(ValueError, match=r"actor must return \(observations, actions\)"):
        build(network=MLPDiscreteSACModel(lambda: (nn.Flatten(), 3), 2, (8,)))


# --- What is learned -------------------------------------------------------------------------------------------------


class Bandit(gym.Env[np.ndarray, np.int64]):
    """One step; the reward depends on the choice alone."""

    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), Discrete(2)

    def __init__(self, rewards: tuple[float, float]) -> None:
        self._rewards = rewards

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> Any:
        return np.ones(1, np.float32), self._rewards[int(action)], True, False, {}


def learn(tmp_path: Path, rewards: tuple[float, float], steps: int, **settings: Any) -> TrainResult:
    config = make_config(
        tmp_path,
        algo="discrete_sac",
        total_timesteps=steps,
        log_interval=50,
        algo_kwargs={"learning_rate": 0.02, "hidden_sizes": [8], "batch_size": 16, **settings},
    )
    return train(config, RunOptions(env_factory=lambda: Bandit(rewards), show_progress=False))


@pytest.mark.learning
def test_the_policy_of_a_bandit_is_the_softmax_of_the_rewards_over_alpha(tmp_path: Path) -> None:
    # softmax([1, 0.5] / 0.5) = [1, e^-1] / (1 + e^-1).
    result = learn(tmp_path, (1.0, 0.5), 400, alpha=0.5)
    learner: Any = result.algorithm
    probabilities = torch.from_numpy(learner._outputs(learner.scaling.rows(np.ones((1, 1), np.float32)))).softmax(1)[0]
    expected = 1.0 / (1.0 + math.exp(-1.0))
    assert probabilities.tolist() == pytest.approx([expected, 1.0 - expected], abs=0.03)


@pytest.mark.learning
def test_an_entropy_that_cannot_be_reached_stops_the_run_before_it_diverges(tmp_path: Path) -> None:
    # The first action is better by 100. An entropy of 0.98 * log 2 needs 100 / alpha below 0.34: alpha above 290.
    with pytest.raises(TrainingError, match=r"alpha has reached max_alpha, 10, .* lower target_entropy_ratio"):
        learn(tmp_path, (100.0, 0.0), 1_000, target_entropy_ratio=0.98)
