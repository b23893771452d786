"""MOPO's rollouts pay for the models' uncertainty; all else is MBPO's, on a dataset."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary
from torch import Tensor

from builders import small_hparams
from rl_training.algorithms.mbpo import MBPO, compose
from rl_training.algorithms.mopo import build_mopo, largest_deviation, largest_disagreement
from rl_training.algorithms.sac import build_sac
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.data.mixed_source import MixedSource, build_mixed_dataset
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.envs.terminations import termination_rule
from rl_training.errors import ConfigError, DatasetError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.mbpo import MOPOHParams
from rl_training.models.mlp_mopo import Prediction
from state_comparison import assert_identical, clone

ACTION = Box(-1.0, 1.0, (1,), np.float32)
TINY = 1e-20  # a deviation that no reward shows


def make_dataset(spaces: Spaces, count: int = 60, seed: int = 0) -> TransitionDataset:
    """Half the way to 0 at each step; what starts right of 0 terminates at once. Ten rows are an episode at most."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(count, *spaces.observation.shape)).astype(np.float32)  # type: ignore[misc]
    return TransitionDataset(
        obs=obs,
        actions=rng.uniform(-1.0, 1.0, (count, *ACTION.shape)).astype(np.float32),
        rewards=obs[:, 1].copy(),
        next_obs=0.5 * obs,
        terminated=obs[:, 0] > 0.0,
        truncated=np.arange(count) % 10 == 9,
        spaces=spaces,
    )


def make_setup(
    *,
    observation: gym.Space[Any] | None = None,
    env_id: str = "",
    acceleration: str = "eager",
    seed: int = 0,
    rows: int = 60,
    **hparams: Any,
) -> Setup[MOPOHParams]:
    spaces = Spaces(observation or Box(-np.inf, np.inf, (2,), np.float32), ACTION)
    return Setup(
        spaces=spaces,
        hparams=MOPOHParams(**{**small_hparams("mopo", rollout_batch_size=10), **hparams}),
        total_timesteps=1_000,
        total_updates=1_000,
        streams=Streams(seed),
        acceleration=acceleration,
        env_id=env_id,
        dataset=make_dataset(spaces, rows) if isinstance(spaces.observation, Box) else None,
    )


def with_memory(setup: Setup[MOPOHParams]) -> tuple[MBPO, MixedSource]:
    return build_mopo(setup), build_mixed_dataset(setup)


def make_constant(algorithm: MBPO, means: list[list[float]], stds: list[list[float]]) -> None:
    """Let each member predict the same at every step: the change of two numbers, then the reward."""
    named = algorithm.ensemble.model.named(algorithm.ensemble.model.params)
    for value in named.values():
        value.zero_()
    named["max_log_variance"].fill_(80.0)
    named["min_log_variance"].fill_(-80.0)
    *_, last = (name for name in named if name.endswith(".bias"))
    outputs = torch.cat((torch.tensor(means), 2.0 * torch.tensor(stds).log()), 1)
    named[last][:, :, :6].copy_(outputs.view(named[last][:, :, :6].shape))
    algorithm.ensemble.num_fits = 1


# --- The penalty -----------------------------------------------------------------------------------------------------


def prediction_of(means: list[list[list[float]]], stds: list[list[list[float]]]) -> Prediction:
    return Prediction(torch.tensor(means), 2.0 * torch.tensor(stds).log(), None)


def test_the_uncertainty_is_the_largest_norm_of_a_members_deviations() -> None:
    # Of two members, rows and outputs. Norms in row 0: 5 and sqrt(2); in row 1: 0.5 and 13.
    stds = [[[3.0, 4.0], [0.3, 0.4]], [[1.0, 1.0], [5.0, 12.0]]]
    assert largest_deviation(prediction_of(stds, stds)).tolist() == pytest.approx([5.0, 13.0])


def test_disagreement_is_the_largest_distance_to_the_mean_of_all() -> None:
    # The means of row 0 are (0, 0), (6, 0), (0, 0), their mean (2, 0): distances 2, 4, 2. In row 1 all agree.
    means = [[[0.0, 0.0], [1.0, 7.0]], [[6.0, 0.0], [1.0, 7.0]], [[0.0, 0.0], [1.0, 7.0]]]
    stds = [[[9.0, 9.0]] * 2] * 3
    assert largest_disagreement(prediction_of(means, stds)).tolist() == pytest.approx([4.0, 0.0])


MEANS = [[1.0, 1.0, 10.0], [1.0, 1.0, 10.0], [1.0, 1.0, 10.0]]


@pytest.mark.parametrize(("penalty_coef", "reward"), [(0.5, 7.5), (2.0, 0.0), (0.0, 10.0)])
def test_rewards_of_rollouts_lack_the_penalty(penalty_coef: float, reward: float) -> None:
    setup = make_setup(penalty_coef=penalty_coef, num_ensembles=3, num_elites=2, termination="never")
    algorithm, _ = with_memory(setup)
    # The last member is no elite; its deviations have the norm 5, and count. Elites draw with none.
    make_constant(algorithm, MEANS, [[TINY] * 3, [TINY] * 3, [3.0, TINY, 4.0]])
    starts = torch.arange(20.0).view(10, 2)
    first, second = algorithm.rollouts.run(starts, 2)
    assert first["rewards"] == pytest.approx(np.full(10, reward), abs=1e-4)
    assert first["penalties"] == pytest.approx(np.full(10, penalty_coef * 5.0), rel=1e-5)
    assert first["next_obs"] == pytest.approx(starts.numpy() + 1.0)
    assert second["obs"] == pytest.approx(starts.numpy() + 1.0)  # the penalty is of the reward alone
    assert second["rewards"] == pytest.approx(first["rewards"])


def test_where_members_disagree_and_are_sure_disagreement_alone_costs() -> None:
    # Rewards 9, 10, 14: distances to their mean, 11, are 2, 1 and 3.
    means = [[0.0, 0.0, 9.0], [0.0, 0.0, 10.0], [0.0, 0.0, 14.0]]
    for uncertainty, penalty in (("disagreement", 3.0), ("deviation", 0.0)):
        setup = make_setup(uncertainty=uncertainty, num_ensembles=3, num_elites=2, termination="never")
        algorithm, _ = with_memory(setup)
        make_constant(algorithm, means, [[TINY] * 3] * 3)
        (step,) = algorithm.rollouts.run(torch.zeros(10, 2), 1)
        assert step["penalties"] == pytest.approx(np.full(10, penalty), abs=1e-5)


def test_each_group_of_rows_is_predicted_by_its_own_elite() -> None:
    setup = make_setup(num_ensembles=4, num_elites=3, rollout_batch_size=30, termination="never", penalty_coef=0.0)
    algorithm, _ = with_memory(setup)
    make_constant(algorithm, [[i, -i, 10.0 * i] for i in (1.0, 2.0, 3.0, 4.0)], [[TINY] * 3] * 4)
    algorithm.ensemble.state["elites"].copy_(torch.tensor([3, 1, 0]))  # the third member is none
    for step in algorithm.rollouts.run(torch.zeros(30, 2), 20):
        change = step["next_obs"] - step["obs"]
        assert step["rewards"] == pytest.approx(10.0 * change[:, 0], abs=1e-3)
        assert change[:, 1] == pytest.approx(-change[:, 0], abs=1e-4)
        assert np.unique(change[:, 0].round(3), return_counts=True)[1].tolist() == [10, 10, 10]
        assert set(change[:, 0].round(3).tolist()) == {1.0, 2.0, 4.0}


@pytest.mark.parametrize("termination", ["learned", "never"])
def test_without_a_penalty_rollouts_are_those_of_mbpo(termination: str) -> None:
    setup = make_setup(penalty_coef=0.0, termination=termination, rollout_horizon=3)
    ours, theirs = build_mopo(setup), compose(setup)
    starts = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    for step, expected in zip(ours.rollouts.run(starts, 3), theirs.rollouts.run(starts, 3), strict=True):
        assert not step.pop("penalties").any()
        assert step.keys() == expected.keys()
        for name, values in expected.items():
            assert step[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


def test_a_penalty_that_is_no_number_ends_a_rollout() -> None:
    setup = make_setup(num_ensembles=3, num_elites=2, termination="never")
    algorithm, _ = with_memory(setup)
    make_constant(algorithm, MEANS, [[TINY] * 3] * 3)
    assert [len(step["rewards"]) for step in algorithm.rollouts.run(torch.zeros(10, 2), 2)] == [10, 10]
    named = algorithm.ensemble.model.named(algorithm.ensemble.model.params)
    named["max_log_variance"].fill_(1e4)
    *_, last = (name for name in named if name.endswith(".bias"))
    named[last][2].fill_(1e4)  # a deviation of exp(5000), of a member that draws nothing
    assert [len(step["rewards"]) for step in algorithm.rollouts.run(torch.zeros(10, 2), 2)] == [0]


# --- Where rollouts end ----------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_rollouts_end_where_the_dataset_terminates() -> None:
    fit: dict[str, Any] = {"model_max_epochs": 40, "model_patience": 40, "model_learning_rate": 1e-2}
    setup = make_setup(rows=600, rollout_batch_size=200, **fit)
    algorithm, memory = with_memory(setup)
    algorithm.update_model(memory.real_transitions())
    starts = memory.real.sample(200)["obs"]
    steps = list(algorithm.rollouts.run(starts, 3))
    for step in steps:
        clear = np.abs(step["obs"][:, 0]) > 0.2  # closer to 0 no model can be sure
        assert (step["terminated"] == (step["obs"][:, 0] > 0.0))[clear].mean() > 0.9
    for before, after in itertools.pairwise(steps):
        assert len(after["rewards"]) == (~before["terminated"]).sum()


def test_rollouts_end_by_the_rule_of_an_environment_that_is_known() -> None:
    hopper = Box(-np.inf, np.inf, (11,), np.float64)
    setup = make_setup(observation=hopper, env_id="Unknown-v0")
    assert build_mopo(setup).rollouts._rule is None
    assert build_mopo(make_setup(env_id="Hopper-v5")).rollouts._rule == termination_rule("Hopper-v5")


# --- The algorithm and its memory ------------------------------------------------------------------------------------


def test_an_update_is_one_of_sac() -> None:
    setup = make_setup()
    algorithm, memory = with_memory(setup)
    sac, batch = build_sac(setup), memory.sample(24)
    ours, theirs = algorithm.update(clone(batch)), sac.update(clone(batch))
    assert ours.num_gradient_steps == 3
    assert_identical(ours.metrics, theirs.metrics)
    assert_identical(algorithm.policy_state_dict(), sac.policy_state_dict())


def test_batches_begin_with_the_datasets_rows_and_go_on_with_penalised_ones() -> None:
    setup = make_setup(batch_size=20, num_ensembles=3, num_elites=2, termination="never")
    algorithm, memory = with_memory(setup)
    make_constant(algorithm, MEANS, [[TINY] * 3, [TINY] * 3, [3.0, TINY, 4.0]])
    assert algorithm.rollout(memory, 2) == len(memory.model) == 20
    rewards = memory.sample(40)["rewards"].view(2, 20)
    assert setup.dataset is not None
    assert np.isin(rewards[:, 0].numpy(), setup.dataset.rewards).all()  # 5 % are real, and pay nothing
    assert rewards[:, 1:].numpy() == pytest.approx(np.full((2, 19), 10.0 - 5.0), abs=1e-5)
    status = algorithm.status(0)
    assert status["rollout_reward"] == pytest.approx(10.0, abs=1e-4)
    assert status["rollout_penalty"] == pytest.approx(5.0, abs=1e-4)
    with pytest.raises(RuntimeError, match="a dataset never changes"):
        memory.add(memory.real_transitions())


def test_held_out_transitions_are_judged_by_the_elites_and_the_best_actions() -> None:
    setup = make_setup(num_ensembles=3, num_elites=2)
    algorithm, _ = with_memory(setup)
    make_constant(algorithm, [[1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]], [[1.0] * 3] * 3)
    for value in algorithm.policy.recipe.actor.named(algorithm.policy.state["actor.params"]).values():
        value.zero_()  # the best action is always 0
    batch = {
        "obs": torch.zeros(2, 2),
        "next_obs": torch.zeros(2, 2),
        "actions": torch.tensor([[0.5], [1.0]]),
        "rewards": torch.zeros(2),
        "terminated": torch.zeros(2, dtype=torch.bool),
    }
    found = {name: float(value) for name, value in algorithm.evaluate_offline(batch).items()}
    # The first member errs by (1, 0, 3), the second not at all, the third is no elite; actions by 0.5 and 1.
    assert found == {"model_mse": pytest.approx((10.0 / 3.0 + 0.0) / 2.0), "action_error": pytest.approx(1.25 / 2.0)}


def test_its_state_loads_into_another_one_which_then_goes_on_the_same() -> None:
    algorithm, memory = with_memory(make_setup())
    algorithm.update_model(memory.real_transitions())
    algorithm.rollout(memory, 2)
    algorithm.update(memory.sample(16))
    other, other_memory = with_memory(make_setup(seed=1))
    other.load_policy_state_dict(clone(algorithm.policy_state_dict()))
    other.load_state_dict(clone(algorithm.state_dict()))
    other_memory.load_state_dict(clone(memory.state_dict()))
    assert other.status(0) == algorithm.status(0)
    for each, source in ((algorithm, memory), (other, other_memory)):
        each.update_model(source.real_transitions())
        each.rollout(source, 2)
        each.update(source.sample(16))
    assert_identical(other.state_dict(), algorithm.state_dict())
    assert_identical(other_memory.state_dict(), memory.state_dict())


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("uncertainty", ["deviation", "disagreement"])
def test_compiled_rollouts_equal_eager_ones(uncertainty: str) -> None:
    filled: list[list[dict[str, np.ndarray]]] = []
    starts: Tensor = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    for acceleration in ("eager", "compile"):
        setup = make_setup(acceleration=acceleration, rollout_batch_size=50, uncertainty=uncertainty)
        filled.append(list(build_mopo(setup).rollouts.run(starts, 3)))
    for eager, compiled in zip(*filled, strict=True):
        assert eager["terminated"].tolist() == compiled["terminated"].tolist()
        for name in ("obs", "actions", "rewards", "penalties", "next_obs"):
            assert compiled[name] == pytest.approx(eager[name], rel=1e-4, abs=1e-5), name


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty_coef": -1.0}, "penalty_coef must be >= 0, got -1.0"),
        ({"uncertainty": "much"}, "uncertainty must be 'deviation' or 'disagreement', got 'much'"),
        ({"num_elites": 8}, "num_elites must be at most num_ensembles, 7, got 8"),
        ({"rollout_horizon": 0}, "rollout_horizon must be >= 1, got 0"),
        ({"rollout_refresh_interval": 0}, "rollout_refresh_interval must be >= 1, got 0"),
        ({"model_train_frequency": -1}, "model_train_frequency must be >= 0, got -1"),
        ({"dataset_kind": "npz"}, "dataset_path is missing: dataset_kind npz needs it"),
        ({"learning_starts": 5}, "unknown setting 'learning_starts'"),
        ({"penalty": 5}, "unknown setting 'penalty'; did you mean 'penalty_coef'?"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(algo="mopo", env_id="Pendulum-v1", total_timesteps=100, algo_kwargs=settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_observations_that_are_no_real_numbers_are_refused() -> None:
    with pytest.raises(SpaceError, match="learned models predict observations of real numbers"):
        build_mopo(make_setup(observation=MultiBinary(3)))


def test_a_single_transition_is_refused() -> None:
    with pytest.raises(DatasetError, match="the dataset has a single transition to learn from: a model needs a second"):
        build_mixed_dataset(make_setup(rows=1))
