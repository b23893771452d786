"""REDQ: what it makes of its critics by hand, whole updates beside plain PyTorch, the subsets, the actor's delay."""

import copy
import math
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.redq import build_redq, mean_over_critics, minimum_over_subset
from rl_training.algorithms.sac import SAC, sac_actor_loss, sac_critic_loss
from rl_training.core.seeding import Streams
from rl_training.core.types import Batch, Metrics, State
from rl_training.learners.random_inputs import RandomInputs
from rl_training.models.continuous import CriticEnsemble
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.layers import StackedLinear
from rl_training.models.mlp_redq import MLPREDQModel

# --- What is made of the critics -------------------------------------------------------------------------------------

VALUES = torch.tensor([[1.0, 8.0], [5.0, 2.0], [3.0, 6.0]])  # of three critics for two rows


def values_of(members: Tensor | None = None) -> Tensor:
    return VALUES if members is None else VALUES[members]


@pytest.mark.parametrize(
    ("subset", "expected"),
    [([0, 1], [1.0, 2.0]), ([1, 2], [3.0, 2.0]), ([2, 0], [1.0, 6.0]), ([1], [5.0, 2.0]), ([0, 1, 2], [1.0, 2.0])],
)
def test_the_target_believes_the_least_of_the_subset(subset: list[int], expected: list[float]) -> None:
    assert minimum_over_subset(values_of, {"subset": torch.tensor(subset)}).tolist() == expected


def test_the_actor_believes_the_mean_over_critics() -> None:
    assert mean_over_critics(values_of, {"subset": torch.tensor([0])}).tolist() == pytest.approx([3.0, 16 / 3])


def constant_critics(params: Tensor, obs: Tensor, actions: Tensor, members: Tensor | None = None) -> Tensor:
    values = params if members is None else params[members]
    return values[:, None].expand(-1, len(obs))


def test_all_critics_learn_the_target_of_the_subset_and_the_actor_sees_their_mean() -> None:
    # Targets 7, 4, 9, subset {0, 2}: y = 1 + 0.5 * min(7, 9) = 4.5, for all of Q = 4, 5, 6; alpha is 0.
    batch = {
        "obs": torch.zeros(1, 1),
        "next_obs": torch.zeros(1, 1),
        "actions": torch.zeros(1, 1),
        "rewards": torch.ones(1),
        "terminated": torch.tensor([False]),
        "noise": torch.zeros(1, 1),
        "next_noise": torch.zeros(1, 1),
        "subset": torch.tensor([0, 2]),
    }
    shared: dict[str, Any] = {
        "policy": SquashedGaussian((1,)),
        "apply_actor": lambda params, obs: params.expand(len(obs), 2),
        "apply_critics": constant_critics,
    }
    values, targets = torch.tensor([4.0, 5.0, 6.0]).requires_grad_(), torch.tensor([7.0, 4.0, 9.0])
    actor, alpha = torch.zeros(2), torch.tensor(0.0)
    metrics = sac_critic_loss(values, targets, actor, alpha, batch, gamma=0.5, estimate=minimum_over_subset, **shared)
    assert metrics["target_mean"] == pytest.approx(4.5)
    assert metrics["loss"].item() == pytest.approx(0.5**2 + 0.5**2 + 1.5**2)
    (gradient,) = torch.autograd.grad(metrics["loss"], values)
    assert gradient.tolist() == [2 * -0.5, 2 * 0.5, 2 * 1.5]
    assert metrics["td_errors"].tolist() == pytest.approx([(0.5 + 0.5 + 1.5) / 3])
    loss = sac_actor_loss(actor, values, alpha, batch, estimate=mean_over_critics, **shared)["loss"]
    assert loss.item() == pytest.approx(-5.0)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("members", [[2, 0], [1], [0, 1, 2, 3]])
def test_the_members_that_are_computed_alone_have_the_values_they_have_among_all(
    members: list[int], residual: bool
) -> None:
    torch.manual_seed(0)
    critics = CriticEnsemble(lambda: (nn.Flatten(), 3), 2, (8, 8), num_critics=4, layer_norm=True, residual=residual)
    obs, actions, chosen = torch.randn(6, 3), torch.randn(6, 2), torch.tensor(members)
    everything = critics(obs, actions)
    assert everything.shape == (4, 6)
    torch.testing.assert_close(critics(obs, actions, chosen), everything[chosen])
    torch.testing.assert_close(critics(obs, actions, slice(0, 1)), everything[:1])


def test_weights_begin_as_the_authors_do() -> None:
    torch.manual_seed(0)
    model = MLPREDQModel(lambda: (nn.Flatten(), 60), 40, (300,), num_critics=3)
    stacked = [layer for layer in model.critics.modules() if isinstance(layer, StackedLinear)]
    linear = [layer for layer in model.actor.modules() if isinstance(layer, nn.Linear)]
    assert len(stacked) == len(linear) == 2
    for layer in (*stacked, *linear):
        weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
        assert bias.abs().sum() == 0.0
        bound = math.sqrt(6.0 / sum(weight.shape[-2:]))  # of each member: inputs + outputs
        assert bound * 0.9 < weight.abs().max() <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / math.sqrt(3.0), rel=0.1)
    assert not torch.equal(stacked[0].weight[0], stacked[0].weight[1])


# --- The subsets -----------------------------------------------------------------------------------------------------


def draw_subsets(num_critics: int, subset_size: int, rounds: int) -> np.ndarray:
    """As an update of so many rounds draws them: (rounds, M)."""
    recipe = build_redq(make_box_setup("redq", num_critics=num_critics, subset_size=subset_size)).recipe
    random_inputs = RandomInputs(recipe.random_inputs(rounds, 8, actor=True), torch.device("cpu"))
    drawn = random_inputs.fill(np.random.default_rng(0))["subset"]
    assert drawn.dtype == torch.int64
    return np.array(drawn.view(rounds, subset_size).numpy())


def test_a_subset_has_no_member_twice_and_each_is_as_likely_as_any_other() -> None:
    subsets = Counter(tuple(sorted(subset)) for subset in draw_subsets(4, 2, 6_000).tolist())
    assert set(subsets) == set(combinations(range(4), 2))
    # Chi-square of six classes of 1,000 each against the 99.99 % point for 5 degrees of freedom.
    assert sum((count - 1_000) ** 2 / 1_000 for count in subsets.values()) < 25.7


def test_as_many_as_there_are_is_everyone() -> None:
    assert {tuple(sorted(subset)) for subset in draw_subsets(3, 3, 50).tolist()} == {(0, 1, 2)}


def test_each_update_has_a_subset_of_its_own_within_a_call_and_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, ...]] = []
    plain_step = SAC.learn_critics

    def noting_step(recipe: SAC, state: State, batch: Batch) -> tuple[State, Metrics]:
        used.append(tuple(batch["subset"].tolist()))
        return plain_step(recipe, state, batch)

    monkeypatch.setattr(SAC, "learn_critics", noting_step)
    learner = build_redq(make_box_setup("redq", num_critics=8, subset_size=2, policy_delay=5))
    for seed in range(2):
        learner.update(make_box_batch(seed, size=8 * 20))
    assert len(used) == 40
    assert all(len(set(subset)) == 2 for subset in used)
    assert len(set(used)) > 20  # of 56 ordered pairs; 40 draws that were all alike within a call would be 2
    assert sum(one == other for one, other in pairwise(used)) < 8


# --- Whole updates ---------------------------------------------------------------------------------------------------


def new_model() -> MLPREDQModel:
    torch.manual_seed(1)
    return MLPREDQModel(lambda: (nn.Flatten(), 3), 2, (16,), num_critics=4)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


class PlainREDQ:
    """REDQ as one would write it in plain PyTorch."""

    def __init__(self, model: MLPREDQModel) -> None:
        self.model, self.target = model, copy.deepcopy(model.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.critic_optimizer = torch.optim.Adam(model.critics.parameters(), lr=0.01)
        self.actor_optimizer = torch.optim.Adam(model.actor.parameters(), lr=0.01)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=0.01)

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.actor(obs).chunk(2, 1)
        normal = distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * noise
        return raw.tanh(), (normal.log_prob(raw) - torch.log(1.0 - raw.tanh() ** 2)).sum(1)

    def update(self, batch: Batch, next_noise: Tensor, noise: Tensor | None, subset: np.ndarray) -> None:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, log_probs = self.draw(batch["next_obs"], next_noise)
            values = self.target(batch["next_obs"], next_actions)
            minimum = torch.min(values[subset[0]], values[subset[1]])
            targets = batch["rewards"] + 0.99 * (1.0 - batch["terminated"].float()) * (minimum - alpha * log_probs)
        values = self.model.critics(batch["obs"], batch["actions"])
        loss = 4 * nn.functional.mse_loss(values, targets.expand(4, -1))  # the mean, times the number of critics
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.model.critics.parameters(), strict=True):
                slow.copy_(0.995 * slow + 0.005 * fast)
        if noise is None:
            return
        actions, log_probs = self.draw(batch["obs"], noise)
        actor_loss = (alpha * log_probs - self.model.critics(batch["obs"], actions).mean(0)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        alpha_loss = -(self.log_alpha * (log_probs.detach() - 2.0)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()


def test_updates_equal_a_plain_pytorch_redq() -> None:
    learner = build_redq(make_box_setup("redq", network=new_model(), policy_delay=3, learning_rate=0.01))
    plain, generator = PlainREDQ(new_model()), Streams(0).numpy("noise")
    for count in range(1, 16):
        rows = [torch.from_numpy(generator.standard_normal((8, 2), np.float32)) for _ in range(1 + (count % 3 == 0))]
        subset = generator.random((1, 4)).argsort(1)[0, :2]
        plain.update(make_box_batch(count), rows[0], rows[1] if count % 3 == 0 else None, subset)
        learner.update(make_box_batch(count))
    torch.testing.assert_close(learner.state["actor.params"], flat(plain.model.actor), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["critic.params"], flat(plain.model.critics), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["target_critic"], flat(plain.target), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["temperature.params"], plain.log_alpha.detach(), rtol=1e-3, atol=1e-5)


def test_actor_and_temperature_step_once_per_delay_and_the_slow_copies_at_every_update() -> None:
    learner = build_redq(make_box_setup("redq", policy_delay=5, tau=0.25))
    counts = []
    for seed in range(12):
        slow = learner.state["target_critic"].clone()
        learner.update(make_box_batch(seed))
        expected = slow + 0.25 * (learner.state["critic.params"] - slow)
        torch.testing.assert_close(learner.state["target_critic"], expected)
        counts.append(tuple(int(learner.state[f"{part}.adam_count"]) for part in ("critic", "actor", "temperature")))
    assert counts == [(k, k // 5, k // 5) for k in range(1, 13)]
    learner.update(make_box_batch(0, size=8 * 13))  # up to 25, in one call
    assert [int(learner.state[f"{part}.adam_count"]) for part in ("critic", "actor", "temperature")] == [25, 5, 5]
