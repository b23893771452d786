"""MBPO's parts work together: rollouts follow policy, elites and termination; updates are SAC's."""

from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary
from torch import Tensor

from rl_training.algorithms.mbpo import MBPO, build_mbpo
from rl_training.algorithms.sac import build_sac, learning_rates
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.data.mixed_source import MixedSource, build_mixed_source
from rl_training.envs.terminations import NEVER, Bound, TerminationRule, Unless, termination_rule
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.hparams.mbpo import MBPOHParams, MOPOHParams
from rl_training.hparams.schedules import max_horizon, rollout_horizon
from rl_training.learners.dynamics import DynamicsEnsemble, build_ensemble
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.model_rollouts import MAX_ROWS_PER_ELITE, ModelRollouts
from state_comparison import assert_identical, clone

SMALL = {
    "hidden_sizes": (16,),
    "batch_size": 8,
    "buffer_capacity": 200,
    "learning_starts": 0,
    "num_ensembles": 4,
    "num_elites": 2,
    "model_hidden_sizes": (8,),
    "model_batch_size": 16,
    "model_max_epochs": 2,
    "rollout_batch_size": 10,
}


def make_setup(
    *,
    observation: gym.Space[Any] | None = None,
    action: gym.Space[Any] | None = None,
    env_id: str = "",
    acceleration: str = "eager",
    seed: int = 0,
    **hparams: Any,
) -> Setup[MBPOHParams]:
    return Setup(
        spaces=Spaces(observation or Box(-9.0, 9.0, (2,), np.float32), action or Box(-1.0, 1.0, (1,), np.float32)),
        hparams=MBPOHParams(**{**SMALL, **hparams}),
        total_timesteps=1_000,
        total_updates=1_000,
        streams=Streams(seed),
        acceleration=acceleration,
        env_id=env_id,
    )


def transitions(setup: Setup[MBPOHParams], count: int = 60, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs_shape, action_shape = setup.spaces.observation.shape or (), setup.spaces.action.shape or ()
    obs = rng.normal(size=(count, *obs_shape)).astype(np.float32)
    return {
        "obs": obs,
        "actions": rng.uniform(-1.0, 1.0, (count, *action_shape)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "next_obs": obs + 0.1 * rng.normal(size=(count, *obs_shape)).astype(np.float32),
        "terminated": rng.random(count) < 0.2,
    }


def with_memory(setup: Setup[MBPOHParams]) -> tuple[MBPO, MixedSource]:
    algorithm, memory = build_mbpo(setup), build_mixed_source(setup)
    memory.add(transitions(setup))
    return algorithm, memory


# --- Rollouts --------------------------------------------------------------------------------------------------------


def exact_model(setup: Setup[MBPOHParams], increments: list[float], *, noise_std: float = 1e-20) -> DynamicsEnsemble:
    """Member i adds increments[i] to every observed number and pays 10 times as much, whatever the action."""
    ensemble = build_ensemble(setup, learned_termination=False)
    named = ensemble.model.named(ensemble.model.params)
    for value in named.values():
        value.zero_()
    named["max_log_variance"].fill_(80.0)
    named["min_log_variance"].fill_(-80.0)
    *_, last = (name for name in named if name.endswith(".bias"))
    for member, increment in enumerate(increments):
        named[last][member, :, :2] = increment
        named[last][member, :, 2] = 10.0 * increment
        named[last][member, :, 3:] = 2.0 * float(np.log(noise_std))
    return ensemble


def rolled_out(
    setup: Setup[MBPOHParams],
    ensemble: DynamicsEnsemble,
    starts: Tensor,
    horizon: int,
    rule: TerminationRule = NEVER,
) -> list[dict[str, np.ndarray]]:
    def act(params: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
        return (params * obs[:, :1] + noise).tanh()

    actor = cast(FlatModule, SimpleNamespace(params=torch.tensor(0.5)))
    rollouts = ModelRollouts(ensemble, actor, act, rule, setup, identity=None)
    return list(rollouts.run(starts, horizon))


def test_rollouts_go_on_to_their_horizon_and_each_step_begins_where_the_last_one_ended() -> None:
    setup = make_setup(rollout_batch_size=6)
    starts = torch.arange(12.0).view(6, 2)
    steps = rolled_out(setup, exact_model(setup, [1.0] * 4), starts, 3)
    assert len(steps) == 3
    for number, step in enumerate(steps):
        assert step["obs"] == pytest.approx(starts.numpy() + number)
        assert step["next_obs"] == pytest.approx(starts.numpy() + number + 1)
        assert step["rewards"] == pytest.approx(np.full(6, 10.0))
        assert not step["terminated"].any()


def test_rollouts_end_where_the_environment_would() -> None:
    # From 0, 1, 2, 3 the numbers 1, 2, 3 are healthy, 4 is not: so many steps are left.
    setup = make_setup(rollout_batch_size=4)
    starts = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    rule = Unless((Bound(0, 1, -1.0, 3.5),))
    steps = rolled_out(setup, exact_model(setup, [1.0] * 4), starts, 10, rule)
    assert [len(step["rewards"]) for step in steps] == [4, 3, 2, 1]
    for step in steps:
        assert step["terminated"].tolist() == (step["next_obs"][:, 0] >= 3.5).tolist()
        assert step["terminated"].sum() == 1
        assert (step["obs"][:, 0] < 3.5).all()


def test_each_step_of_a_row_is_by_an_elite_drawn_at_random_and_elites_share_the_rows() -> None:
    setup = make_setup(rollout_batch_size=40, num_elites=3)
    ensemble = exact_model(setup, [1.0, 2.0, 3.0, 4.0])
    ensemble.state["elites"].copy_(torch.tensor([3, 1, 0]))  # the third member is none
    steps = rolled_out(setup, ensemble, torch.zeros(42, 2), 60)
    increments = np.stack([step["rewards"] / 10.0 for step in steps])  # (steps, rows)
    assert sorted(np.unique(increments.round(4)).tolist()) == [1.0, 2.0, 4.0]
    for step in increments:
        assert np.unique(step.round(4), return_counts=True)[1].tolist() == [14, 14, 14]
    shares = [(increments[:, row].round(4) == value).mean() for row in (0, 20, 41) for value in (1.0, 2.0, 4.0)]
    assert shares == pytest.approx([1 / 3] * 9, abs=0.2)  # over 60 steps, deviation 0.06


def test_predictions_are_drawn_with_the_models_deviation() -> None:
    setup = make_setup(rollout_batch_size=1_000)
    (step,) = rolled_out(setup, exact_model(setup, [0.0] * 4, noise_std=0.5), torch.zeros(1_000, 2), 1)
    assert step["next_obs"].std(0) == pytest.approx([0.5, 0.5], rel=0.1)
    assert step["rewards"].std() == pytest.approx(0.5, rel=0.1)
    assert np.corrcoef(step["next_obs"][:, 0], step["rewards"])[0, 1] == pytest.approx(0.0, abs=0.12)


def test_actions_are_those_of_the_stochastic_policy() -> None:
    setup = make_setup(rollout_batch_size=1_000)
    starts = torch.tensor([[1.0, 0.0]]).expand(1_000, 2)
    (step,) = rolled_out(setup, exact_model(setup, [0.0] * 4), starts, 1)
    raw = np.arctanh(step["actions"][:, 0].clip(-0.999999, 0.999999))  # 0.5 * 1 + noise
    assert raw.mean() == pytest.approx(0.5, abs=0.1)
    assert raw.std() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("rows", [1, 7, 2 * MAX_ROWS_PER_ELITE["cpu"] + 1, 3_333])
def test_every_start_is_rolled_out_once_however_many_there_are(rows: int) -> None:
    setup = make_setup(rollout_batch_size=rows)
    starts = torch.arange(2.0 * rows).view(rows, 2)
    steps = rolled_out(setup, exact_model(setup, [1.0] * 4), starts, 2)
    seen = np.concatenate([step["obs"] for step in steps])
    assert sorted(seen[:, 0].round(2).tolist()) == sorted([*starts[:, 0].tolist(), *(starts[:, 0] + 1.0).tolist()])


def test_what_is_no_number_is_not_kept_and_ends_a_rollout() -> None:
    setup = make_setup(rollout_batch_size=3)
    starts = torch.tensor([[0.0, 0.0], [float("nan"), 0.0], [1.0, 0.0]])
    steps = rolled_out(setup, exact_model(setup, [1.0] * 4), starts, 2)
    assert [len(step["rewards"]) for step in steps] == [2, 2]
    assert all(np.isfinite(step["next_obs"]).all() for step in steps)


@pytest.mark.slow
@pytest.mark.compile
def test_compiled_rollouts_equal_eager_ones() -> None:
    filled = []
    for acceleration in ("eager", "compile"):
        setup = make_setup(acceleration=acceleration, termination="learned", rollout_batch_size=50)
        algorithm, memory = with_memory(setup)
        algorithm.rollout(memory, 3)
        filled.append(memory.model.storage.contents())  # type: ignore[attr-defined]
    eager, compiled = filled
    assert eager["terminated"].tolist() == compiled["terminated"].tolist()
    for name in ("obs", "actions", "rewards", "next_obs"):
        assert compiled[name] == pytest.approx(eager[name], rel=1e-4, abs=1e-5), name


# --- The algorithm ---------------------------------------------------------------------------------------------------


def test_an_update_is_one_of_sac() -> None:
    setup = make_setup()
    algorithm, memory = with_memory(setup)
    sac, batch = build_sac(setup), memory.sample(24)
    ours, theirs = algorithm.update(clone(batch)), sac.update(clone(batch))
    assert ours.num_gradient_steps == 3
    assert_identical(ours.metrics, theirs.metrics)
    assert_identical(algorithm.policy_state_dict(), sac.policy_state_dict())


def test_a_model_step_has_metrics_of_its_own_and_the_status_shows_them() -> None:
    setup = make_setup()
    algorithm, memory = with_memory(setup)
    assert "model_loss" not in algorithm.status(0)
    result = algorithm.update_model(transitions(setup))
    assert {"model_loss", "holdout_mse", "model_epochs", "model_mse"} <= set(result.metrics)
    assert result.num_gradient_steps == 2 * 3  # 48 rows in minibatches of 16, twice
    rows = algorithm.rollout(memory, 2)
    status = algorithm.status(0)
    assert status["model_loss"] == pytest.approx(float(result.metrics["model_loss"]))
    assert (status["rollout_horizon"], status["rollout_length"]) == (2.0, rows / 10)
    assert status["synthetic_transitions"] == len(memory.model) == rows
    assert all(isinstance(value, float) for value in status.values())


def test_rollouts_start_from_real_states_and_fill_the_models_memory() -> None:
    setup = make_setup(env_id="Pendulum-v1")
    algorithm, memory = with_memory(setup)
    algorithm.update_model(transitions(setup))
    assert algorithm.rollout(memory, 1) == len(memory.model) == 10
    real = {tuple(obs) for obs in transitions(setup)["obs"].tolist()}
    contents = memory.model.storage.contents()  # type: ignore[attr-defined]
    assert all(tuple(obs) in real for obs in contents["obs"].tolist())
    assert (np.abs(contents["actions"]) < 1.0).all()
    assert len(memory.real) == 60


def test_the_models_memory_keeps_the_latest_refreshes() -> None:
    setup = make_setup(env_id="Pendulum-v1", synthetic_refreshes_kept=2)
    algorithm, memory = with_memory(setup)
    algorithm.update_model(transitions(setup))
    sizes = []
    for _ in range(3):
        algorithm.rollout(memory, 1)
        sizes.append(len(memory.model))
    assert sizes == [10, 20, 20]


def rolled_out_hoppers(env_id: str, termination: str) -> tuple[MBPO, dict[str, Tensor], Tensor]:
    """Give MBPO after a fit, the transitions of its rollouts, and where a hopper's would have terminated."""
    hopper = Box(-np.inf, np.inf, (11,), np.float64)
    setup = make_setup(observation=hopper, env_id=env_id, termination=termination, rollout_batch_size=200)
    algorithm, memory = with_memory(setup)
    algorithm.update_model(transitions(setup))
    algorithm.rollout(memory, 2)
    contents = memory.model.storage.contents()  # type: ignore[attr-defined]
    rows = {name: torch.from_numpy(values) for name, values in contents.items()}
    rule = termination_rule("Hopper-v5")
    assert rule is not None
    unhealthy = rule(rows["obs"], rows["actions"], rows["next_obs"])
    assert 0 < unhealthy.sum() < len(unhealthy)
    return algorithm, rows, unhealthy


def test_termination_follows_the_rule_of_an_environment_that_is_known() -> None:
    algorithm, rows, unhealthy = rolled_out_hoppers("Hopper-v5", "auto")
    assert torch.equal(rows["terminated"], unhealthy)
    assert algorithm.ensemble.model.module(rows["obs"], rows["actions"]).termination_logit is None


@pytest.mark.parametrize(("env_id", "termination"), [("Hopper-v5", "learned"), ("Unknown-v0", "auto"), ("", "auto")])
def test_termination_is_learnt_elsewhere_or_if_asked_for(env_id: str, termination: str) -> None:
    algorithm, rows, unhealthy = rolled_out_hoppers(env_id, termination)
    assert algorithm.ensemble.model.module(rows["obs"], rows["actions"]).termination_logit is not None
    assert 0 < rows["terminated"].sum() < len(unhealthy)
    assert not torch.equal(rows["terminated"], unhealthy)


def test_nothing_terminates_if_so_asked() -> None:
    _, rows, _ = rolled_out_hoppers("Hopper-v5", "never")
    assert not rows["terminated"].any()


def test_observations_and_actions_of_any_shape_are_predicted() -> None:
    setup = make_setup(observation=Box(-1.0, 1.0, (2, 3), np.float64), action=Box(-1.0, 1.0, (2, 2), np.float32))
    algorithm, memory = with_memory(setup)
    algorithm.update_model(transitions(setup))
    algorithm.rollout(memory, 1)
    batch = memory.sample(8)
    assert (batch["obs"].shape, batch["actions"].shape) == ((8, 2, 3), (8, 2, 2))
    assert all(torch.isfinite(value) for value in algorithm.update(batch).metrics.values())


def test_its_state_loads_into_another_one_which_then_goes_on_the_same() -> None:
    setup = make_setup()
    algorithm, memory = with_memory(setup)
    algorithm.update_model(transitions(setup))
    algorithm.rollout(memory, 2)
    algorithm.update(memory.sample(16))
    other, other_memory = with_memory(make_setup(seed=1))
    other.load_policy_state_dict(clone(algorithm.policy_state_dict()))
    other.load_state_dict(clone(algorithm.state_dict()))
    other_memory.load_state_dict(clone(memory.state_dict()))
    assert other.status(0) == algorithm.status(0)
    for each, source in ((algorithm, memory), (other, other_memory)):
        each.update_model(transitions(setup, seed=1))
        each.rollout(source, 2)
        each.update(source.sample(16))
    assert_identical(other.state_dict(), algorithm.state_dict())
    assert_identical(other.policy_state_dict(), algorithm.policy_state_dict())
    assert_identical(other_memory.state_dict(), memory.state_dict())


def test_the_policy_alone_is_what_acting_needs() -> None:
    setup = make_setup()
    algorithm, other = build_mbpo(setup), build_mbpo(make_setup(seed=1))
    other.load_policy_state_dict(clone(algorithm.policy_state_dict()))
    obs = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    assert np.array_equal(other.act(obs).actions, algorithm.act(obs).actions)
    assert_identical(algorithm.policy_state_dict(), build_sac(setup).policy_state_dict())


# --- Settings --------------------------------------------------------------------------------------------------------


def test_the_horizon_grows_linearly_and_is_rounded_down() -> None:
    hparams = MBPOHParams(rollout_horizon=1, rollout_horizon_end=15, rollout_horizon_steps=(20_000, 150_000))
    # 14 steps over 130,000: one more every 9285.7.
    assert [rollout_horizon(hparams, step) for step in (0, 20_000, 29_285, 29_286, 149_999, 150_000, 10**6)] == [
        *(1, 1, 1, 2, 14, 15, 15)
    ]
    assert max_horizon(hparams) == 15
    constant = MBPOHParams(rollout_horizon=3)
    assert (rollout_horizon(constant, 10**6), max_horizon(constant)) == (3, 3)


def test_one_step_size_is_that_of_the_whole_policy() -> None:
    rates = learning_rates(MBPOHParams(policy_learning_rate=0.5))
    assert rates == {"critic": 0.5, "actor": 0.5, "temperature": 0.5}


@pytest.mark.parametrize("kind", [MBPOHParams, MOPOHParams])
def test_actor_and_temperature_may_have_their_own(kind: type[MBPOHParams] | type[MOPOHParams]) -> None:
    rates = learning_rates(kind(policy_learning_rate=0.5, actor_learning_rate=0.2, alpha_learning_rate=0.1))
    assert rates == {"critic": 0.5, "actor": 0.2, "temperature": 0.1}


def test_the_horizon_of_hopper_grows_in_the_papers_epochs_which_begin_after_the_random_steps() -> None:
    hparams = load_config("mbpo/hopper").hparams
    assert isinstance(hparams, MBPOHParams)
    first = hparams.learning_starts + 20_000
    assert [rollout_horizon(hparams, step) for step in (first + 9_285, first + 9_286, first + 130_000)] == [1, 2, 15]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_elites": 8}, "num_elites must be at most num_ensembles, 7, got 8"),
        ({"num_elites": 0}, "num_elites must be >= 1, got 0"),
        ({"rollout_horizon": 0}, "rollout_horizon must be >= 1, got 0"),
        ({"rollout_horizon_end": 5}, "rollout_horizon_steps is missing"),
        ({"rollout_horizon_steps": [0, 10]}, "rollout_horizon_end is missing"),
        (
            {"rollout_horizon": 4, "rollout_horizon_end": 3, "rollout_horizon_steps": [0, 10]},
            "rollout_horizon_end must be at least rollout_horizon, 4, got 3",
        ),
        (
            {"rollout_horizon_end": 3, "rollout_horizon_steps": [10, 10]},
            r"rollout_horizon_steps must be two env steps, the second one larger, got \[10, 10\]",
        ),
        ({"n_step": 3}, "n_step must be 1, because a model predicts single steps, got 3"),
        ({"prioritized": True}, "prioritized must be false"),
        ({"synthetic_batch_ratio": 1.1}, r"synthetic_batch_ratio must be in \[0, 1\], got 1.1"),
        ({"model_holdout_ratio": 0.0}, r"model_holdout_ratio must be in \(0, 1\), got 0.0"),
        ({"model_train_frequency": 0}, "model_train_frequency must be >= 1, got 0"),
        ({"termination": "sometimes"}, "termination must be"),
        ({"model_lr": 1e-3}, "unknown setting 'model_lr'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(algo="mbpo", env_id="Pendulum-v1", total_timesteps=100, algo_kwargs=settings)


def test_observations_that_are_no_real_numbers_are_refused() -> None:
    with pytest.raises(SpaceError, match="learned models predict observations of real numbers"):
        build_mbpo(make_setup(observation=MultiBinary(3)))
