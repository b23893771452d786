"""GAIL's discriminator by hand, its rewards, and an update: what the policy learns from, and what it never sees."""

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from rl_training.algorithms.gail import GAIL, build_gail, discriminator_loss, imitation_rewards
from rl_training.algorithms.ppo import build_ppo
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces, observation_field, transition_fields
from rl_training.core.types import Batch
from rl_training.data.expert_rollouts import build_expert_rollouts
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.envs.tiny import TinyDict
from rl_training.hparams.gail import GAILHParams
from rl_training.learners.returns import gae
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_gail_discriminator import MLPGAILDiscriminator, action_encoder
from rl_training.runtime.run_spaces import spaces_of
from rollouts import make_rollout
from state_comparison import assert_identical, clone

SMALL = {
    "hidden_sizes": (16,),
    "num_steps": 6,
    "minibatch_size": 4,
    "update_epochs": 2,
    "discriminator_updates": 3,
    "discriminator_batch_size": 5,
    "discriminator_hidden_sizes": (8,),
}
LN2 = math.log(2.0)


def make_expert(spaces: Spaces, rows: int = 20, seed: int = 0) -> TransitionDataset:
    """Random observations with one action, always the same."""
    spaces.observation.seed(seed)
    fields = transition_fields(spaces)
    obs = np.stack([spaces.observation.sample() for _ in range(rows)]).astype(
        observation_field(spaces.observation).dtype
    )
    return TransitionDataset(
        obs=obs,
        actions=np.ones((rows, *fields["actions"].shape), fields["actions"].dtype),
        rewards=np.zeros(rows, np.float32),
        next_obs=obs,
        terminated=np.zeros(rows, np.bool_),
        truncated=np.zeros(rows, np.bool_),
        spaces=spaces,
    )


def make_gail_setup(
    *, observation: gym.Space[Any] | None = None, action: gym.Space[Any] | None = None, seed: int = 0, **changes: Any
) -> Setup[GAILHParams]:
    """What a small GAIL is built from: three observed numbers, two choices, an expert that always takes the second."""
    spaces = Spaces(observation or Box(-1.0, 1.0, (3,), np.float32), action or Discrete(2))
    acceleration = changes.pop("acceleration", "eager")
    return Setup(
        spaces=spaces,
        hparams=GAILHParams(**{**SMALL, **changes}),
        total_timesteps=1_000,
        total_updates=1_000,
        streams=Streams(seed),
        num_envs=2,
        acceleration=acceleration,
        dataset=make_expert(spaces),
    )


def make_gail_rollout(setup: Setup[GAILHParams], seed: int = 0, *, ends: float = 0.2) -> Batch:
    """A random rollout, with rows of the expert's, as the loop hands it to GAIL."""
    batch = make_rollout(setup, seed, ends=ends)
    generator = torch.Generator().manual_seed(seed)
    assert setup.dataset is not None
    rows = setup.hparams.discriminator_updates * setup.hparams.discriminator_batch_size
    chosen = torch.randint(len(setup.dataset), (rows,), generator=generator)
    for name in ("obs", "actions"):
        batch[f"expert_{name}"] = torch.from_numpy(getattr(setup.dataset, name).copy())[chosen]
    return batch


# --- The loss --------------------------------------------------------------------------------------------------------


def loss_of(params: Tensor, expert: list[float], policy: list[float], mix: list[float], **hparams: Any) -> Batch:
    """The loss of a discriminator whose inputs are single numbers and whose logit is params[0] * x + params[1]."""
    batch = {
        "expert_obs": torch.tensor(expert)[:, None],
        "expert_actions": torch.zeros(len(expert)),
        "obs": torch.tensor(policy)[:, None],
        "actions": torch.zeros(len(policy)),
        "mix": torch.tensor(mix),
    }
    return discriminator_loss(
        params,
        batch,
        GAILHParams(**{"discriminator_ent_coef": 0.0, "gradient_penalty": 0.0, **hparams}),
        inputs=lambda params, obs, actions, absorbing: obs,
        logits=lambda params, inputs: params[0] * inputs[:, 0] + params[1],
    )


def test_the_cross_entropy_by_hand() -> None:
    # Logits of the expert 0 and ln 3, D = 1/2 and 3/4; of the policy -ln 3 and 0, D = 1/4 and 1/2.
    metrics = loss_of(torch.tensor([1.0, 0.0]), [0.0, math.log(3.0)], [-math.log(3.0), 0.0], [0.0, 0.0])
    expert = -(math.log(1 / 2) + math.log(3 / 4)) / 2
    policy = -(math.log(1 - 1 / 4) + math.log(1 - 1 / 2)) / 2
    assert float(metrics["loss"]) == pytest.approx(expert + policy)
    # A logit of 0 is right about nobody.
    assert (float(metrics["expert_accuracy"]), float(metrics["policy_accuracy"])) == (0.5, 0.5)
    entropies = [LN2, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))] * 2
    assert float(metrics["discriminator_entropy"]) == pytest.approx(sum(entropies) / 4)


def test_the_gradient_pushes_logits_of_the_expert_up_and_those_of_the_policy_down() -> None:
    # At L = 0 the gradient of -log D is -1/2 per row of the expert, that of -log(1 - D) is 1/2 per row of the policy.
    logits = torch.zeros(2, requires_grad=True)
    batch = {name: torch.zeros(1, 1) for name in ("expert_obs", "expert_actions", "actions")}
    batch |= {"obs": torch.ones(1, 1), "mix": torch.zeros(1)}
    metrics = discriminator_loss(
        logits,
        batch,
        GAILHParams(gradient_penalty=0.0, discriminator_ent_coef=0.0),
        inputs=lambda params, obs, actions, absorbing: obs,
        logits=lambda params, inputs: params[inputs[:, 0].long()],
    )
    (gradient,) = torch.autograd.grad(metrics["loss"], logits)
    assert gradient.tolist() == [-0.5, 0.5]


def test_the_entropy_of_verdicts_is_subtracted() -> None:
    params = torch.tensor([1.0, 0.0])
    plain, soft = (loss_of(params, [2.0], [-1.0], [0.0], discriminator_ent_coef=coef) for coef in (0.0, 0.3))
    assert float(soft["loss"]) == pytest.approx(float(plain["loss"]) - 0.3 * float(plain["discriminator_entropy"]))


def test_the_gradient_penalty_by_hand() -> None:
    # The logit is 3 x + 1, of slope 3 everywhere: (3 - 1)^2 = 4, whose derivative by the slope is 2 * (3 - 1) = 4.
    params = torch.tensor([3.0, 1.0], requires_grad=True)
    metrics = loss_of(params, [2.0, 5.0], [-1.0, 0.0], [0.25, 0.5], gradient_penalty=10.0)
    plain = loss_of(params, [2.0, 5.0], [-1.0, 0.0], [0.25, 0.5])
    assert float(metrics["gradient_penalty"]) == pytest.approx(4.0)
    (gradient,) = torch.autograd.grad(metrics["loss"] - plain["loss"], params)
    assert gradient.tolist() == pytest.approx([40.0, 0.0], abs=1e-4)
    assert "gradient_penalty" not in plain


def test_the_slope_is_taken_between_policy_and_expert() -> None:
    # The logit is x^2, of slope 2 x. Between the policy's 0 and the expert's 4: at 1/4 of the way 2, at 1/2 of it 4.
    batch = {name: torch.zeros(2, 1) for name in ("obs", "actions", "expert_actions")}
    batch |= {"expert_obs": torch.full((2, 1), 4.0), "mix": torch.tensor([0.25, 0.5])}
    metrics = discriminator_loss(
        torch.zeros(1, requires_grad=True),
        batch,
        GAILHParams(),
        inputs=lambda params, obs, actions, absorbing: obs,
        logits=lambda params, inputs: inputs[:, 0].square() + params,
    )
    assert float(metrics["gradient_penalty"]) == pytest.approx(((2.0 - 1.0) ** 2 + (4.0 - 1.0) ** 2) / 2)


def test_an_even_spot_has_a_gradient() -> None:
    params = torch.zeros(2, requires_grad=True)  # slope 0: the norm's root would have an infinite derivative
    (gradient,) = torch.autograd.grad(loss_of(params, [1.0], [0.0], [0.5], gradient_penalty=1.0)["loss"], params)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("positive", [LN2, math.log(4.0), 100.0, 0.0]),  # -log(1 - D) of D = 1/2, 3/4, about 1 and about 0
        ("negative", [-LN2, math.log(3 / 4), 0.0, -100.0]),  # log D
        ("airl", [0.0, math.log(3.0), 100.0, -100.0]),  # log D - log(1 - D)
    ],
)
def test_the_forms_of_the_reward_by_hand(form: str, expected: list[float]) -> None:
    logits = torch.tensor([0.0, math.log(3.0), 100.0, -100.0])
    assert imitation_rewards(logits, form).tolist() == pytest.approx(expected, abs=1e-6)


# --- The network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (Discrete(3, start=5), [0, 2], [[1, 0, 0], [0, 0, 1]]),  # ours count from 0
        (MultiDiscrete([2, 3]), [[1, 0], [0, 2]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (MultiBinary(2), [[1, 0], [1, 1]], [[1, 0], [1, 1]]),
        (Box(-2.0, 2.0, (2,)), [[0.5, -3.0], [1.5, 1.0]], [[0.5, -1.0], [1.0, 1.0]]),  # as the env is given them
    ],
)
def test_actions_enter_one_hot_or_clipped(space: Any, actions: list[Any], expected: list[list[float]]) -> None:
    encoder, size = action_encoder(space)
    assert encoder(torch.tensor(actions)).tolist() == expected
    assert size == len(expected[0])


def test_the_discriminator_gives_a_logit_per_row_and_its_halves_make_the_whole() -> None:
    space = Box(-1.0, 1.0, (3,), np.float32)
    network = MLPGAILDiscriminator(lambda: build_encoder(space), Discrete(2), (8,))
    obs, actions = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    inputs = network.inputs(obs, actions)
    assert inputs.shape == (5, 5)
    assert network(obs, actions).shape == (5,)
    assert torch.equal(network.layers(inputs), network(obs, actions))


def test_the_absorbing_state_is_a_point_of_its_own() -> None:
    space = Box(-1.0, 1.0, (3,), np.float32)
    network = MLPGAILDiscriminator(lambda: build_encoder(space), Discrete(2), (8,), absorbing_state=True)
    obs, actions = torch.ones(3, 3), torch.tensor([1, 1, 0])
    inputs = network.inputs(obs, actions, torch.tensor([False, True, False]))
    assert inputs.tolist() == [[1, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0]]
    assert torch.equal(network.layers(inputs)[1:2], network.absorbing_logit())
    assert torch.equal(network(obs, actions)[::2], network.layers(inputs)[::2])  # none is, if nobody says so


# --- The update ------------------------------------------------------------------------------------------------------


def learn(setup: Setup[GAILHParams], rollouts: int = 3) -> tuple[GAIL, list[dict[str, float]]]:
    algorithm = build_gail(setup)
    results = [algorithm.update(make_gail_rollout(setup, seed)) for seed in range(rollouts)]
    return algorithm, [{name: float(value) for name, value in result.metrics.items()} for result in results]


def test_the_environments_rewards_never_reach_the_learner() -> None:
    setup = make_gail_setup(normalize="both")
    first, other = build_gail(setup), build_gail(setup)
    for seed in range(3):
        rollout = make_gail_rollout(setup, seed)
        ours = first.update(clone(rollout)).metrics
        theirs = other.update({**clone(rollout), "rewards": torch.full((12,), 1e6)}).metrics
        assert float(theirs.pop("env_reward_mean")) == 1e6
        assert float(ours.pop("env_reward_mean")) == pytest.approx(float(rollout["rewards"].mean()))
        assert_identical(theirs, ours)
    assert_identical(other.state_dict(), first.state_dict())
    assert_identical(other.policy_state_dict(), first.policy_state_dict())


@pytest.mark.parametrize("form", ["positive", "negative", "airl"])
def test_ppo_learns_from_the_rewards_of_the_discriminator_that_has_just_learned(form: str) -> None:
    setup = make_gail_setup(reward_form=form)
    algorithm, plain, rollout = build_gail(setup), build_ppo(setup), make_gail_rollout(setup)
    before = clone(rollout)
    metrics = algorithm.update(rollout).metrics
    assert_identical(rollout, before)  # the loop's batch is left alone
    obs = (rollout["obs"] - algorithm._state["obs_mean"]) * algorithm._state["obs_scale"]
    rewards = imitation_rewards(algorithm._discriminator(obs, rollout["actions"]), form)
    own = {name: values for name, values in rollout.items() if not name.startswith("expert_")}
    plain.update({**own, "rewards": rewards})
    assert_identical(algorithm.policy.policy_state_dict(), plain.policy_state_dict())
    assert float(metrics["imitation_reward_mean"]) == pytest.approx(float(rewards.mean()))


def test_an_update_counts_and_names_what_it_did() -> None:
    setup = make_gail_setup()
    algorithm, rollout = build_gail(setup), make_gail_rollout(setup)
    result = algorithm.update(rollout)
    logits = algorithm.policy._network.module(rollout["expert_obs"])[:, :2]
    expected = torch.log_softmax(logits, 1)[:, 1].mean()  # the expert takes action 1
    assert float(result.metrics["expert_log_likelihood"]) == pytest.approx(float(expected), rel=1e-5)
    assert result.num_gradient_steps == 2 * 3  # the policy's: two epochs of three minibatches
    wanted = {"policy_loss", "discriminator_loss", "discriminator_accuracy", "expert_accuracy", "policy_accuracy"}
    assert wanted | {"imitation_reward_mean", "env_reward_mean", "gradient_penalty"} <= result.metrics.keys()
    assert all(value.shape == () for value in result.metrics.values())


@pytest.mark.learning
def test_the_discriminator_learns_who_is_who_and_the_policy_to_do_as_the_expert() -> None:
    # The expert always takes action 1, the policy at first either.
    setup = make_gail_setup(learning_rate=0.02, learning_rate_schedule="constant", discriminator_learning_rate=0.01)
    algorithm = build_gail(setup)
    rng = np.random.default_rng(0)
    for seed in range(40):
        rollout = make_gail_rollout(setup, seed)
        actions = algorithm.act(rollout["obs"].numpy(), explore=True).actions
        result = algorithm.update(rollout | {"actions": torch.from_numpy(actions)})
        if seed == 10:
            assert float(result.metrics["expert_accuracy"]) > 0.9
    chosen = algorithm.act(rng.uniform(-1.0, 1.0, (200, 3)).astype(np.float32)).actions
    assert chosen.mean() > 0.95


def test_observations_are_normalised_by_the_experts_statistics() -> None:
    setup = make_gail_setup()
    assert setup.dataset is not None
    state = build_gail(setup)._state
    np.testing.assert_allclose(state["obs_mean"], setup.dataset.obs.mean(0), rtol=1e-5)
    np.testing.assert_allclose(state["obs_scale"], 1.0 / setup.dataset.obs.std(0), rtol=1e-5)
    assert "obs_mean" not in build_gail(make_gail_setup(normalize_discriminator=False))._state


def test_what_acts_alone_needs_no_expert() -> None:
    setup = make_gail_setup()
    trained, _ = learn(setup)
    acting = build_gail(replace(setup, dataset=None))
    acting.load_policy_state_dict(clone(trained.policy_state_dict()))
    obs = np.random.default_rng(0).uniform(-1.0, 1.0, (50, 3)).astype(np.float32)
    assert np.array_equal(acting.act(obs).actions, trained.act(obs).actions)


def test_the_discriminators_weights_are_its_own() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_gail(make_gail_setup(seed=seed))._state["discriminator.params"] for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_network_of_the_users_is_the_policys() -> None:
    setup = replace(make_gail_setup(), network=nn.Linear(3, 3))
    algorithm = build_gail(setup)
    algorithm.update(make_gail_rollout(setup))
    assert algorithm.policy_state_dict().keys() >= {"weight", "bias"}


OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "image": Box(0, 255, (8, 8, 1), np.uint8),
    "discrete": Discrete(5),
    "whole numbers": Box(0, 9, (4,), np.int64),
    "dict": spaces_of(TinyDict).observation,
}


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_every_kind_of_observation_is_judged(kind: str) -> None:
    algorithm, metrics = learn(make_gail_setup(observation=OBSERVATIONS[kind]))
    assert all(math.isfinite(value) for value in metrics[-1].values())
    assert ("obs_mean" in algorithm._state) == (kind == "whole numbers")


# --- The absorbing state ---------------------------------------------------------------------------------------------


def with_ends(setup: Setup[GAILHParams], rows: list[int]) -> Batch:
    terminated = torch.zeros(12, dtype=torch.bool)
    terminated[rows] = True
    return {**make_gail_rollout(setup), "terminated": terminated}


def test_an_end_is_paid_what_the_absorbing_state_pays_for_ever() -> None:
    setup = make_gail_setup(absorbing_state=True, reward_form="airl", gamma=0.9)
    algorithm = build_gail(setup)
    absorbed = float(algorithm._discriminator.absorbing_logit())
    expected = torch.zeros(12)
    expected[[3, 7]] = absorbed * (0.9 / (1.0 - 0.9))  # 0.9 + 0.81 + ..., as many rewards as are left
    assert absorbed != 0.0
    torch.testing.assert_close(algorithm._terminal_rewards(with_ends(setup, [3, 7])), expected)
    assert float(algorithm.update(with_ends(setup, [3])).metrics["absorbing_reward"]) == pytest.approx(
        float(algorithm._discriminator.absorbing_logit())
    )


@pytest.mark.parametrize("form", ["positive", "negative", "airl"])
def test_an_end_is_neither_gain_nor_loss_where_nobody_can_be_told_apart(form: str) -> None:
    # The same reward r everywhere: an episode that goes on is worth r / (1 - gamma), and so is a row that ends it.
    steps, gamma = 1_000, 0.995
    setup = make_gail_setup(absorbing_state=True, reward_form=form, gamma=gamma, num_steps=steps, normalize="returns")
    algorithm = build_gail(setup)
    algorithm._state["discriminator.params"].zero_()
    list(algorithm._discriminator.parameters())[-1].data.fill_(0.3)  # the last bias
    terminated = torch.zeros(steps, 2, dtype=torch.bool)
    terminated[-1, 0] = True  # one episode ends after 1,000 steps, the other goes on
    rollout = {**make_gail_rollout(setup, ends=0.0), "terminated": terminated.flatten()}
    rollout |= {"rewards": algorithm._rewards(rollout), "terminal_rewards": algorithm._terminal_rewards(rollout)}
    scaler = algorithm.policy._scaling.reward_scaler
    assert scaler is not None
    # Returns varied by 10 rewards so far, so the end is worth 20, twice the limit of a scaled reward.
    variance = (10.0 * rollout["rewards"][0].double()).square()
    scaler.moments.load_state_dict({"mean": torch.zeros((), dtype=torch.float64), "variance": variance, "count": 10**9})
    rewards = algorithm.policy._scaling.scaled(rollout)["rewards"].view(steps, 2)
    values = (rewards[0, 0] / (1.0 - gamma)).expand(steps, 2)
    advantages = gae(rewards, values, values, terminated, torch.zeros_like(terminated), gamma=gamma, gae_lambda=0.95)
    torch.testing.assert_close(advantages, torch.zeros(steps, 2), rtol=0, atol=1e-3)
    assert rewards[-1, 0].abs() == pytest.approx(20.0, rel=0.01)


def shown_to_the_discriminator(setup: Setup[GAILHParams], ends: list[int]) -> tuple[float, float]:
    """The shares of rows in the absorbing state, the expert's and ours, that an update of many rows sees."""
    algorithm, seen = build_gail(setup), {}

    def step(state: Any, batch: Batch, rounds: int) -> dict[str, Tensor]:
        seen.update(batch)
        return {name: torch.zeros(rounds) for name in ("expert_accuracy", "policy_accuracy")}

    algorithm._step_in_place = step
    algorithm._learn_discriminator(with_ends(setup, ends))
    return float(seen["expert_absorbing"].float().mean()), float(seen["absorbing"].float().mean())


def test_the_absorbing_state_is_seen_as_often_as_episodes_end() -> None:
    # 1 / (1 - 0.9) = 10 rows follow on each end. Ours: 2 ends in 12 rows, 20 of 32; the expert's: 1 in 20, 10 of 30.
    many: dict[str, Any] = {
        "absorbing_state": True,
        "gamma": 0.9,
        "discriminator_updates": 40,
        "discriminator_batch_size": 500,
    }
    plain = make_gail_setup(**many)
    assert plain.dataset is not None
    terminated = np.arange(20) == 4
    setup = replace(plain, dataset=replace(plain.dataset, terminated=terminated))
    assert shown_to_the_discriminator(setup, [3, 7]) == pytest.approx((10 / 30, 20 / 32), abs=0.02)
    assert shown_to_the_discriminator(plain, []) == (0.0, 0.0)
    # Labels are shuffled with all that belongs to a row.
    shuffled = replace(setup, hparams=setup.hparams.model_copy(update={"expert_shuffle": "labels"}))
    mean = (10 / 30 + 20 / 32) / 2
    assert shown_to_the_discriminator(shuffled, [3, 7]) == pytest.approx((mean, mean), abs=0.02)


# --- The controls ----------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_shuffled_labels_tell_the_discriminator_nothing() -> None:
    # Two points far apart: told apart at once by true labels, and by none that are drawn.
    accuracies = {}
    for shuffle in ("none", "labels"):
        setup = make_gail_setup(
            expert_shuffle=shuffle, discriminator_updates=20, discriminator_batch_size=200, gradient_penalty=0.0
        )
        algorithm, rollout = build_gail(setup), make_gail_rollout(setup)
        rollout |= {"actions": torch.zeros(12, dtype=torch.int64)}  # the expert's are 1
        for _ in range(10):
            metrics = algorithm.update(clone(rollout)).metrics
        accuracies[shuffle] = float(metrics["discriminator_accuracy"])
    assert accuracies["none"] > 0.99
    assert accuracies["labels"] == pytest.approx(0.5, abs=0.05)


def test_shuffled_actions_are_the_same_ones_in_another_order() -> None:
    spaces = Spaces(Box(-1.0, 1.0, (3,), np.float32), Discrete(20))
    dataset = replace(make_expert(spaces), actions=np.arange(20))
    shuffled, again, other = (dataset.with_shuffled_actions(seed) for seed in (0, 0, 1))
    assert sorted(shuffled.actions) == list(range(20))
    assert list(shuffled.actions) == list(again.actions) != list(other.actions)
    assert list(shuffled.actions) != list(range(20))
    assert np.array_equal(shuffled.obs, dataset.obs)

    setup = replace(make_gail_setup(action=Discrete(20), expert_shuffle="actions"), dataset=dataset)
    assert np.array_equal(build_expert_rollouts(setup).expert.dataset.actions, shuffled.actions)


# --- The fast path ---------------------------------------------------------------------------------------------------


@pytest.mark.compile
def test_compiled_updates_equal_eager_ones() -> None:
    def run(mode: str) -> tuple[GAIL, list[dict[str, float]]]:
        # The step without an absorbing state is a part of the step with one.
        changes: dict[str, Any] = {"discriminator_learning_rate": 0.01, "absorbing_state": True}
        # Actions and entropy as in test_ppo_update.py: the policy's update is the program that is compiled there.
        policy: dict[str, Any] = {"action": Discrete(3), "ent_coef": 0.01}
        return learn(make_gail_setup(acceleration=mode, **changes, **policy), rollouts=4)

    (plain, expected), (fast, metrics) = run("eager"), run("compile")
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(fast._state, plain._state, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(fast.policy_state_dict(), plain.policy_state_dict(), rtol=1e-3, atol=1e-5)
