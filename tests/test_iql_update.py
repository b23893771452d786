"""IQL's losses by hand, the expectile itself, the order in which parts learn, and what an update leaves alone."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from builders import BOX, make_box_batch, make_setup
from rl_training.algorithms.iql import IQL, Networks, build_iql, build_iql_model, expectile_loss, iql_loss
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch, State
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.iql import IQLHParams
from rl_training.learners.offline import OfflineLearner
from rl_training.models.distributions import Gaussian
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_iql import MLPIQLModel
from state_comparison import assert_identical, clone

LOG_NORMAL = -0.5 * math.log(2.0 * math.pi)  # of the standard normal density at its mean


def make_dataset(*, returns: tuple[float, ...] = (1.0, 5.0)) -> TransitionDataset:
    """Episodes of two steps, each with its return's half as reward, of three observed numbers and actions of two."""
    rng = np.random.default_rng(0)
    rows = 2 * len(returns)
    return TransitionDataset(
        obs=rng.normal(3.0, 2.0, (rows, 3)).astype(np.float32),
        next_obs=rng.normal(3.0, 2.0, (rows, 3)).astype(np.float32),
        actions=rng.uniform(-1.0, 1.0, (rows, 2)).astype(np.float32),
        rewards=np.repeat(np.array(returns, np.float32) / 2.0, 2),
        terminated=np.arange(rows) % 2 == 1,
        truncated=np.zeros(rows, np.bool_),
        spaces=Spaces(Box(-np.inf, np.inf, (3,), np.float32), BOX),
    )


def iql_setup(*, dataset: TransitionDataset | None = None, **changes: Any) -> Setup[Any]:
    setup = make_setup(algo="iql", action=BOX, **changes)
    return replace(setup, dataset=dataset or make_dataset())


def recipe(learner: OfflineLearner) -> IQL:
    assert isinstance(learner.recipe, IQL)
    return learner.recipe


# --- The losses by hand ----------------------------------------------------------------------------------------------


def test_values_below_their_target_count_by_the_expectile_and_those_above_by_the_rest() -> None:
    # Errors target - value: +2 weighs 0.9, -1 weighs 0.1: (0.9 * 4 + 0.1 * 1) / 2 = 1.85.
    assert expectile_loss(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0]), 0.9) == pytest.approx(1.85)


def test_the_middle_expectile_is_half_the_squared_error() -> None:
    values, targets = torch.randn(50), torch.randn(50)
    assert expectile_loss(values, targets, 0.5) == pytest.approx(float(0.5 * (values - targets).square().mean()))


@pytest.mark.parametrize(("expectile", "expected"), [(0.1, 0.25), (0.5, 0.5), (0.7, 0.6044), (0.9, 0.75)])
def test_expectile_regression_recovers_the_expectile_of_a_uniform_distribution(
    expectile: float, expected: float
) -> None:
    # Of numbers in [0, 1]: tau * (1 - e)^2 / 2 = (1 - tau) * e^2 / 2, so e = sqrt(tau) / (sqrt(tau) + sqrt(1 - tau)).
    root, other = math.sqrt(expectile), math.sqrt(1.0 - expectile)
    assert root / (root + other) == pytest.approx(expected, abs=1e-4)
    targets = (torch.arange(1_000) + 0.5) / 1_000
    value = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        expectile_loss(value.expand(1_000), targets, expectile).backward()
        optimizer.step()
    assert value.item() == pytest.approx(expected, abs=1e-3)


def by_hand(**hparams: Any) -> dict[str, float]:
    """Two rows, the second of which terminates, with networks whose parameters are what they put out.

    Slow critics: (2, 1) and (3, 0), of which the lesser count, 2 and 0. V: 1 and 2 here, 4 next. Critics: 0 and 1.
    """
    state = {
        "value.params": torch.tensor([1.0, 2.0, 4.0, 4.0]),
        "target_critic": torch.tensor([[2.0, 1.0], [3.0, 0.0]]),
        "critic.params": torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        "actor.params": torch.tensor([[0.0, 0.0], [0.5, 0.0]]),  # mean, log-deviation
    }
    networks = Networks(
        actor=lambda params, obs: params,
        critics=lambda params, obs, actions: params,
        value=lambda params, obs: params[:2] if bool((obs == 0.0).all()) else params[2:],
        policy=Gaussian((1,), (-5.0, 2.0)),
    )
    batch = {
        "obs": torch.zeros(2, 1),
        "next_obs": torch.ones(2, 1),
        "actions": torch.tensor([[1.0], [0.5]]),
        "rewards": torch.tensor([1.0, 3.0]),
        "terminated": torch.tensor([False, True]),
    }
    metrics = iql_loss(state, batch, IQLHParams(gamma=0.5, **hparams), networks)
    return {name: float(value) for name, value in metrics.items()}


def test_the_three_losses_by_hand() -> None:
    metrics = by_hand(expectile=0.8, beta=0.5)
    # Q - V: +1 weighs 0.8, -2 weighs 0.2.
    assert metrics["value_loss"] == pytest.approx((0.8 * 1 + 0.2 * 4) / 2)
    # y: 1 + 0.5 * 4 = 3, and 3 at the termination. Squared errors of both critics: 9 + 4 in either row.
    assert metrics["target_mean"] == pytest.approx(3.0)
    assert metrics["critic_loss"] == pytest.approx(13.0)
    # Weights e^(0.5 * 1) and e^(0.5 * -2); the first action is one deviation off the mean, the second on it.
    first, second = LOG_NORMAL - 0.5, LOG_NORMAL
    assert metrics["actor_loss"] == pytest.approx(-(math.exp(0.5) * first + math.exp(-1.0) * second) / 2)
    assert metrics["log_likelihood"] == pytest.approx((first + second) / 2)
    assert metrics["advantage_mean"] == pytest.approx(-0.5)
    assert metrics["loss"] == pytest.approx(metrics["value_loss"] + metrics["critic_loss"] + metrics["actor_loss"])


def test_weights_are_clipped_and_never_overflow() -> None:
    metrics = by_hand(beta=1e6, max_advantage_weight=7.0)
    assert metrics["advantage_weight_mean"] == pytest.approx(7.0 / 2)  # e^-1000000 is 0
    assert metrics["actor_loss"] == pytest.approx(-7.0 * (LOG_NORMAL - 0.5) / 2)


# --- One update ------------------------------------------------------------------------------------------------------


def changed(before: State, after: State) -> set[str]:
    return {name for name in before if name.endswith("params") and not torch.equal(before[name], after[name])}


def test_an_update_moves_every_part_and_the_slow_copy_by_tau() -> None:
    learner = build_iql(iql_setup(tau=0.25))
    before = clone(learner.state)
    result = learner.update(make_box_batch())
    assert changed(before, learner.state) == {"actor.params", "critic.params", "value.params"}
    expected = torch.lerp(before["target_critic"], learner.state["critic.params"], 0.25)
    torch.testing.assert_close(learner.state["target_critic"], expected)
    assert {"value_loss", "critic_loss", "actor_loss", "q_value_mean", "value_mean"} <= result.metrics.keys()
    assert result.num_gradient_steps == learner.num_updates == 1


def test_the_policy_and_the_critics_learn_from_the_new_value_and_the_old_slow_critics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order: V (slow critics), policy (new V, slow critics), Q (new V), slow critics."""
    learner = build_iql(iql_setup(tau=1.0))
    iql, state, batch = recipe(learner), clone(learner.state), make_box_batch()
    seen: list[tuple[str, Tensor]] = []

    def watched(name: str) -> Any:
        original = getattr(iql.networks, name)

        def apply(params: Tensor, *inputs: Tensor) -> Tensor:
            seen.append((name, params.detach().clone()))
            return original(params, *inputs)  # type: ignore[no-any-return]

        return apply

    watch = {name: watched(name) for name in ("actor", "critics", "value")}
    monkeypatch.setattr(iql, "networks", replace(iql.networks, **watch))
    new, _ = iql.learn(state, batch)
    expected = [
        ("critics", state["target_critic"]),
        ("value", state["value.params"]),
        ("value", new["value.params"]),
        ("actor", state["actor.params"]),
        ("critics", state["critic.params"]),
    ]
    assert [name for name, _ in seen] == [name for name, _ in expected]
    assert all(torch.equal(found, wanted) for (_, found), (_, wanted) in zip(seen, expected, strict=True))
    assert torch.equal(new["target_critic"], new["critic.params"])  # moved last, with tau = 1 all the way


def test_no_target_reaches_through_a_termination() -> None:
    learner = build_iql(iql_setup())
    batch = make_box_batch() | {"terminated": torch.ones(8, dtype=torch.bool)}
    other = batch | {"next_obs": batch["next_obs"] + 100.0}
    twin = build_iql(iql_setup())
    learner.update(batch), twin.update(other)
    assert_identical(learner.state, twin.state)


def test_several_updates_at_once_are_the_same_as_one_by_one() -> None:
    one, many = build_iql(iql_setup()), build_iql(iql_setup())
    batches = [make_box_batch(seed) for seed in range(3)]
    history = [one.update(batch).metrics for batch in batches]
    together: Batch = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    result = many.update(together)
    assert result.num_gradient_steps == 3
    assert_identical(many.state, one.state)
    assert result.metrics["value_loss"] == pytest.approx(float(torch.stack([m["value_loss"] for m in history]).mean()))


def test_the_cosine_brings_the_policys_step_size_to_zero() -> None:
    learner = build_iql(iql_setup(total_timesteps=4))
    rates = [learner.status(0)["learning_rate"]]
    for seed in range(4):
        learner.update(make_box_batch(seed))
        rates.append(learner.status(0)["learning_rate"])
    assert rates == pytest.approx([3e-4 * 0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(5)])
    before = clone(learner.state)
    learner.update(make_box_batch(9))
    assert changed(before, learner.state) == {"critic.params", "value.params"}


@pytest.mark.compile
def test_compiled_updates_equal_eager_ones() -> None:
    plain, fast = (
        build_iql(iql_setup(acceleration=mode, normalize_observations=True)) for mode in ("eager", "compile")
    )
    for seed in range(5):
        expected = plain.update(make_box_batch(seed)).metrics
        torch.testing.assert_close(fast.update(make_box_batch(seed)).metrics, expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(fast.state, plain.state, rtol=1e-3, atol=1e-5)


# --- What is known of the dataset ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "scale"), [("none", 1.0), ("return", 1000.0 / 4.0), (0.5, 0.5)])
def test_rewards_are_scaled_and_shifted(setting: object, scale: float) -> None:
    learner = build_iql(iql_setup(reward_scale=setting, reward_shift=-1.0, gamma=0.0))  # returns 1 and 5
    batch = make_box_batch()
    result = learner.update(batch)
    assert result.metrics["target_mean"] == pytest.approx(float(batch["rewards"].mean()) * scale - 1.0, rel=1e-4)


def test_equal_returns_give_no_scale() -> None:
    with pytest.raises(ConfigError, match=r"reward_scale: return needs episodes of different returns, but all 2 .* 3;"):
        build_iql(iql_setup(dataset=make_dataset(returns=(3.0, 3.0)), reward_scale="return"))


def test_observations_are_normalised_alike_in_acting_and_learning_and_by_the_checkpoint() -> None:
    dataset = make_dataset(returns=tuple(range(50)))
    learner = build_iql(iql_setup(dataset=dataset, normalize_observations=True))
    mean, std = dataset.obs.mean(0), dataset.obs.std(0)
    plain = build_iql(iql_setup())
    obs = np.array(dataset.obs)
    expected = plain.act(((obs - mean) / std).astype(np.float32)).actions
    np.testing.assert_allclose(learner.act(obs).actions, expected, atol=1e-5)
    seen: list[Tensor] = []
    networks = recipe(learner).networks

    def noted(params: Tensor, obs: Tensor) -> Tensor:
        seen.append(obs)
        return networks.actor(params, obs)

    recipe(learner).networks = replace(networks, actor=noted)
    learner.update(make_box_batch() | {"obs": torch.from_numpy(obs[:8])})
    np.testing.assert_allclose(seen[0].numpy(), (obs[:8] - mean) / std, atol=1e-4)

    other = build_iql(replace(iql_setup(normalize_observations=True), dataset=None))  # as for prediction
    other.load_policy_state_dict(clone(learner.policy_state_dict()))
    assert np.array_equal(other.act(obs).actions, learner.act(obs).actions)


def test_exploring_actions_vary_and_are_clipped_to_the_bounds() -> None:
    learner, obs = build_iql(iql_setup()), np.zeros((200, 3), np.float32)
    actions = learner.act(obs, explore=True).actions  # the deviation begins at 1
    assert (np.abs(actions) == 1.0).mean() > 0.2
    assert np.abs(actions).max() == 1.0
    assert actions.std() > 0.5
    assert learner.act(obs).actions.std(0).max() == 0.0


def test_only_vectors_are_normalised() -> None:
    image = Box(0, 255, (8, 8, 1), np.uint8)
    with pytest.raises(SpaceError, match="normalize_observations needs vector observations, but these are Box"):
        build_iql(replace(iql_setup(observation=image, normalize_observations=True), dataset=None))


# --- The model -------------------------------------------------------------------------------------------------------


def test_the_model_has_bounded_actions_two_critics_and_a_value() -> None:
    space = Box(-1.0, 1.0, (3,), np.float32)
    model = MLPIQLModel(lambda: build_encoder(space), BOX, (16, 8))
    obs, actions = 100.0 * torch.randn(5, 3), torch.rand(5, 2)
    outputs = model.actor(obs)
    assert outputs.shape == (5, 4)
    assert outputs[:, :2].abs().max() <= 1.0
    assert torch.equal(outputs[:, 2:], torch.zeros(5, 2))  # log-deviations, the same for all observations
    assert model.critics(obs, actions).shape == (2, 5)
    assert model.value(obs).shape == (5,)


def test_weights_begin_orthogonal_with_gain_sqrt_two() -> None:
    model = MLPIQLModel(lambda: build_encoder(Box(-1.0, 1.0, (16,), np.float32)), BOX, (16, 16))
    inner = [module.weight for module in model.value.modules() if isinstance(module, nn.Linear)][1]
    torch.testing.assert_close(inner @ inner.T, 2.0 * torch.eye(16), atol=1e-5, rtol=1e-5)
    for weight in model.critics.layers[2].weight:  # type: ignore[union-attr]
        torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(16), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_setting_decides_how_the_weights_of_all_parts_begin(orthogonal: bool) -> None:
    state = build_iql_model(iql_setup(orthogonal_init=orthogonal)).state_dict()
    biases = {name: values for name, values in state.items() if name.endswith("bias")}
    assert {name.partition(".")[0] for name in biases} == {"actor", "critics", "value"}
    for name, values in biases.items():  # PyTorch's layers draw theirs
        assert bool((values == 0.0).all()) == orthogonal, name


def test_the_policy_begins_with_the_set_deviation_and_moves_from_there() -> None:
    setup = iql_setup(log_std_init=-1.5)
    model, learner = build_iql_model(setup), build_iql(setup)
    outputs = model.actor(torch.zeros(1, 3))  # type: ignore[operator]
    torch.testing.assert_close(outputs[0, 2:].exp(), torch.full((2,), 0.22313), rtol=1e-4, atol=0)  # exp(-1.5)
    name = next(name for name in learner.policy_state_dict() if name.endswith("row"))
    learner.update(make_box_batch())
    assert (learner.policy_state_dict()[name] != -1.5).all()


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("expectile", 1.3, "iql.algo_kwargs.expectile must be in (0, 1), got 1.3"),
        ("expectile", 0.0, "iql.algo_kwargs.expectile must be in (0, 1), got 0.0"),
        ("expectile", 1.0, "iql.algo_kwargs.expectile must be in (0, 1), got 1.0"),
        ("beta", 0.0, "iql.algo_kwargs.beta must be > 0, got 0.0"),
        ("beta", -3, "iql.algo_kwargs.beta must be > 0, got -3"),
        ("max_advantage_weight", 0, "iql.algo_kwargs.max_advantage_weight must be > 0, got 0"),
        ("held_out", 1.0, "iql.algo_kwargs.held_out must be in [0, 1), got 1.0"),
        ("reward_scale", "max", "iql.algo_kwargs.reward_scale must be a number or 'none' or 'return', got 'max'"),
        ("dataset_kind", "npz", "iql.algo_kwargs: dataset_path is missing: dataset_kind npz needs it"),
        (
            "dataset_kind",
            "minari",
            "iql.algo_kwargs: dataset_path or dataset_id is missing: dataset_kind minari needs it",
        ),
        ("dataset_path", 5, "iql.algo_kwargs.dataset_path must be a path, got 5"),
        (
            "dataset_kind",
            "csv",
            "iql.algo_kwargs.dataset_kind must be 'random', 'npz', 'minari', 'hdf5', 'parquet' or 'arrays', got 'csv'",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(setting: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(algo="iql", env_id="Pendulum-v1", total_timesteps=10, algo_kwargs={setting: value})
    assert str(caught.value) == message
