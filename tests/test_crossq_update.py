"""CrossQ: its loss by hand, the joint pass, whole updates beside plain PyTorch, and what moves the running moments."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn

from builders import make_box_batch, make_box_setup, make_setup
from rl_training.algorithms.crossq import CrossQ, build_crossq, crossq_critic_loss
from rl_training.core.seeding import Streams
from rl_training.core.types import Batch
from rl_training.errors import CheckpointError, ConfigError
from rl_training.learners.actor_critic import ActorCritic
from rl_training.models.batch_renorm import Renormalized
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.mlp_crossq import RenormalizedCritics
from state_comparison import assert_identical, clone

ROWS = 8


def build(**setup: Any) -> ActorCritic:
    return build_crossq(make_box_setup("crossq", **setup))


def recipe_of(learner: ActorCritic) -> CrossQ:
    assert isinstance(learner.recipe, CrossQ)
    return learner.recipe


# --- The loss --------------------------------------------------------------------------------------------------------


def test_targets_use_the_second_half_of_the_joint_pass() -> None:
    # Q(s, a) = 3, 4 and Q(s', a') = 6, 5 of two critics: y = 1 + 0.5 * 5 = 3.5, losses 0.5^2 + 0.5^2; alpha is 0.
    seen: list[tuple[Tensor, Tensor]] = []

    def critics(params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((obs, actions))
        return params, torch.tensor([7.0])

    batch = {
        "obs": torch.tensor([[1.0]]),
        "next_obs": torch.tensor([[2.0]]),
        "actions": torch.tensor([[0.25]]),
        "rewards": torch.ones(1),
        "terminated": torch.tensor([False]),
        "next_noise": torch.zeros(1, 1),
    }
    values = torch.tensor([[3.0, 6.0], [4.0, 5.0]], requires_grad=True)
    metrics = crossq_critic_loss(
        values,
        torch.tensor([0.5, -20.0]),
        torch.tensor(0.0),
        batch,
        gamma=0.5,
        policy=SquashedGaussian((1,)),
        apply_actor=lambda params, obs: params.expand(len(obs), 2),
        apply_critics=critics,
    )
    assert metrics["target_mean"].item() == pytest.approx(3.5)
    assert metrics["loss"].item() == pytest.approx(0.5)
    (gradient,) = torch.autograd.grad(metrics["loss"], values)
    assert gradient.tolist() == [[-1.0, 0.0], [1.0, 0.0]]  # nothing flows into the target
    ((obs, actions),) = seen
    assert obs.tolist() == [[1.0], [2.0]]
    assert actions[:, 0].tolist() == pytest.approx([0.25, np.tanh(0.5)])
    assert metrics["moments"].item() == 7.0


def test_one_joint_pass_is_not_two_separate_ones() -> None:
    learner = build()
    recipe, batch = recipe_of(learner), make_box_batch()
    by_batch, params = recipe._by_batch("critic", learner.state), learner.state["critic.params"]
    obs, next_obs, actions = batch["obs"], batch["next_obs"] + 3.0, batch["actions"]
    joint, _ = by_batch(params, torch.cat((obs, next_obs)), torch.cat((actions, actions)))
    first, second = by_batch(params, obs, actions)[0], by_batch(params, next_obs, actions)[0]
    assert (joint - torch.cat((first, second), 1)).abs().max() > 0.1
    # The same rows in another order are the same pass.
    order = torch.randperm(2 * ROWS)
    mixed, _ = by_batch(params, torch.cat((obs, next_obs))[order], torch.cat((actions, actions))[order])
    torch.testing.assert_close(mixed, joint[:, order])


def test_the_loss_of_the_first_half_moves_what_the_second_half_depends_on() -> None:
    # The target is a constant (gamma 0), yet the next observations change the gradient: by the moments alone.
    learner = build(gamma=0.0)
    recipe, batch = recipe_of(learner), make_box_batch() | {"next_noise": torch.zeros(ROWS, 2)}
    gradients = []
    for shift in (0.0, 1.0):
        new, metrics = recipe.learn_critics(learner.state, {**batch, "next_obs": batch["next_obs"] + shift})
        assert metrics["target_mean"] == pytest.approx(float(batch["rewards"].mean()), abs=1e-6)
        gradients.append(new["critic.adam_mean"])
    assert not torch.allclose(gradients[0], gradients[1])


# --- Whole updates beside plain PyTorch ------------------------------------------------------------------------------


class PlainRenorm(nn.Module):
    """Batch renormalisation with the state inside, as one would write it in plain PyTorch."""

    def __init__(self, size: int, warmup: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.running_mean, self.running_var, self.count, self.warmup = torch.zeros(size), torch.ones(size), 0, warmup

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.weight * (x - self.running_mean) / torch.sqrt(self.running_var + 0.001) + self.bias
        mean = x.mean(0)
        variance = ((x - mean) ** 2).mean(0)
        used_mean, used_variance = mean, variance
        if self.count >= self.warmup:
            with torch.no_grad():
                running_std = torch.sqrt(self.running_var + 0.001)
                r = torch.clip(torch.sqrt(variance + 0.001) / running_std, 1 / 3, 3)
                e = torch.clip((mean - self.running_mean) / running_std, -5, 5)
            used_mean, used_variance = mean - e * torch.sqrt(variance + 1e-12) / r, variance / r**2
        with torch.no_grad():
            self.running_mean = 0.99 * self.running_mean + 0.01 * mean
            self.running_var = 0.99 * self.running_var + 0.01 * variance
            self.count += 1
        return self.weight * (x - used_mean) / torch.sqrt(used_variance + 0.001) + self.bias


def plain_network(inputs: int, hidden: int, outputs: int, warmup: int) -> nn.Sequential:
    return nn.Sequential(
        PlainRenorm(inputs, warmup),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        PlainRenorm(hidden, warmup),
        nn.Linear(hidden, outputs),
    )


class PlainCrossQ:
    """CrossQ with two separate critics, optimizers of PyTorch and modules that keep their own statistics."""

    def __init__(self, learner: ActorCritic, warmup: int) -> None:
        self.actor = plain_network(3, 16, 4, warmup)
        self.critics = [plain_network(5, 16, 1, warmup) for _ in range(2)]
        ours = learner.recipe
        copy_weights(self.actor, ours.actor.named(ours.actor.params), None)
        for number, critic in enumerate(self.critics):
            copy_weights(critic, ours.critics.named(ours.critics.params), number)
        self.log_alpha = torch.zeros((), requires_grad=True)
        weights = [weight for critic in self.critics for weight in critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(weights, lr=0.01, betas=(0.5, 0.999))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=0.01, betas=(0.5, 0.999))
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=0.01)

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, 1)
        normal = distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * noise
        return raw.tanh(), (normal.log_prob(raw) - 2.0 * torch.log(2.0 / (raw.exp() + (-raw).exp()))).sum(1)

    def set_modes(self, *, actor: bool, critics: bool) -> None:
        self.actor.train(actor)
        for critic in self.critics:
            critic.train(critics)

    def update(self, batch: Batch, next_noise: Tensor, noise: Tensor | None) -> None:
        alpha = self.log_alpha.exp().detach()
        self.set_modes(actor=False, critics=True)
        with torch.no_grad():
            next_actions, log_probs = self.draw(batch["next_obs"], next_noise)
        rows = torch.cat(
            (torch.cat((batch["obs"], batch["actions"]), 1), torch.cat((batch["next_obs"], next_actions), 1))
        )
        values = [critic(rows)[:, 0] for critic in self.critics]
        minimum = torch.min(values[0][ROWS:], values[1][ROWS:])
        targets = batch["rewards"] + 0.99 * (1.0 - batch["terminated"].float()) * (minimum - alpha * log_probs)
        loss = sum(((value[:ROWS] - targets.detach()) ** 2).mean() for value in values)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        if noise is None:
            return
        self.set_modes(actor=True, critics=False)
        actions, log_probs = self.draw(batch["obs"], noise)
        rows = torch.cat((batch["obs"], actions), 1)
        minimum = torch.min(*(critic(rows)[:, 0] for critic in self.critics))
        self.actor_optimizer.zero_grad()
        (alpha * log_probs - minimum).mean().backward()
        self.actor_optimizer.step()
        alpha_loss = -(self.log_alpha * (log_probs.detach() - 2.0)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()


def copy_weights(network: nn.Sequential, named: dict[str, Tensor], member: int | None) -> None:
    """Copy our weights of an actor (None) or a critic; stacked layers hold their matrices transposed."""
    ours = list(named.values())
    with torch.no_grad():
        for weight, stacked in zip(network.parameters(), ours, strict=True):
            own = stacked if member is None else stacked[member]
            weight.copy_(own.T if member is not None and weight.ndim == 2 else own.reshape(weight.shape))


def flat_of(network: nn.Sequential, member: int | None) -> list[Tensor]:
    transposed = member is not None
    return [
        weight.detach().T if transposed and weight.ndim == 2 else weight.detach() for weight in network.parameters()
    ]


@pytest.mark.parametrize("warmup", [0, 4, 1_000])
def test_updates_equal_a_plain_pytorch_crossq(warmup: int) -> None:
    learner = build(policy_delay=3, learning_rate=0.01, norm_warmup=warmup)
    plain, generator = PlainCrossQ(learner, warmup), Streams(0).numpy("noise")
    for count in range(1, 16):
        draws = [
            torch.from_numpy(generator.standard_normal((ROWS, 2), np.float32)) for _ in range(1 + (count % 3 == 0))
        ]
        batch = make_box_batch(count)
        plain.update(batch, draws[0], draws[1] if count % 3 == 0 else None)
        learner.update(batch)
    state, recipe = learner.state, recipe_of(learner)
    close: Any = {"rtol": 2e-3, "atol": 2e-4}
    for found, expected in zip(
        recipe.actor.named(state["actor.params"]).values(), flat_of(plain.actor, None), strict=True
    ):
        torch.testing.assert_close(found.reshape(expected.shape), expected, **close)
    for member, critic in enumerate(plain.critics):
        stacked = recipe.critics.named(state["critic.params"]).values()
        for found, expected in zip(stacked, flat_of(critic, member), strict=True):
            torch.testing.assert_close(found[member].reshape(expected.shape), expected, **close)
    moments = recipe._moments["critic"].named(state["critic.moments"])
    for member, critic in enumerate(plain.critics):
        norms = [layer for layer in critic if isinstance(layer, PlainRenorm)]
        for (mean, variance), norm in zip(pairs(list(moments.values())), norms, strict=True):
            torch.testing.assert_close(mean[member, 0], norm.running_mean, **close)
            torch.testing.assert_close(variance[member, 0], norm.running_var, **close)
    assert (int(state["critic.moments_count"]), int(state["actor.moments_count"])) == (15, 5)
    torch.testing.assert_close(state["temperature.params"], plain.log_alpha.detach(), rtol=1e-3, atol=1e-5)
    assert "target_critic" not in state


def pairs(values: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(values[::2], values[1::2], strict=True))


# --- The running moments ---------------------------------------------------------------------------------------------


def test_each_network_moves_its_moments_in_its_own_loss_alone() -> None:
    learner = build()
    recipe, batch = recipe_of(learner), make_box_batch()
    batch |= {"noise": torch.randn(ROWS, 2), "next_noise": torch.randn(ROWS, 2)}
    critics, _ = recipe.learn_critics(learner.state, batch)
    actor, _ = recipe.learn_actor({**learner.state, **critics}, batch)
    assert not critics.keys() & {"actor.moments", "actor.moments_count", "actor.params"}
    assert not actor.keys() & {"critic.moments", "critic.moments_count", "critic.params"}
    assert not torch.equal(critics["critic.moments"], learner.state["critic.moments"])
    assert not torch.equal(actor["actor.moments"], learner.state["actor.moments"])


def test_the_actor_s_loss_sees_critics_whose_rows_do_not_depend_on_one_another() -> None:
    learner = build()
    recipe = recipe_of(learner)
    critics = recipe._by_running_moments("critic", learner.state)
    obs, actions = torch.randn(5, 3), torch.randn(5, 2)
    alone = torch.cat([critics(learner.state["critic.params"], obs[[k]], actions[[k]]) for k in range(5)], 1)
    torch.testing.assert_close(critics(learner.state["critic.params"], obs, actions), alone)


def test_running_moments_move_by_their_rate() -> None:
    learner = build(norm_rate=0.25)
    before, batch = learner.state["critic.moments"].clone(), make_box_batch()
    learner.update(batch)
    inputs = 5  # three numbers of an observation, two of an action; the first layer normalises them for both critics
    joint = torch.cat((batch["obs"], batch["next_obs"]))
    moved = learner.state["critic.moments"][:3]
    torch.testing.assert_close(moved, before[:3] + 0.25 * (joint.mean(0) - before[:3]))
    variances = learner.state["critic.moments"][2 * inputs :][:3]
    torch.testing.assert_close(variances, 0.75 + 0.25 * joint.var(0, correction=0))


def test_acting_uses_the_running_moments_and_never_moves_them() -> None:
    learner = build()
    for seed in range(6):
        learner.update(make_box_batch(seed))
    before, obs = clone(learner.state), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    together = learner.act(obs).actions
    alone = np.concatenate([learner.act(obs[[row]]).actions for row in range(4)])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert_identical(learner.state, before)
    learner.state["actor.moments"].add_(1.0)
    assert not np.allclose(learner.act(obs).actions, together)


def test_a_loaded_policy_acts_by_its_moments_and_one_without_them_is_refused() -> None:
    learner, other = build(), build(seed=1)
    for seed in range(6):
        learner.update(make_box_batch(seed))
    policy = clone(learner.policy_state_dict())
    other.load_policy_state_dict(copy.deepcopy(policy))
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert np.array_equal(other.act(obs).actions, learner.act(obs).actions)
    del policy["actor.moments"]
    with pytest.raises(CheckpointError, match=r"no actor\.moments"):
        other.load_policy_state_dict(policy)


def test_several_updates_in_a_call_thread_the_moments_through() -> None:
    together, alone = build(policy_delay=100), build(policy_delay=100)
    batch = make_box_batch(size=3 * ROWS)
    together.update(batch)
    for part in range(3):
        alone.update({name: values[part * ROWS : (part + 1) * ROWS] for name, values in batch.items()})
    assert_identical(together.state, alone.state)  # the noise is drawn row by row, in this order


def test_every_layer_of_both_networks_is_normalised_at_its_input_and_after_each_activation() -> None:
    learner = build_crossq(make_setup(algo="crossq", action=make_box_setup("crossq").spaces.action))
    actor, critics = learner.recipe.actor.module, learner.recipe.critics.module
    assert isinstance(actor, Renormalized)
    assert isinstance(critics, RenormalizedCritics)
    assert [type(layer).__name__ for layer in actor][1:] == ["BatchRenorm", "Linear", "ReLU", "BatchRenorm", "Linear"]
    assert [type(layer).__name__ for layer in critics.layers] == [
        "BatchRenorm",
        "StackedLinear",
        "ReLU",
        "BatchRenorm",
        "StackedLinear",
    ]


def test_a_network_of_the_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="crossq does not accept a network"):
        build(network=nn.Linear(3, 4))
