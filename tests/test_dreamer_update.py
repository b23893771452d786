"""Dreamer's update, part by part: what each loss says by hand, what gradients reach, and the whole as one step."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from builders import make_setup
from rl_training.acceleration import steps
from rl_training.algorithms.dreamer import (
    Dreamer,
    actor_loss,
    balanced_kl,
    build_dreamer,
    critic_loss,
    world_model_loss,
)
from rl_training.core.setup import Setup
from rl_training.core.types import Batch
from rl_training.data.recurrent_replay_buffer import build_recurrent_replay_buffer
from rl_training.errors import ConfigError
from rl_training.hparams.dreamer import DreamerHParams, network_size
from rl_training.hparams.schedules import dreamer_updates
from rl_training.learners.imagined_returns import continuation_weights, replayed_returns, return_range
from rl_training.learners.returns import lambda_return
from rl_training.models.dreamer import Observed, WorldModel, build_actor, build_critic
from rl_training.models.dreamer_actions import Choices, build_actions
from rl_training.models.dreamer_latents import kl_divergence
from rl_training.models.dreamer_rssm import CELLS, compile_cells, sizes_of
from state_comparison import assert_identical, clone, moved_by

IMAGE = Box(0, 255, (8, 8, 1), np.uint8)
NUMBERS = Box(-1.0, 1.0, (2,), np.float32)
BINS = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])


def dreamer_setup(**changes: Any) -> Setup[Any]:
    return make_setup(algo="dreamer", **{"observation": IMAGE, "num_actions": 3, "batch_size": 4, **changes})


def make_sequences(setup: Setup[Any], seed: int = 0) -> Batch:
    """Sequences of random images and actions with all kinds of ends, as the replay buffer gives them."""
    buffer, rng, actions = build_recurrent_replay_buffer(setup), np.random.default_rng(seed), setup.spaces.action
    actions.seed(seed)
    obs = rng.integers(256, size=(1, 8, 8, 1), dtype=np.uint8)
    for _ in range(60):
        next_obs = rng.integers(256, size=(1, 8, 8, 1), dtype=np.uint8)
        ends = rng.random((2, 1)) < 0.15
        buffer.add(
            {
                "obs": obs,
                "next_obs": next_obs,
                "actions": np.asarray(actions.sample())[None],
                "rewards": rng.normal(size=1),
                "terminated": ends[0],
                "truncated": ends[1],
            }
        )
        obs = rng.integers(256, size=(1, 8, 8, 1), dtype=np.uint8) if ends.any() else next_obs
    return buffer.sample(setup.hparams.batch_size)


# --- The world model's loss ------------------------------------------------------------------------------------------


def test_the_divergence_is_summed_over_latents() -> None:
    # Per latent: 0.75 log(0.75 / 0.5) + 0.25 log(0.25 / 0.5) = 0.1308; two alike make twice as much.
    p = torch.tensor([[0.75, 0.25], [0.75, 0.25]]).log()
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    one = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_divergence(p, q).item() == pytest.approx(2 * one)
    assert kl_divergence(p, p).item() == 0.0


def logits_and_kl(scale: float, free_nats: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    post, prior = (scale * torch.randn(5, 3, 4, generator=generator) for _ in range(2))
    post.requires_grad_()
    prior.requires_grad_()
    dynamics, representation = balanced_kl(
        post.log_softmax(-1), prior.log_softmax(-1), DreamerHParams(free_nats=free_nats)
    )
    return post, prior, dynamics, representation


def test_each_kl_teaches_its_side_alone() -> None:
    post, prior, dynamics, representation = logits_and_kl(2.0, 0.0)
    torch.testing.assert_close(dynamics, representation)  # the same number, other gradients
    by_dynamics: tuple[Tensor | None, ...] = torch.autograd.grad(
        dynamics.sum(), (post, prior), allow_unused=True, retain_graph=True
    )
    by_representation: tuple[Tensor | None, ...] = torch.autograd.grad(
        representation.sum(), (post, prior), allow_unused=True
    )
    assert by_dynamics[0] is None
    assert by_representation[1] is None
    torch.testing.assert_close(by_dynamics[1], prior.softmax(-1) - post.softmax(-1).detach())


def test_below_the_free_nats_nothing_is_taught_and_each_row_counts_by_itself() -> None:
    post, prior, dynamics, representation = logits_and_kl(0.9, 1.0)
    plain = kl_divergence(post.log_softmax(-1), prior.log_softmax(-1))
    assert 0 < (plain < 1.0).sum() < 5
    torch.testing.assert_close(dynamics, plain.clamp(min=1.0))
    (gradient,) = torch.autograd.grad(dynamics.mean(), prior)
    assert torch.equal(gradient.abs().sum((1, 2)) > 0.0, plain > 1.0)
    (gradient,) = torch.autograd.grad(representation.mean(), post)
    assert torch.equal(gradient.abs().sum((1, 2)) > 0.0, plain > 1.0)


def test_the_loss_is_the_weighted_sum_of_its_parts_and_only_terminations_are_ends() -> None:
    logits = torch.zeros(1, 3, 2, 2)
    seen = Observed(
        features=torch.zeros(1, 3, 1),
        posterior=torch.tensor([0.9, 0.1]).log().expand(1, 3, 2, 2),
        prior=logits.log_softmax(-1),
        errors={"image": torch.tensor([[1.0, 1.5, 4.0]]), "vector": torch.tensor([[0.0, 0.5, 2.0]])},
        reward_logits=torch.zeros(1, 3, 5),
        continue_logits=torch.tensor([[math.log(3.0)] * 3]),  # goes on with probability 3/4
    )
    batch = {
        "rewards": torch.tensor([[0.0, 1.0, 0.5]]),
        "terminated": torch.tensor([[False, False, True]]),
        "is_first": torch.tensor([[True, False, False]]),
        "actions": torch.zeros(1, 3, dtype=torch.int64),
        **dict.fromkeys(("obs", "posterior_noise"), torch.zeros(1, 3)),
    }
    hparams = DreamerHParams(free_nats=0.1, dynamics_coef=0.5, representation_coef=0.25)
    metrics = world_model_loss(torch.zeros(1), batch, hparams, lambda *_: seen, BINS)
    kl = 2 * (0.9 * math.log(1.8) + 0.1 * math.log(0.2))
    parts = {
        "reconstruction_loss": 3.0,
        "reward_loss": math.log(5.0),
        "continue_loss": (2 * math.log(4 / 3) + math.log(4.0)) / 3,
        "kl": kl,
    }
    assert {name: metrics[name].item() for name in parts} == pytest.approx(parts)
    assert metrics["loss"].item() == pytest.approx(sum(list(parts.values())[:3]) + 0.75 * kl)


# --- Returns ---------------------------------------------------------------------------------------------------------


def test_lambda_returns_by_hand() -> None:
    # lambda 0.5, discounts 0.5: R_2 = 3 + 0.5 * 40 = 23; R_1 = 2 + 0.5 (0.5 * 20 + 0.5 * 23) = 12.75;
    # R_0 = 1 + 0.5 (0.5 * 10 + 0.5 * 12.75) = 6.6875.
    rewards, values = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 40.0])
    assert lambda_return(rewards, torch.full((3,), 0.5), values, 0.5).tolist() == pytest.approx([6.6875, 12.75, 23.0])


def plain_lambda_return(rewards: Any, discounts: Any, values: Any, trace: Any) -> np.ndarray:
    following, returns = values[-1], np.zeros_like(values)
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discounts[t] * ((1 - trace[t]) * values[t] + trace[t] * following)
        returns[t] = following
    return np.asarray(returns)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_are_those_of_a_plain_loop(lam: float) -> None:
    rng = np.random.default_rng(0)
    rewards, discounts, values = (rng.random((9, 4)) for _ in range(3))
    trace = np.full((9, 4), lam) * (rng.random((9, 4)) < 0.7)
    ours = lambda_return(*(torch.from_numpy(x) for x in (rewards, discounts, values, trace)))
    np.testing.assert_allclose(ours.numpy(), plain_lambda_return(rewards, discounts, values, trace), rtol=1e-12)


def replayed_by_hand(**changes: Any) -> tuple[Tensor, Tensor]:
    """A sequence of five states whose values are 10, 20, 30, 40 and 50, rewards 1 to 4 after the first, gamma 0.5."""
    flags = {name: torch.zeros(1, 5, dtype=torch.bool) for name in ("is_first", "terminated")}
    for name, place in changes.items():
        flags[name][0, place] = True
    batch = {"rewards": torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]]), **flags}
    values = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
    return replayed_returns(batch, values, DreamerHParams(gamma=0.5, return_lambda=1.0))


def test_replayed_returns_go_on_to_the_last_state_within_an_episode() -> None:
    # 4 + 25 = 29; 3 + 14.5 = 17.5; 2 + 8.75 = 10.75; 1 + 5.375 = 6.375.
    returns, weights = replayed_by_hand()
    assert returns.flatten().tolist() == pytest.approx([6.375, 10.75, 17.5, 29.0])
    assert weights.flatten().tolist() == [1.0] * 4


def test_replayed_returns_stop_at_a_termination() -> None:
    # State 2 is final, state 3 another episode's first: 2 alone leads to state 2, and 1 + 0.5 * 2 to state 1.
    returns, weights = replayed_by_hand(terminated=2, is_first=3)
    assert returns.flatten()[[0, 1, 3]].tolist() == pytest.approx([2.0, 2.0, 29.0])
    assert weights.flatten().tolist() == [1.0, 1.0, 0.0, 1.0]  # no step leads from 2 to 3


def test_replayed_returns_bootstrap_at_a_time_limit() -> None:
    # State 2 was cut off: its value, 30, stands for what would have followed. 2 + 15 = 17; 1 + 8.5 = 9.5.
    returns, weights = replayed_by_hand(is_first=3)
    assert returns.flatten()[[0, 1, 3]].tolist() == pytest.approx([9.5, 17.0, 29.0])
    assert weights.flatten().tolist() == [1.0, 1.0, 0.0, 1.0]


def test_weights_are_the_discounted_probabilities_of_getting_there() -> None:
    # One start is alive, one is final already; the last step's discount weighs nothing.
    weights = continuation_weights(torch.tensor([1.0, 0.0]), torch.tensor([[0.9, 0.9], [0.5, 0.5], [0.1, 0.1]]))
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0], [0.9, 0.0], [0.45, 0.0]]))


def test_the_range_of_returns_moves_to_their_percentiles() -> None:
    low, high = return_range(torch.tensor(1.0), torch.tensor(2.0), torch.arange(101.0).view(1, 101), 0.1)
    assert (low.item(), high.item()) == pytest.approx((0.9 * 1 + 0.1 * 5, 0.9 * 2 + 0.1 * 95))


# --- Actor and critic ------------------------------------------------------------------------------------------------


def of_logits(logits: list[list[list[float]]]) -> Any:
    return lambda params, features: params * torch.tensor(logits)


def test_the_actors_loss_by_hand() -> None:
    # Probabilities (3/4, 1/4) and (1/2, 1/2); without a uniform share.
    batch = {
        "features": torch.zeros(1, 2, 3),
        "actions": torch.tensor([[0, 1]]),
        "advantages": torch.tensor([[2.0, -1.0]]),
        "weights": torch.tensor([[1.0, 0.5]]),
    }
    hparams = DreamerHParams(unimix=0.0, entropy_coef=0.1)
    apply = of_logits([[[math.log(3.0), 0.0], [0.0, 0.0]]])
    metrics = actor_loss(torch.ones(1), batch, hparams, apply, Choices([2], (), unimix=0.0))
    entropies = [math.log(4.0) - 0.75 * math.log(3.0), math.log(2.0)]
    gains = [2.0 * math.log(0.75) + 0.1 * entropies[0], -math.log(0.5) + 0.1 * entropies[1]]
    assert metrics["loss"].item() == pytest.approx(-(gains[0] + 0.5 * gains[1]) / 2, rel=1e-5)
    assert metrics["entropy"].item() == pytest.approx(sum(entropies) / 2)


def test_reinforce_of_numbers_teaches_the_actor_alone() -> None:
    # One number with mean tanh(0) = 0 and the deviation s at the output 0: d log pi(a) / d mean is a / s^2.
    params, features = torch.zeros(2, requires_grad=True), torch.zeros(1, 1, 3, requires_grad=True)
    actions, advantages = (torch.full(shape, 2.0, requires_grad=True) for shape in ((1, 1, 1), (1, 1)))
    batch = {"features": features, "actions": actions, "advantages": advantages.detach(), "weights": torch.ones(1, 1)}
    kind = build_actions(Box(-1.0, 1.0, (1,), np.float32), 0.0)
    hparams = DreamerHParams(entropy_coef=0.0)
    loss = actor_loss(params, batch, hparams, lambda params, _: params.view(1, 1, 2), kind)["loss"]
    by_params, by_actions = torch.autograd.grad(loss, (params, actions), allow_unused=True)
    std = 0.9 / (1.0 + math.exp(-2.0)) + 0.1
    assert by_params[0].item() == pytest.approx(-2.0 * 2.0 / std**2)
    assert by_actions is None  # no gradient through what the action leads to


def test_the_critics_loss_by_hand() -> None:
    # Two states with uniform bins. Returns 1 and 0.5: log 5 each; the slow copy expects 0: log 5 again.
    batch = {
        "features": torch.zeros(1, 2, 3),
        "returns": torch.tensor([[1.0, 0.5]]),
        "weights": torch.tensor([[1.0, 0.5]]),
    }
    apply = of_logits([[[0.0] * 5, [0.0] * 5]])
    loss = critic_loss(torch.ones(1), torch.ones(1), batch, apply, BINS, slow=0.3)
    assert loss.item() == pytest.approx((1.0 + 0.5) / 2 * 1.3 * math.log(5.0))


def test_the_slow_copy_is_a_target_only() -> None:
    params, slow = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    batch = {"features": torch.zeros(1, 1, 3), "returns": torch.ones(1, 1), "weights": torch.ones(1, 1)}
    apply = of_logits([[[0.0, 1.0, 0.0, 2.0, 1.0]]])
    loss = critic_loss(params, slow, batch, apply, BINS, slow=1.0)
    gradients = torch.autograd.grad(loss, (params, slow), allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1] is None


# --- The learner -----------------------------------------------------------------------------------------------------


def test_an_update_changes_every_part_and_the_slow_critic_by_its_rate() -> None:
    learner = build_dreamer(setup := dreamer_setup(slow_critic_rate=0.25))
    before = clone(learner.state)
    metrics = learner.update(make_sequences(setup)).metrics
    assert all(value.shape == () and torch.isfinite(value) for value in metrics.values())
    names = {"world_model_loss", "actor_loss", "critic_loss", "reconstruction_loss", "reward_loss", "continue_loss"}
    assert names | {"kl", "entropy", "imagined_return_mean"} <= set(metrics)
    for part in ("world_model", "actor", "critic"):
        assert not torch.equal(learner.state[f"{part}.params"], before[f"{part}.params"]), part
    expected = torch.lerp(before["slow_critic"], learner.state["critic.params"], 0.25)
    torch.testing.assert_close(learner.state["slow_critic"], expected)


@pytest.mark.parametrize(
    ("settings", "change", "is_same"),
    [
        ({"replay_critic_trains_world_model": False}, {"entropy_coef": 9.0, "replay_critic_coef": 7.0}, True),
        ({}, {"entropy_coef": 9.0}, True),
        ({}, {"replay_critic_coef": 7.0}, False),
        ({"replay_critic_coef": 0.0}, {"replay_critic_trains_world_model": False}, True),
        ({"action": NUMBERS, "replay_critic_coef": 0.0}, {"entropy_coef": 9.0}, True),
    ],
)
def test_of_what_actor_and_critic_learn_only_the_critics_loss_on_replayed_sequences_trains_the_world_model(
    settings: dict[str, Any], change: dict[str, Any], is_same: bool
) -> None:
    batch, gradients = make_sequences(dreamer_setup(**settings)), []
    for more in ({}, change):
        learner = build_dreamer(dreamer_setup(**{**settings, **more}))
        learner.state["critic.params"].add_(0.1)  # values that are not 0
        learner.update(batch)
        gradients.append(learner.state["world_model.square"])  # the weights move by the signs alone at first
    assert torch.equal(*gradients) == is_same


def test_the_same_seed_and_batches_give_the_same_learner() -> None:
    one, other = (build_dreamer(dreamer_setup()) for _ in range(2))
    for seed in range(3):
        for learner in (one, other):
            learner.update(make_sequences(dreamer_setup(), seed))
    assert_identical(one.state, other.state)


@pytest.mark.learning
def test_rewards_and_terminations_of_a_known_world_are_learnt() -> None:
    """Episodes of four shades, from dark to bright: the second one brings reward 1, the brightest is final."""
    sizes = {"batch_size": 16, "sequence_length": 4, "hidden_size": 16, "num_bins": 21, "symlog_limit": 1.0}
    setup = dreamer_setup(learning_rate=1e-2, imagination_horizon=1, **sizes)
    learner, buffer = build_dreamer(setup), build_recurrent_replay_buffer(setup)
    for number in range(60):
        shade = number % 3
        pictures = [np.full((1, 8, 8, 1), 80 * each, np.uint8) for each in (shade, shade + 1)]
        ends, never = np.array([shade == 2]), np.zeros(1, np.bool_)
        step = {"obs": pictures[0], "next_obs": pictures[1], "actions": np.zeros(1, np.int64)}
        buffer.add(step | {"rewards": np.array([float(shade == 0)]), "terminated": ends, "truncated": never})
    losses = [learner.update(buffer.sample(16)).metrics for _ in range(120)]
    assert losses[-1]["reconstruction_loss"] < 0.05 * losses[0]["reconstruction_loss"]
    assert losses[-1]["reward_loss"] < 0.1
    assert losses[-1]["continue_loss"] < 0.1


# --- Acting ----------------------------------------------------------------------------------------------------------


def play(learner: Dreamer, pictures: np.ndarray, **how: Any) -> list[list[int]]:
    carry, chosen = None, []
    for obs in pictures:
        result = learner.act(obs, carry=carry, **how)
        carry = result.carry
        chosen.append(result.actions.tolist())
    return chosen


def learner_of_preferences(**setup: Any) -> Dreamer:
    """One whose actor is sure of what it does, so that its actions tell its states apart."""
    learner = build_dreamer(dreamer_setup(**setup))
    actor = learner._parts["actor"].named(learner.state["actor.params"])
    list(actor.values())[-2].mul_(1_000.0)
    return learner


PICTURES = np.random.default_rng(0).integers(256, size=(12, 3, 8, 8, 1), dtype=np.uint8)


def test_actions_depend_on_the_episode_so_far() -> None:
    learner = learner_of_preferences()
    whole, forgetful = play(learner, PICTURES), [learner.act(obs).actions.tolist() for obs in PICTURES]
    assert whole[0] == forgetful[0]
    assert whole != forgetful


def test_a_row_of_zeros_in_the_carry_begins_an_episode() -> None:
    learner = learner_of_preferences()
    carry = learner.act(PICTURES[0]).carry
    assert carry is not None
    begun = {name: values.copy() for name, values in carry.items()}
    for values in begun.values():
        values[1] = 0.0
    fresh, kept, mixed = (learner.act(PICTURES[1], carry=each).carry for each in (None, carry, begun))
    assert fresh is not None
    assert kept is not None
    assert mixed is not None
    np.testing.assert_allclose(mixed["features"][1], fresh["features"][1], atol=1e-6)
    np.testing.assert_allclose(mixed["features"][[0, 2]], kept["features"][[0, 2]], atol=1e-6)
    assert not np.allclose(mixed["features"][1], kept["features"][1])


def test_the_rows_of_a_batch_do_not_see_each_other() -> None:
    learner = learner_of_preferences()
    together = play(learner, PICTURES)
    alone = [play(learner, PICTURES[:, row : row + 1]) for row in range(3)]
    assert together == [[alone[row][t][0] for row in range(3)] for t in range(12)]


def test_where_a_carry_lies_in_memory_makes_no_difference() -> None:
    learner = build_dreamer(dreamer_setup(hidden_size=64))
    carry = learner.act(PICTURES[0]).carry
    assert carry is not None
    results = [
        learner.act(PICTURES[1], carry={name: moved_by(num_bytes, values) for name, values in carry.items()}).carry
        for num_bytes in range(0, 64, 4)
    ]
    for result in results[1:]:
        assert_identical(result, results[0])


def test_exploring_draws_by_the_policys_probabilities_and_greedy_acting_draws_nothing() -> None:
    learner = build_dreamer(dreamer_setup())
    before = clone(learner.state_dict())
    play(learner, PICTURES)
    assert_identical(learner.state_dict(), before)
    drawn = learner.act(np.repeat(PICTURES[0, :1], 3_000, 0), explore=True).actions
    assert (np.bincount(drawn) / 3_000).tolist() == pytest.approx([1 / 3] * 3, abs=0.04)  # at first all alike
    assert learner.state_dict()["generators"]["action"] != before["generators"]["action"]
    assert learner.state_dict()["generators"]["eval_action"] == before["generators"]["eval_action"]


def test_sampled_evaluation_draws_from_a_stream_of_its_own() -> None:
    learner = build_dreamer(dreamer_setup(sampled_evaluation=True))
    before = clone(learner.state_dict())
    assert len(set(learner.act(np.repeat(PICTURES[0, :1], 99, 0)).actions.tolist())) == 3
    after = learner.state_dict()["generators"]
    assert after["eval_action"] != before["generators"]["eval_action"]
    assert after["action"] == before["generators"]["action"]


# --- Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"deter_size": 10, "num_blocks": 4}, "deter_size must be a multiple of num_blocks, 4, got 10"),
        ({"num_bins": 10}, "num_bins must be odd and at least 3, got 10"),
        ({"sequence_length": 1}, "sequence_length must be at least 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DreamerHParams(**values)


def test_one_setting_determines_the_sizes_and_each_can_be_overridden() -> None:
    assert network_size(DreamerHParams()) == (2_048, 256, 16, 16)  # 12m
    assert network_size(DreamerHParams(size="25m")) == (3_072, 384, 24, 24)
    assert network_size(DreamerHParams(size="50m", hidden_size=100)) == (4_096, 100, 32, 32)
    with pytest.raises(ValueError, match="deter_size must be a multiple of num_blocks, 7, got 512"):
        DreamerHParams(size="1m", num_blocks=7)


@pytest.mark.parametrize(("size", "millions"), [("1m", 0.78), ("12m", 11.9), ("25m", 26.7), ("50m", 47.3)])
def test_sizes_are_named_by_about_their_number_of_parameters(size: str, millions: float) -> None:
    space, actions = Box(0, 255, (64, 64, 3), np.uint8), Choices([18], (), unimix=0.01)
    with torch.device("meta"):
        sizes = sizes_of(DreamerHParams(size=size))
        networks = [WorldModel(space, actions, sizes), build_actor(18, sizes), build_critic(sizes)]
    assert sum(p.numel() for network in networks for p in network.parameters()) / 1e6 == pytest.approx(
        millions, rel=0.01
    )


def test_a_buffer_without_room_for_a_sequence_of_each_env_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer_capacity must hold a sequence of each env, 64 \\* 4 = 256"):
        DreamerHParams(buffer_capacity=200).check_run(4)


def test_updates_are_owed_by_what_was_replayed_per_step() -> None:
    hparams = DreamerHParams(batch_size=4, sequence_length=8, train_ratio=0.1, learning_starts=10)  # 320 steps each
    assert [dreamer_updates(hparams, step) for step in (0, 10, 329, 330, 649, 650)] == [0, 0, 0, 1, 1, 2]


def test_a_network_of_the_users_is_refused() -> None:
    with pytest.raises(ConfigError, match="dreamer does not accept a network"):
        build_dreamer(dreamer_setup(network=torch.nn.Linear(1, 1)))


# --- Compiled or captured --------------------------------------------------------------------------------------------


@pytest.mark.compile
def test_compiled_updates_equal_eager_ones() -> None:
    small = {"sequence_length": 2, "imagination_horizon": 1, "batch_size": 2, "action": Discrete(3)}
    learners = {mode: build_dreamer(dreamer_setup(acceleration=mode, **small)) for mode in ("eager", "compile")}
    for seed in range(3):
        batch = make_sequences(dreamer_setup(**small), seed)
        results = {mode: learner.update(batch).metrics for mode, learner in learners.items()}
        torch.testing.assert_close(results["compile"], results["eager"], rtol=1e-3, atol=1e-5)
    for name, value in learners["eager"].state.items():
        # LaProp divides gradients by their size. Those of the actor, at most 1e-6 here, are hardly more than rounding.
        allowed = 0.03 if name == "actor.mean" else 1e-4
        torch.testing.assert_close(learners["compile"].state[name], value, rtol=1e-3, atol=allowed)


def test_updates_by_compiled_cells_equal_plain_ones() -> None:
    # Traced and differentiated as for a GPU, without the code generation that takes most of the time.
    plain, fast = (
        Dreamer(sizes_of(setup.hparams), setup, cells)
        for setup, cells in ((dreamer_setup(), CELLS), (dreamer_setup(), compile_cells("aot_eager")))
    )
    torch._dynamo.utils.counters.clear()
    for seed in range(2):
        batch = make_sequences(dreamer_setup(), seed)
        torch.testing.assert_close(fast.update(batch).metrics, plain.update(batch).metrics, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast.state, plain.state, rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # one for each cell, not for each step


@pytest.mark.usefixtures("recorded_graphs")
def test_captured_updates_and_actions_equal_eager_ones_and_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_compile", None)
    plain, captured = (build_dreamer(dreamer_setup(acceleration=mode)) for mode in ("eager", "cuda_graph"))
    for seed in range(3):
        batch = make_sequences(dreamer_setup(), seed)
        assert_identical(captured.update(batch).metrics, plain.update(batch).metrics)
        for explore in (True, False):
            ours, theirs = (learner.act(PICTURES[seed], explore=explore) for learner in (captured, plain))
            assert_identical(ours.actions, theirs.actions)
            assert_identical(ours.carry, theirs.carry)
    assert_identical(captured.state_dict(), plain.state_dict())
    assert_identical(captured.policy_state_dict(), plain.policy_state_dict())
