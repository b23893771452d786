"""Running normalisation: statistics as numpy and plain loops give them, frozen in evaluation, kept with the policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary
from hypothesis import given
from hypothesis import strategies as st

from builders import make_config
from rl_training.algorithms.ppo import PPO, build_ppo
from rl_training.core.spaces import observation_field
from rl_training.core.types import Batch, Metrics, State
from rl_training.envs.factory import make_env_factory
from rl_training.errors import CheckpointError
from rl_training.learners.normalization import (
    ObsNormalizer,
    RewardScaler,
    RunningMoments,
    dataset_normalizer,
    merged_moments,
)
from rl_training.runtime.evaluation import evaluate_run
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, train
from rollouts import make_ppo_setup, make_rollout
from state_comparison import assert_identical, clone

# --- Moments ---------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_moments_over_chunks_are_those_of_all_rows_together(sizes: list[int], seed: int) -> None:
    rng, moments = np.random.default_rng(seed), RunningMoments((2, 3))
    chunks = [rng.normal(rng.normal(scale=50.0), 3.0, (size, 2, 3)) for size in sizes]
    for chunk in chunks:
        moments.update(torch.from_numpy(chunk))
    rows = np.concatenate(chunks)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean.numpy(), rows.mean(0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(moments.variance.numpy(), rows.var(0), rtol=1e-9, atol=1e-9)


def test_moments_keep_their_digits_far_from_zero() -> None:
    # In float32, 1e6 + 0.1 is 1e6 + 0.125: the running sums must be wider.
    rng, moments = np.random.default_rng(0), RunningMoments()
    rows = 1e6 + rng.normal(size=1_000)
    for chunk in rows.reshape(10, 100):
        moments.update(torch.from_numpy(chunk))
    assert moments.std.item() == pytest.approx(rows.std(), rel=1e-6)


def test_moments_of_nothing_change_nothing() -> None:
    normalizer = ObsNormalizer((3,))
    obs = np.array([[0.5, -2.0, 7.0]], np.float32)
    np.testing.assert_allclose(normalizer.rows(obs), obs, rtol=1e-6)


def test_moments_come_back_from_their_state() -> None:
    moments, other = RunningMoments((2,)), RunningMoments((2,))
    moments.update(torch.randn(7, 2))
    other.load_state_dict(moments.state_dict())
    for each in (moments, other):
        each.update(torch.ones(3, 2))
    assert_identical(other.state_dict(), moments.state_dict())


# --- Observations ----------------------------------------------------------------------------------------------------


def trained_normalizer(rows: np.ndarray) -> ObsNormalizer:
    normalizer = ObsNormalizer(rows.shape[1:])
    normalizer.update(torch.from_numpy(rows))
    return normalizer


def test_observations_become_zero_mean_and_unit_deviation_each_for_itself() -> None:
    rows = np.random.default_rng(0).normal([3.0, -100.0], [0.01, 20.0], (5_000, 2)).astype(np.float32)
    normalized = trained_normalizer(rows).rows(rows)
    np.testing.assert_allclose(normalized.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(normalized.std(0), 1.0, atol=1e-3)
    assert normalized.dtype == np.float32


def test_an_observation_by_hand_and_its_limit() -> None:
    # Rows 2 and 6: mean 4, variance 4, deviation 2.
    normalizer = trained_normalizer(np.array([[2.0], [6.0]], np.float32))
    obs = np.array([[5.0], [4.0], [-1.0], [100.0], [-100.0]], np.float32)
    expected = [[0.5], [0.0], [-2.5], [10.0], [-10.0]]
    np.testing.assert_allclose(normalizer.rows(obs), expected, rtol=1e-6)
    np.testing.assert_allclose(normalizer.tensor(torch.from_numpy(obs)).numpy(), expected, rtol=1e-6)


def test_what_never_varied_becomes_zero() -> None:
    normalizer = trained_normalizer(np.full((8, 2), 3.0, np.float32))
    assert normalizer.rows(np.full((1, 2), 3.0, np.float32)).tolist() == [[0.0, 0.0]]


def test_an_entry_that_hardly_varies_in_a_dataset_is_not_magnified() -> None:
    # Deviations 0, 1e-4 and 2: the first two count as 1e-3, with a dataset and with its statistics from a checkpoint.
    space = Box(-9.0, 9.0, (3,), np.float64)
    obs = np.array([[5.0, 3.0001, 2.0], [5.0, 2.9999, 6.0]], np.float64)
    fitted, loaded = (dataset_normalizer(space, rows) for rows in (obs, None))
    loaded.load_state_dict(fitted.moments.state_dict())
    for normalizer in (fitted, loaded):
        assert normalizer.constants()["obs_scale"].tolist() == pytest.approx([1e3, 1e3, 0.5], rel=1e-6)


@pytest.mark.parametrize(
    "space", [Box(-5, 5, (3,), np.float32), Box(-5, 5, (2, 3), np.float64), Box(-9, 9, (4,), np.int32), MultiBinary(5)]
)
def test_acting_and_learning_see_the_same_numbers(space: Any) -> None:
    space.seed(0)
    stored = np.stack([space.sample() for _ in range(50)]).astype(observation_field(space).dtype)
    normalizer = trained_normalizer(stored[:20])
    rows, tensor = normalizer.rows(stored), normalizer.tensor(torch.from_numpy(stored))
    assert rows.dtype == np.float32
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(rows, tensor.numpy())


# --- Rewards ---------------------------------------------------------------------------------------------------------


def scaled_by_a_loop(rollouts: list[tuple[np.ndarray, np.ndarray]], gamma: float) -> list[np.ndarray]:
    """R <- gamma R + r, anew after each end; each rollout's rewards are divided by the deviation of all R so far."""
    envs = rollouts[0][0].shape[1]
    open_return, seen, scaled = np.zeros(envs), [], []
    for rewards, ended in rollouts:
        for step in range(len(rewards)):
            open_return = gamma * open_return + rewards[step]
            seen.append(open_return.copy())
            open_return[ended[step]] = 0.0
        scaled.append(np.clip(rewards / np.sqrt(np.var(seen) + 1e-8), -10.0, 10.0))
    return scaled


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    envs=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    share=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_rewards_are_scaled_as_by_a_plain_loop_over_any_rollouts(
    seed: int, steps: list[int], envs: int, gamma: float, share: float
) -> None:
    rng, scaler = np.random.default_rng(seed), RewardScaler(envs, gamma)
    rollouts = [(rng.normal(2.0, 5.0, (count, envs)), rng.random((count, envs)) < share) for count in steps]
    ours = [scaler.scale(torch.from_numpy(rewards), torch.from_numpy(ended)) for rewards, ended in rollouts]
    for one, other in zip(ours, scaled_by_a_loop(rollouts, gamma), strict=True):
        assert one.dtype == torch.float32
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-5, atol=1e-5)


def test_an_open_return_is_carried_into_the_next_rollout() -> None:
    # gamma 0.5, rewards 4 | 0 | 2. Returns: 4, then 2, then, after an end, 2 again: not 2 + 0.5 * 2.
    scaler = RewardScaler(1, 0.5)
    no, yes = torch.tensor([[False]]), torch.tensor([[True]])
    scaler.scale(torch.tensor([[4.0]]), no)
    assert scaler.returns.tolist() == [4.0]
    scaler.scale(torch.tensor([[0.0]]), yes)
    assert scaler.returns.tolist() == [0.0]
    scaler.scale(torch.tensor([[2.0]]), no)
    assert scaler.returns.tolist() == [2.0]
    assert scaler.moments.mean.item() == pytest.approx((4.0 + 2.0 + 2.0) / 3)


def test_signs_and_proportions_of_rewards_stay() -> None:
    rewards = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    scaled = RewardScaler(2, 0.99).scale(rewards, torch.zeros(2, 2, dtype=torch.bool))
    torch.testing.assert_close(scaled / scaled[0, 0], rewards)
    assert scaled[0, 0] > 0.0


def test_constant_zero_rewards_stay_zero() -> None:
    scaled = RewardScaler(1, 0.99).scale(torch.zeros(5, 1), torch.zeros(5, 1, dtype=torch.bool))
    assert scaled.tolist() == [[0.0]] * 5


# --- In PPO ----------------------------------------------------------------------------------------------------------

SHIFTED = Box(40.0, 60.0, (3,), np.float32)


def learn(normalize: str, *, updates: int = 3, seed: int = 0, **hparams: Any) -> PPO:
    setup = make_ppo_setup(observation=SHIFTED, normalize=normalize, seed=seed, **hparams)
    algorithm = build_ppo(setup)
    for number in range(updates):
        algorithm.update(make_rollout(setup, number))
    return algorithm


@pytest.mark.parametrize(
    ("normalize", "kept"),
    [
        ("none", set()),
        ("obs", {"obs_moments"}),
        ("returns", {"return_moments"}),
        ("both", {"obs_moments", "return_moments"}),
    ],
)
def test_one_setting_switches_it_on_and_the_statistics_are_kept_with_the_policy(normalize: str, kept: set[str]) -> None:
    state = learn(normalize).policy_state_dict()
    assert {name for name in state if name.endswith("_moments")} == kept
    assert {state[name]["count"] for name in kept} <= {3 * 12}  # every row of three rollouts


def test_the_network_sees_normalised_observations_when_learning_and_acting() -> None:
    algorithm, plain = learn("obs", updates=2), learn("none", updates=0)
    algorithm._state["params"].normal_(generator=torch.Generator().manual_seed(0))  # so that its choices differ
    state = algorithm.policy_state_dict()
    moments = state.pop("obs_moments")
    plain.load_policy_state_dict(state)
    rollout = make_rollout(make_ppo_setup(observation=SHIFTED), 9)
    expected = (rollout["obs"].double() - moments["mean"]) / (moments["variance"] + 1e-8).sqrt()
    final = (rollout["final_obs"].double() - moments["mean"]) / (moments["variance"] + 1e-8).sqrt()
    chosen = algorithm.act(rollout["obs"].numpy()).actions
    normalized = algorithm._scaling.scaled(rollout)
    torch.testing.assert_close(normalized["obs"].double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normalized["final_obs"].double(), final, rtol=1e-4, atol=1e-4)
    actions = plain.act(expected.float().numpy()).actions
    assert set(actions) == {0, 1}
    assert np.array_equal(chosen, actions)


def test_the_first_rollout_is_learned_with_its_own_statistics_and_later_ones_with_those_of_before() -> None:
    # What acted and what learns must be one function: a rollout's own observations come in after its update. Before the
    # first one there are no statistics, and on raw observations the network would learn another function.
    setup = make_ppo_setup(observation=SHIFTED, normalize="both", update_epochs=1, minibatch_size=12)
    algorithm, seen = build_ppo(setup), []
    step = algorithm._step_in_place

    def noted(state: State, batch: Batch) -> Metrics:
        seen.append(batch["obs"].clone())
        return step(state, batch)

    algorithm._step_in_place = noted
    first, second = make_rollout(setup, 0), make_rollout(setup, 1)
    mean, variance = first["obs"].double().mean(0), first["obs"].double().var(0, correction=0)
    for number, rollout in enumerate((first, second)):
        algorithm.update(rollout)
        expected = (rollout["obs"].double() - mean) / (variance + 1e-8).sqrt()
        torch.testing.assert_close(seen[number].double(), expected.clamp(-10.0, 10.0), rtol=1e-4, atol=1e-4)
        assert algorithm.policy_state_dict()["obs_moments"]["count"] == 12 * (number + 1)


def test_acting_of_any_kind_leaves_the_statistics_alone() -> None:
    algorithm = learn("both")
    before = clone(algorithm.policy_state_dict())
    for explore in (False, True):
        algorithm.act(np.full((64, 3), 1_000.0, np.float32), explore=explore)
    assert_identical(algorithm.policy_state_dict(), before)


def test_the_policy_alone_acts_like_the_whole() -> None:
    algorithm, other = learn("both"), learn("both", updates=0, seed=1)
    other.load_policy_state_dict(clone(algorithm.policy_state_dict()))
    obs = make_rollout(make_ppo_setup(observation=SHIFTED), 5)["obs"].numpy()
    ours, theirs = algorithm._scaling.normalizer, other._scaling.normalizer
    assert ours is not None
    assert theirs is not None
    outputs = [algorithm._policy(ours.rows(obs)), other._policy(theirs.rows(obs))]
    assert np.array_equal(outputs[0], outputs[1])
    assert np.array_equal(algorithm.act(obs).actions, other.act(obs).actions)


def test_rewards_are_scaled_for_learning_and_ends_of_both_kinds_count() -> None:
    setup = make_ppo_setup(normalize="returns", gamma=0.5)
    algorithm, rollout = build_ppo(setup), make_rollout(setup)
    ended = (rollout["terminated"] | rollout["truncated"]).view(6, 2).numpy()
    (expected,) = scaled_by_a_loop([(rollout["rewards"].view(6, 2).double().numpy(), ended)], 0.5)
    scaled = algorithm._scaling.scaled(rollout)["rewards"]
    np.testing.assert_allclose(scaled.view(6, 2).numpy(), expected, rtol=1e-5)
    assert torch.equal(rollout["obs"], algorithm._scaling.scaled(rollout)["obs"])


@pytest.mark.parametrize("missing", ["obs_moments", "return_moments"])
def test_a_policy_without_its_statistics_is_refused(missing: str) -> None:
    state = {name: value for name, value in learn("both").policy_state_dict().items() if name != missing}
    with pytest.raises(CheckpointError, match=f"the saved policy has no {missing}"):
        learn("both", updates=0).load_policy_state_dict(state)


def test_a_policy_with_statistics_is_refused_where_nothing_is_normalised() -> None:
    with pytest.raises(CheckpointError, match="unexpected obs_moments"):
        learn("none", updates=0).load_policy_state_dict(learn("obs").policy_state_dict())


# --- In runs ---------------------------------------------------------------------------------------------------------


def test_evaluating_changes_nothing_and_a_checkpoint_acts_like_the_trained_agent(tmp_path: Path) -> None:
    hparams = {"normalize": "both"}
    config = make_config(tmp_path, algo="ppo", env_id="Pendulum-v1", total_timesteps=60, algo_kwargs=hparams)
    result = train(config, RunOptions(show_progress=False))
    assert isinstance(result.algorithm, PPO)
    assert result.algorithm.policy_state_dict()["obs_moments"]["count"] == 60
    before = clone({**result.algorithm.policy_state_dict(), "training": result.algorithm.state_dict()})
    factory = make_env_factory(config.env_id)
    first = evaluate_run(config, factory, result.algorithm, [1, 2])
    assert_identical({**result.algorithm.policy_state_dict(), "training": result.algorithm.state_dict()}, before)
    _, loaded = load_policy(result.run_dir)
    assert evaluate_run(config, factory, loaded, [1, 2]) == first


@pytest.mark.parametrize("shape", [(), (3,)])
def test_single_rows_add_up_to_the_same_moments_bit_for_bit(shape: tuple[int, ...]) -> None:
    moments, expected = RunningMoments(shape), list(RunningMoments(shape).tensors)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        row = torch.randn((1, *shape), generator=generator) * 100.0 + 7.0
        moments.update(row)
        expected = list(merged_moments(expected, row))
        for found, other in zip(moments.tensors, expected, strict=True):
            assert torch.equal(found, other)
