"""SimBaV2: its loss by hand, whole updates beside plain PyTorch, lengths of rows, scaled rewards and its schedule."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, distributions, nn

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.simbav2 import SimBaV2, build_simbav2, simbav2_critic_loss, smallest_distribution
from rl_training.core.seeding import Streams
from rl_training.core.types import Batch
from rl_training.errors import ConfigError, SpaceError
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.normalization import ReturnScaler
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.hyperspherical import UnitLinear, unit
from rl_training.models.mlp_simbav2 import MLPSimBaV2Model
from state_comparison import assert_identical, clone

ROWS = 8


def build(**setup: Any) -> ActorCritic:
    return build_simbav2(make_box_setup("simbav2", **setup))


def recipe_of(learner: ActorCritic) -> SimBaV2:
    assert isinstance(learner.recipe, SimBaV2)
    return learner.recipe


def row_lengths(learner: ActorCritic, name: str, params: Tensor) -> Tensor:
    """The lengths of all rows of all matrices of a network, `actor` or `critics`."""
    network = getattr(learner.recipe, name)
    parts = {f"{path}.weight" for path, part in network.module.named_modules() if isinstance(part, UnitLinear)}
    named = network.named(params)
    assert all(named[part].shape[-1] > 1 for part in parts)
    return torch.cat([torch.linalg.vector_norm(named[part], dim=-1).reshape(-1) for part in sorted(parts)])


# --- The loss --------------------------------------------------------------------------------------------------------

ATOMS = torch.tensor([-1.0, 0.0, 1.0])


def test_the_smaller_mean_decides_for_the_whole_distribution() -> None:
    first = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])  # means 0 and 0
    second = torch.tensor([[0.0, 0.9, 0.1], [0.2, 0.8, 0.0]])  # means 0.1 and -0.2
    found = smallest_distribution(torch.stack((first, second)), ATOMS)
    assert torch.equal(found, torch.stack((first[0], second[1])))


def loss_by_hand(**changes: Any) -> Any:
    batch = {
        "obs": torch.zeros(1, 1),
        "next_obs": torch.ones(1, 1),
        "actions": torch.zeros(1, 1),
        "rewards": torch.tensor([0.25]),
        "terminated": torch.tensor([False]),
        "next_noise": torch.zeros(1, 1),
        **changes,
    }
    params = torch.log(torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])).requires_grad_()
    target_params = torch.log(torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.25, 0.25]]))
    metrics = simbav2_critic_loss(
        params,
        target_params,
        torch.tensor([0.0, 0.0]),
        torch.tensor(0.0),
        batch,
        gamma=0.5,
        atoms=ATOMS,
        policy=SquashedGaussian((1,)),
        apply_actor=lambda params, obs: params.expand(len(obs), 2),
        apply_logits=lambda params, obs, actions: params[:, None].expand(-1, len(obs), -1),
    )
    return metrics, params


def test_the_loss_is_the_cross_entropy_with_the_projected_target() -> None:
    # The second target has the smaller mean: 0.5, 0.25, 0.25 at 0.25 + 0.5 z = -0.25, 0.25, 0.75.
    # -0.25: a quarter of 0.5 to -1, the rest to 0. 0.25: three quarters of 0.25 to 0. 0.75: a quarter of 0.25 to 0.
    y = [0.125, 0.375 + 0.1875 + 0.0625, 0.0625 + 0.1875]
    assert sum(y) == 1.0
    metrics, params = loss_by_hand()
    both = ((0.2, 0.3, 0.5), (0.1, 0.8, 0.1))
    expected = sum(-p * math.log(q) for own in both for p, q in zip(y, own, strict=True))
    assert metrics["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["target_mean"].item() == pytest.approx(0.125)  # 0.25 + 0.5 * -0.25
    assert metrics["q_value_mean"].item() == pytest.approx((0.3 + 0.0) / 2)
    assert metrics["td_error_mean"].item() == pytest.approx((0.175 + 0.125) / 2)
    assert metrics["end_atom_mass"].item() == pytest.approx(0.125 + 0.25)
    (gradient,) = torch.autograd.grad(metrics["loss"], params)  # of logits: p - y
    torch.testing.assert_close(gradient[0], torch.tensor([0.2, 0.3, 0.5]) - torch.tensor(y), atol=1e-6, rtol=0)


def test_after_a_termination_only_the_reward_counts() -> None:
    metrics, _ = loss_by_hand(terminated=torch.tensor([True]))
    assert metrics["target_mean"].item() == pytest.approx(0.25)
    assert metrics["loss"].item() == pytest.approx(
        -0.75 * (math.log(0.3) + math.log(0.8)) - 0.25 * (math.log(0.5) + math.log(0.1)), rel=1e-5
    )


def test_discounts_of_n_step_returns_and_weights_apply() -> None:
    metrics, _ = loss_by_hand(discounts=torch.tensor([0.0]), weights=torch.tensor([2.0]))
    ended, _ = loss_by_hand(terminated=torch.tensor([True]))
    assert metrics["loss"].item() == pytest.approx(2.0 * ended["loss"].item())


# --- Lengths ---------------------------------------------------------------------------------------------------------


def test_rows_have_length_1_after_every_update_and_those_of_the_target_do_not() -> None:
    learner = build(learning_rate=0.01, tau=0.5, learning_rate_schedule="constant")
    ones = torch.ones_like(row_lengths(learner, "critics", learner.state["critic.params"]))
    for seed in range(20):
        before = learner.state["target_critic"].clone()
        learner.update(make_box_batch(seed))
        expected = before + 0.5 * (learner.state["critic.params"] - before)
        torch.testing.assert_close(learner.state["target_critic"], expected)
        for name, params in (("actor", "actor.params"), ("critics", "critic.params")):
            found = row_lengths(learner, name, learner.state[params])
            torch.testing.assert_close(found, torch.ones_like(found), atol=1e-6, rtol=0)
    assert (ones - row_lengths(learner, "critics", learner.state["target_critic"])).max() > 1e-4


@pytest.mark.compile
def test_compiled_updates_equal_eager_ones_and_keep_rows_at_length_1() -> None:
    settings: dict[str, Any] = {"batch_size": 2, "learning_rate": 0.01, "learning_rate_schedule": "constant"}
    eager, learner = (build(acceleration=mode, critic_hidden_sizes=(8,), **settings) for mode in ("eager", "compile"))
    for each in (eager, learner):
        each.update(make_box_batch(size=5 * 2))
    torch.testing.assert_close(learner.state, eager.state, rtol=1e-4, atol=1e-6)
    for seed in range(199):
        learner.update(make_box_batch(seed, size=5 * 2))
    assert learner.num_updates == 1000
    for name, params in (("actor", "actor.params"), ("critics", "critic.params")):
        found = row_lengths(learner, name, learner.state[params])
        torch.testing.assert_close(found, torch.ones_like(found), atol=1e-6, rtol=0)


def test_only_matrices_are_divided() -> None:
    learner = build()
    named = recipe_of(learner).critics.named(torch.arange(1.0, 1.0 + learner.state["critic.params"].numel()))
    params = torch.cat([values.reshape(-1) for values in named.values()])
    divided = recipe_of(learner).critics.named(recipe_of(learner)._unit_rows["critic"](params))
    for name, values in named.items():
        expected = unit(values) if name.endswith(".weight") else values
        torch.testing.assert_close(divided[name], expected)
    assert {name.rpartition(".")[2] for name in named} == {"weight", "values", "bias"}


# --- Whole updates beside plain PyTorch ------------------------------------------------------------------------------


class PlainSimBaV2:
    """SimBaV2's update with optimizers of PyTorch, written as the paper describes it."""

    def __init__(self, model: MLPSimBaV2Model) -> None:
        self.model, self.target = model, copy.deepcopy(model.critics)
        self.log_alpha = torch.tensor(math.log(0.01), requires_grad=True)
        self.atoms = torch.linspace(-5.0, 5.0, 11)
        self.optimizers = [
            torch.optim.Adam(parameters, lr=0.01)
            for parameters in ([*model.actor.parameters()], [self.log_alpha], [*model.critics.parameters()])
        ]

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.actor(obs).chunk(2, 1)
        normal = distributions.Normal(mean, log_std.exp())
        raw = mean + normal.stddev * noise
        return raw.tanh(), (normal.log_prob(raw) - torch.log(1.0 - raw.tanh() ** 2)).sum(1)

    def step(self, number: int, loss: Tensor) -> None:
        self.optimizers[number].zero_grad()
        loss.backward()
        self.optimizers[number].step()
        with torch.no_grad():
            for part in self.model.modules():
                if isinstance(part, UnitLinear):
                    part.weight.div_(part.weight.norm(dim=-1, keepdim=True))

    def projected(self, rewards: Tensor, terminated: Tensor, probabilities: Tensor, entropy_terms: Tensor) -> Tensor:
        """C51's projection, atom by atom."""
        found = torch.zeros(ROWS, 11)
        for row in range(ROWS):
            for atom in range(11):
                future = 0.0 if terminated[row] else 0.995 * float(self.atoms[atom] - entropy_terms[row])
                place = min(max(float(rewards[row]) + future, -5.0), 5.0) + 5.0  # the atoms are one apart
                low = min(math.floor(place), 9)
                found[row, low] += float(probabilities[row, atom]) * (1.0 - (place - low))
                found[row, low + 1] += float(probabilities[row, atom]) * (place - low)
        return found

    def update(self, batch: Batch, next_noise: Tensor, noise: Tensor) -> None:
        alpha = self.log_alpha.exp().detach()
        actions, log_probs = self.draw(batch["obs"], noise)
        values = (self.model.critics(batch["obs"], actions).softmax(2) * self.atoms).sum(2)
        self.step(0, (alpha * log_probs - values.min(0).values).mean())
        self.step(1, self.log_alpha.exp() * (-log_probs.detach().mean() + 1.0))  # target entropy: -1 for two numbers
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, next_log_probs = self.draw(batch["next_obs"], next_noise)
            probabilities = self.target(batch["next_obs"], next_actions).softmax(2)
            means = (probabilities * self.atoms).sum(2)
            chosen = torch.where((means[0] <= means[1])[:, None], probabilities[0], probabilities[1])
            targets = self.projected(batch["rewards"], batch["terminated"], chosen, alpha * next_log_probs)
        logits = self.model.critics(batch["obs"], batch["actions"])
        cross_entropies = [nn.functional.cross_entropy(own, targets) for own in logits]
        self.step(2, cross_entropies[0] + cross_entropies[1])
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.model.critics.parameters(), strict=True):
                slow.copy_(0.995 * slow + 0.005 * fast)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def test_updates_equal_a_plain_pytorch_simbav2() -> None:
    settings = {"learning_rate": 0.01, "learning_rate_schedule": "constant", "num_critics": 2}
    learner = build(**settings)
    model = MLPSimBaV2Model(lambda: (nn.Flatten(), 3), 2, (16,), (16,), num_critics=2, num_atoms=11)
    recipe = recipe_of(learner)
    for ours, network in ((recipe.actor, model.actor), (recipe.critics, model.critics)):
        with torch.no_grad():
            for weight, values in zip(network.parameters(), ours.named(ours.params).values(), strict=True):
                weight.copy_(values)
    plain, generator = PlainSimBaV2(model), Streams(0).numpy("noise")
    for count in range(8):
        drawn = [torch.from_numpy(generator.standard_normal((ROWS, 2), np.float32)) for _ in range(2)]
        plain.update(make_box_batch(count), *drawn)
        learner.update(make_box_batch(count))
    close: Any = {"rtol": 2e-3, "atol": 2e-4}
    torch.testing.assert_close(learner.state["actor.params"], flat(plain.model.actor), **close)
    torch.testing.assert_close(learner.state["critic.params"], flat(plain.model.critics), **close)
    torch.testing.assert_close(learner.state["target_critic"], flat(plain.target), **close)
    torch.testing.assert_close(learner.state["temperature.params"], plain.log_alpha.detach(), rtol=1e-4, atol=1e-5)


# --- Rewards and observations ----------------------------------------------------------------------------------------


def transitions(rewards: list[float], *, ended: bool = False, obs: float = 0.0) -> dict[str, np.ndarray]:
    count = len(rewards)
    return {
        "obs": np.full((count, 3), obs, np.float32),
        "next_obs": np.full((count, 3), obs + 1.0, np.float32),
        "rewards": np.array(rewards),
        "terminated": np.zeros(count, np.bool_),
        "truncated": np.full(count, ended),
    }


def test_rewards_are_scaled_when_a_batch_is_learned_from() -> None:
    scaled, plain = build(), build()
    scaled.state["reward_scale"].fill_(0.5)
    batch = make_box_batch()
    found = scaled.update(batch).metrics
    expected = plain.update({**batch, "rewards": batch["rewards"] * 0.5}).metrics
    assert found.pop("reward_scale") == 0.5
    assert expected.pop("reward_scale") == 1.0
    assert_identical(found, expected)


def test_a_step_of_the_envs_moves_the_scale() -> None:
    learner = build(num_envs=2, gamma=0.5)
    learner.observe(transitions([10.0, 0.0]))
    # G is 10 and 0: its deviation 5 exceeds 10 / 5.
    assert float(learner.state["reward_scale"]) == pytest.approx(1 / 5)
    learner.observe(transitions([-100.0, 0.0], ended=True))
    # G is 10 / 2 - 100 = -95: 95 / 5 = 19, and the deviation of 10, 0, -95, 0 is larger.
    deviation = np.std([10.0, 0.0, -95.0, 0.0])
    assert float(learner.state["reward_scale"]) == pytest.approx(1 / deviation)


def test_values_for_users_are_in_the_unit_of_the_rewards() -> None:
    learner = build()
    obs, actions = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    before = learner.estimated_returns(obs, actions)
    learner.state["reward_scale"].fill_(0.1)
    after = learner.estimated_returns(obs, actions)
    assert before is not None
    assert after is not None
    np.testing.assert_allclose(after, before * 10.0, rtol=1e-5)


def test_observations_are_normalised_without_clipping() -> None:
    learner = build()
    for value in (1.0, 1.0, 1.0, 1.001):
        learner.observe(transitions([0.0], obs=value))
    rows = np.full((1, 3), 2.0, np.float32)
    normalizer = learner.scaling.normalizer
    assert normalizer is not None
    assert normalizer.rows(rows).min() > 1_000.0
    torch.testing.assert_close(normalizer.tensor(torch.from_numpy(rows)), torch.from_numpy(normalizer.rows(rows)))
    assert normalizer.moments.mean.dtype == torch.float64


def test_the_statistics_are_saved_with_policy_and_training_state() -> None:
    learner, other = build(num_envs=2), build(num_envs=2, seed=1)
    for value in range(5):
        learner.observe(transitions([float(value), -3.0], ended=value == 2, obs=float(value)))
        learner.update(make_box_batch(value))
    other.load_policy_state_dict(clone(learner.policy_state_dict()))
    other.load_state_dict(clone(learner.state_dict()))
    for one in (learner, other):
        one.observe(transitions([1.0, 1.0], obs=5.0))
        one.update(make_box_batch(9))
    assert_identical(other.state, learner.state)
    assert_identical(other.state_dict(), learner.state_dict())


def test_a_return_ends_with_an_episode_that_a_resume_could_not_continue() -> None:
    learner, resumed = (build(num_envs=2, gamma=0.5) for _ in range(2))
    learner.observe(transitions([8.0, 8.0]))
    resumed.load_policy_state_dict(clone(learner.policy_state_dict()))
    resumed.load_state_dict(clone(learner.state_dict()))
    step = transitions([1.0, 1.0], obs=1.0)
    step["obs"][1] = 0.5  # a new episode
    resumed.observe(step)
    assert resumed.state_dict()["return_scaler"]["returns"].tolist() == [8.0 / 2 + 1.0, 1.0]


def test_a_state_without_the_newest_observations_continues_all_returns() -> None:
    learner, resumed = (build(num_envs=2, gamma=0.5) for _ in range(2))
    learner.observe(transitions([8.0, 8.0]))
    saved = clone(learner.state_dict())
    del saved["last_obs"]  # of a version before they were saved
    resumed.load_policy_state_dict(clone(learner.policy_state_dict()))
    resumed.load_state_dict(saved)
    resumed.observe(transitions([1.0, 1.0], obs=7.0))
    assert resumed.state_dict()["return_scaler"]["returns"].tolist() == [5.0, 5.0]


def test_observations_that_are_no_vectors_are_refused() -> None:
    with pytest.raises(SpaceError, match="vector observations"):
        build(observation=Discrete(4))
    assert build(observation=Box(-1.0, 1.0, (2, 2), np.float32)) is not None


def test_a_network_of_the_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="simbav2 does not accept a network"):
        build(network=nn.Linear(3, 4))


# --- Reward scale by hand --------------------------------------------------------------------------------------------


def scales(rewards: list[float], ended: list[bool], *, factor: float = 1.0, limit: float = 5.0) -> list[float]:
    scaler, found = ReturnScaler(1, 0.5, limit=limit), []
    for reward, end in zip(rewards, ended, strict=True):
        scaler.update(np.array([reward * factor]), np.array([end]))
        found.append(scaler.scale)
    return found


def test_the_scale_is_that_of_the_discounted_returns_so_far() -> None:
    # G: 1, 2 + 0.5 = 2.5, then a new episode: 4. Deviations 0, 0.75 and of (1, 2.5, 4); largest / 5: 0.2, 0.5, 0.8.
    found = scales([1.0, 2.0, 4.0], [False, True, False])
    expected = [1 / 0.2, 1 / 0.75, 1 / np.std([1.0, 2.5, 4.0])]
    assert found == pytest.approx(expected)
    assert scales([4.0, 0.0, 4.0], [True, True, True], limit=0.5)[-1] == pytest.approx(1 / 8.0)  # 4 / 0.5: the bound


def test_before_any_reward_the_scale_is_1() -> None:
    assert ReturnScaler(3, 0.99, limit=5.0).scale == pytest.approx(1.0)


def test_the_unit_of_the_rewards_does_not_matter() -> None:
    generator = np.random.default_rng(0)
    rewards, ended = generator.normal(1.0, 3.0, 200).tolist(), [step % 50 == 49 for step in range(200)]
    plain, large = np.array(scales(rewards, ended)), np.array(scales(rewards, ended, factor=100.0))
    assert (np.abs(large[50:] * 100.0 / plain[50:] - 1.0) < 1e-3).all()


def test_envs_have_returns_of_their_own() -> None:
    both, first = ReturnScaler(2, 0.9, limit=5.0), ReturnScaler(1, 0.9, limit=5.0)
    for step in range(20):
        ended = step % 7 == 6
        both.update(np.array([step, -step], np.float64), np.array([ended, False]))
        first.update(np.array([step], np.float64), np.array([ended]))
    assert both.returns[0] == first.returns[0]
    assert both.returns[1] < -50.0


# --- Schedule --------------------------------------------------------------------------------------------------------


def test_the_learning_rates_fall_to_their_final_share() -> None:
    learner = build(total_timesteps=8, gradient_updates_per_step=1, learning_rate=0.4, actor_learning_rate=0.2)
    found = []
    for _ in range(10):
        learner.update(make_box_batch())
        found.append([float(learner.state[f"{part}.learning_rate"]) for part in ("critic", "actor")])
    left = [*(1.0 - 0.5 * done / 8 for done in range(9)), 0.5]
    assert np.allclose(found, [(0.4 * share, 0.2 * share) for share in left])
