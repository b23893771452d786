"""What SAC, TD3 and REDQ do alike: several updates in a call, their number, priorities, acting, and the fast path."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.exactness import ACTOR_CRITICS, differences, run_broken, run_unbroken
from gymnasium.spaces import Box, Discrete
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from builders import make_box_batch, make_box_setup, make_config
from rl_training import TD3
from rl_training.acceleration.steps import accelerate, accelerate_rounds
from rl_training.core.types import Batch, Metrics, State
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import build_replay_buffer
from rl_training.errors import CheckpointError, SpaceError
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import POLICY
from rl_training.experiment.registry import registry
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.hparams.sac import SACHParams
from rl_training.hparams.schedules import actor_critic_updates
from rl_training.learners.actor_critic import ActorCritic, actor_policy
from rl_training.learners.normalization import normalize_batch
from rl_training.learners.random_inputs import RandomInput, RandomInputs, normal, uniform
from rl_training.learners.targets import critic_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.loops import MAX_UPDATES_AT_ONCE
from rl_training.runtime.run import Run
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import RunOptions
from state_comparison import assert_identical, clone

FAMILY = ["sac", "td3", "redq"]
ROWS = 8


def build(algo: str, **setup: Any) -> ActorCritic:
    learner = registry()[algo].build_algorithm(make_box_setup(algo, **setup))
    assert isinstance(learner, ActorCritic)
    return learner


# --- Several updates in a call ---------------------------------------------------------------------------------------


class Given:
    """Stands in for `RandomInputs`: the k-th update gets the k-th of these numbers, whether alone or in a group."""

    def __init__(self, learner: ActorCritic, rounds: int, numbers: dict[str, Tensor]) -> None:
        self.learner, self.rounds, self.numbers = learner, rounds, numbers

    def fill(self, generator: np.random.Generator) -> Batch:
        first = self.learner.num_updates
        return {name: values[first : first + self.rounds].flatten(0, 1) for name, values in self.numbers.items()}


def with_given_numbers(learner: ActorCritic, updates: int) -> ActorCritic:
    generator = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(updates, ROWS, 2, generator=generator) for name in ("next_noise", "noise")}
    subset = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(updates)])
    keys = [(kind, rounds) for rounds in range(1, updates + 1) for kind in ("critic", "whole")]
    numbers = noise | {"subset": subset}
    learner._random_inputs = {key: Given(learner, key[1], numbers) for key in keys}  # type: ignore[misc]
    return learner


@pytest.mark.parametrize("groups", [(7,), (3, 4), (1, 5, 1)])
@pytest.mark.parametrize(("algo", "delay"), [("sac", 1), ("sac", 2), ("td3", 2), ("td3", 1), ("redq", 3), ("redq", 20)])
def test_several_updates_in_a_call_equal_as_many_calls(algo: str, delay: int, groups: tuple[int, ...]) -> None:
    alone, together = (with_given_numbers(build(algo, policy_delay=delay), 7) for _ in range(2))
    batch = make_box_batch(size=7 * ROWS) | {"weights": torch.rand(7 * ROWS), "discounts": torch.rand(7 * ROWS)}
    parts = [{name: values[k * ROWS : (k + 1) * ROWS] for name, values in batch.items()} for k in range(7)]
    singles = [alone.update(part) for part in parts]
    first, results = 0, []
    for rounds in groups:
        rows = slice(first * ROWS, (first + rounds) * ROWS)
        results.append(together.update({name: values[rows] for name, values in batch.items()}))
        first += rounds
    assert [result.num_gradient_steps for result in results] == list(groups)
    assert_identical(together.state, alone.state)
    assert together.num_updates == alone.num_updates == 7
    errors, expected = (
        [result.td_errors for result in given if result.td_errors is not None] for given in (results, singles)
    )
    assert torch.equal(torch.cat(errors), torch.cat(expected))


def test_metrics_of_several_updates_in_a_call_are_their_means() -> None:
    alone, together = (with_given_numbers(build("sac"), 3) for _ in range(2))
    batch = make_box_batch(size=3 * ROWS)
    parts = [{name: values[k * ROWS : (k + 1) * ROWS] for name, values in batch.items()} for k in range(3)]
    singles = [alone.update(part).metrics for part in parts]
    for name, value in together.update(batch).metrics.items():
        assert value.shape == ()
        torch.testing.assert_close(value, torch.stack([metrics[name] for metrics in singles]).mean())


@pytest.mark.parametrize("algo", FAMILY)
def test_networks_of_one_seed_are_equal_and_building_leaves_the_global_generator_alone(algo: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build(algo, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_identical(first.state, again.state)
    assert not torch.equal(first.state["actor.params"], other.state["actor.params"])
    assert torch.equal(first.state["target_critic"], first.state["critic.params"])
    assert first.state["target_critic"].data_ptr() != first.state["critic.params"].data_ptr()
    values = first.recipe.critics.module(torch.ones(1, 3), torch.ones(1, 2))
    assert len(values.unique()) == len(values)  # each critic begins elsewhere


# --- Random numbers --------------------------------------------------------------------------------------------------


def test_draws_are_the_generators_and_stay_in_their_tensors() -> None:
    random_inputs = RandomInputs(
        {"a": RandomInput((3, 2), normal), "b": RandomInput((4,), uniform)}, torch.device("cpu")
    )
    first = random_inputs.fill(np.random.default_rng(0))
    expected = np.random.default_rng(0)
    assert np.array_equal(first["a"].numpy(), expected.standard_normal((3, 2), np.float32))
    assert np.array_equal(first["b"].numpy(), expected.random(4, np.float32))
    kept, pointers = clone(first), {name: tensor.data_ptr() for name, tensor in first.items()}
    again = random_inputs.fill(expected)
    assert {name: tensor.data_ptr() for name, tensor in again.items()} == pointers
    assert not torch.equal(again["a"], kept["a"])


# --- How many updates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.0, [0, 0, 1, 2, 10, 98]),
        (20.0, [0, 0, 20, 40, 200, 1_960]),
        (0.5, [0, 0, 0, 1, 5, 49]),
        (0.1, [0, 0, 0, 0, 1, 9]),
        (1.5, [0, 0, 1, 3, 15, 147]),
    ],
)
def test_updates_owed_by_hand(ratio: float, expected: list[int]) -> None:
    hparams = SACHParams(learning_starts=2, gradient_updates_per_step=ratio)
    assert [actor_critic_updates(hparams, step) for step in (0, 2, 3, 4, 12, 100)] == expected


@given(hundredths=st.integers(1, 3_000), starts=st.integers(0, 50), step=st.integers(0, 10**7))
@example(hundredths=29, starts=0, step=100)  # 0.29 * 100 is 28.999999999999996 in floats
def test_a_hundredth_is_a_hundredth_at_any_step(hundredths: int, starts: int, step: int) -> None:
    hparams = SACHParams(learning_starts=starts, gradient_updates_per_step=hundredths / 100)
    assert actor_critic_updates(hparams, step) == max(0, step - starts) * hundredths // 100


class Count(Callback):
    """Notes the gradient steps after every step of the envs."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_step(self, run: Run) -> None:
        self.seen.append((run.step, run.gradient_step))


@pytest.mark.learning
@pytest.mark.parametrize("num_envs", [1, 3, 4])
@pytest.mark.parametrize(("ratio", "steps"), [(0.1, 48), (0.5, 48), (1.0, 48), (20.0, 12)])
def test_the_ratio_of_updates_to_env_steps_is_exact_in_the_loop(
    ratio: float, steps: int, num_envs: int, tmp_path: Path
) -> None:
    config = make_config(
        tmp_path,
        algo="sac",
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": "box"},
        total_timesteps=steps,
        num_envs=num_envs,
        eval_episodes=1,
        algo_kwargs={"gradient_updates_per_step": ratio, "learning_starts": 6, "batch_size": 4, "hidden_sizes": [4]},
    )
    count = Count()
    result = train_sac(config, RunOptions(show_progress=False, callbacks=[count]))
    tenths = round(ratio * 10)
    assert count.seen == [(step, max(0, step - 6) * tenths // 10) for step in range(num_envs, steps + 1, num_envs)]
    assert result.gradient_step == (steps - 6) * tenths // 10 > 0
    assert result.algorithm.num_updates == result.gradient_step  # type: ignore[attr-defined]


def test_rounds_at_a_train_frequency_hold_the_updates_of_all_its_steps() -> None:
    hparams = SACHParams(learning_starts=10, train_frequency=8, gradient_updates_per_step=0.5)
    assert [actor_critic_updates(hparams, step) for step in (17, 18, 25, 26)] == [0, 4, 4, 8]


def test_no_call_has_more_updates_than_are_drawn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = ActorCritic.update

    def noting(self: ActorCritic, batch: Batch) -> Any:
        sizes.append(len(batch["rewards"]))
        return plain(self, batch)

    monkeypatch.setattr(ActorCritic, "update", noting)
    config = make_config(
        tmp_path,
        algo="td3",
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": "box"},
        total_timesteps=12,
        algo_kwargs={"gradient_updates_per_step": 150, "learning_starts": 11, "batch_size": 2, "hidden_sizes": [4]},
    )
    train_sac(config, RunOptions(show_progress=False))
    assert sizes == [2 * MAX_UPDATES_AT_ONCE, 2 * MAX_UPDATES_AT_ONCE, 2 * (150 - 2 * MAX_UPDATES_AT_ONCE)]


# --- Priorities and returns of several steps -------------------------------------------------------------------------


def test_the_errors_of_the_rows_are_means_over_the_critics() -> None:
    # Two critics, three rows, targets 1: |0 - 1|, |3 - 1| -> 1.5; |1 - 1|, |-1 - 1| -> 1; |2 - 1|, |2 - 1| -> 1.
    metrics = critic_metrics(torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 2.0]]), torch.ones(3), {})
    assert metrics["td_errors"].tolist() == [1.5, 1.0, 1.0]
    assert metrics["loss"] == pytest.approx((5.0 + 4.0 + 2.0) / 3)


@pytest.mark.learning
@pytest.mark.parametrize("algo", FAMILY)
def test_priorities_and_three_step_returns_run_in_the_loop(algo: str, tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        algo=algo,
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": "box", "length": 7},
        num_envs=2,
        algo_kwargs={"n_step": 3, "prioritized": True, "gradient_updates_per_step": 2},
    )
    result = train_sac(config, RunOptions(show_progress=False))
    assert result.gradient_step == config.spec.updates_until(config.hparams, 60)
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert read_json_lines(result.run_dir / "episodes.jsonl")


def test_the_last_errors_of_a_row_are_its_priority() -> None:
    setup = make_box_setup(prioritized=True, prioritized_alpha=1.0, buffer_capacity=64)
    memory, learner = build_replay_buffer(setup), registry()["sac"].build_algorithm(setup)
    rows = {name: values.numpy() for name, values in make_box_batch(size=64).items()}
    memory.add(rows | {"next_obs": rows["next_obs"]})
    batch = memory.sampler(3 * ROWS)()
    drawn = memory._drawn.copy()  # type: ignore[attr-defined]
    errors = learner.update(batch).td_errors
    assert errors is not None
    assert errors.shape == (3 * ROWS,)
    memory.update_priorities(errors)
    last = dict(zip(drawn.tolist(), errors.tolist(), strict=True))  # a row may be drawn twice: the later one counts
    found = memory._tree.priorities[list(last)]  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, [error + 1e-6 for error in last.values()], rtol=1e-6)


def test_beta_reaches_its_end_although_several_batches_are_drawn_at_once(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        algo="redq",
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": "box"},
        algo_kwargs={
            "gradient_updates_per_step": 4,
            "prioritized": True,
            "prioritized_beta_start": 0.2,
            "prioritized_beta_end": 0.9,
        },
    )
    betas: list[float] = []

    class Note(Callback):
        def on_step(self, run: Run) -> None:
            assert isinstance(run.memory, PrioritizedReplayBuffer)
            betas.append(run.memory.beta)

    train_sac(config, RunOptions(show_progress=False, callbacks=[Note()]))
    assert betas[9] == pytest.approx(0.2)  # ten steps of warm-up
    assert betas[34] == pytest.approx(0.55)  # half of the fifty others
    assert betas[-1] == pytest.approx(0.9)


# --- Acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", FAMILY)
def test_warm_up_is_uniform_over_the_box_and_comes_before_the_policy(algo: str) -> None:
    learner = build(algo, learning_starts=100)
    obs = np.zeros((20_000, 3), np.float32)
    actions = learner.act(obs, step=99, explore=True).actions
    assert actions.dtype == np.float32
    assert actions.shape == (20_000, 2)
    assert np.abs(actions).max() <= 1.0
    np.testing.assert_allclose(
        np.quantile(actions, [0.1, 0.5, 0.9], axis=0), [[-0.8] * 2, [0.0] * 2, [0.8] * 2], atol=0.04
    )
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.05
    later = learner.act(obs, step=100, explore=True).actions
    best = learner.act(obs[:1], step=0).actions[0]
    assert np.abs(np.median(later, 0) - best).max() < 0.05  # noise around what it thinks best
    assert not np.allclose(np.quantile(later, 0.9, axis=0), 0.8, atol=0.02)


@pytest.mark.parametrize("algo", FAMILY)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_actions_have_the_shape_of_the_box(algo: str, shape: tuple[int, ...]) -> None:
    learner = build(algo, action=Box(-3.0, 5.0, shape, np.float32), learning_starts=5)
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    for step, explore in ((0, True), (9, True), (9, False)):
        assert learner.act(obs, step=step, explore=explore).actions.shape == (4, *shape)
    actions = torch.rand(ROWS, *shape)
    result = learner.update(make_box_batch() | {"actions": actions})
    assert torch.isfinite(result.metrics["critic_loss"])


@pytest.mark.parametrize("algo", FAMILY)
def test_acting_without_exploring_uses_no_random_numbers(algo: str) -> None:
    learner = build(algo)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    before = learner.state_dict()["generators"]
    assert np.array_equal(learner.act(obs).actions, learner.act(obs).actions)
    assert learner.state_dict()["generators"] == before
    learner.act(obs, step=10**6, explore=True)
    assert learner.state_dict()["generators"] != before


# --- Normalised observations -----------------------------------------------------------------------------------------


def observed(algo: str, rows: np.ndarray, **settings: Any) -> ActorCritic:
    """A learner that normalises and has seen these observations, in two steps."""
    learner = build(algo, normalize_observations=True, **settings)
    for part in np.array_split(rows, 2):
        learner.observe({"obs": part})
    return learner


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal([5.0, -2.0, 0.0], [3.0, 0.1, 1.0], (40, 3)).astype(np.float32)


@pytest.mark.parametrize("algo", FAMILY)
def test_acting_and_updates_see_observations_on_the_scale_of_all_training_steps(algo: str, rows: np.ndarray) -> None:
    plain, learner = build(algo), observed(algo, rows)

    def seen(obs: np.ndarray) -> np.ndarray:
        values = (obs - rows.mean(0, dtype=np.float64)) / np.sqrt(rows.var(0, dtype=np.float64) + 1e-8)
        clipped: np.ndarray = np.clip(values, -10.0, 10.0).astype(np.float32)
        return clipped

    obs = rows[:8] + np.float32(0.5)
    np.testing.assert_allclose(learner.act(obs).actions, plain.act(seen(obs)).actions, atol=1e-6)
    np.testing.assert_allclose(
        learner.act(obs, step=10**6, explore=True).actions,
        plain.act(seen(obs), step=10**6, explore=True).actions,
        atol=1e-6,
    )
    assert np.abs(learner.act(obs).actions - plain.act(obs).actions).max() > 1e-3
    batch = make_box_batch() | {"obs": torch.from_numpy(obs), "next_obs": torch.from_numpy(obs[::-1].copy())}
    normalized = {name: torch.from_numpy(seen(batch[name].numpy())) for name in ("obs", "next_obs")}
    for _ in range(4):  # with and without the actor
        found, expected = learner.update(batch).metrics, plain.update(batch | normalized).metrics
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", FAMILY)
def test_statistics_are_saved_with_the_policy_and_acting_leaves_them_alone(algo: str, rows: np.ndarray) -> None:
    learner = observed(algo, rows)
    saved = clone(learner.policy_state_dict())
    assert saved["obs_moments"]["count"] == 40
    learner.act(rows)
    learner.act(rows, step=10**6, explore=True)
    learner.update(make_box_batch())
    assert_identical(learner.policy_state_dict()["obs_moments"], saved["obs_moments"])
    other = build(algo, normalize_observations=True)
    other.load_policy_state_dict(saved)
    other.load_state_dict(learner.state_dict())
    learner.load_policy_state_dict(saved)
    for each in (learner, other):
        each.observe({"obs": rows[:2] * 2})
        each.update(make_box_batch(1))
    assert_identical(other.policy_state_dict(), learner.policy_state_dict())
    assert_identical(other.state, learner.state)


@pytest.mark.parametrize("algo", FAMILY)
def test_simba_normalises_vectors_by_itself_and_the_plain_network_does_not(algo: str) -> None:
    def normalizes(network: str, **setup: Any) -> bool:
        plain = make_box_setup(algo, hidden_sizes=(8, 8), **setup)
        learner = registry()[algo].build_algorithm(
            replace(plain, hparams=plain.hparams.model_copy(update={"network": network}))
        )
        return "obs_moments" in learner.policy_state_dict()

    assert normalizes("simba")
    assert not normalizes("mlp")
    assert normalizes("mlp", normalize_observations=True)
    assert not normalizes("simba", normalize_observations=False)
    assert not normalizes("simba", observation=Box(0, 255, (8, 8, 3), np.uint8))


def test_normalised_observations_are_clipped_as_the_setting_says(rows: np.ndarray) -> None:
    far = np.full((1, 3), 1e4, np.float32)
    for clip, largest in ((10.0, 10.0), (3.0, 3.0), (None, 1e5)):
        learner = observed("sac", rows, observation_clip=clip)
        normalizer = learner.scaling.normalizer
        assert normalizer is not None
        seen = normalizer.rows(far)
        assert seen.max() == pytest.approx(largest, rel=0.3)
        batch = normalize_batch({"obs": torch.tensor(far), "next_obs": torch.tensor(far)}, learner.state, clip)
        np.testing.assert_allclose(batch["next_obs"].numpy(), seen, rtol=1e-5)
        policy = actor_policy(learner)
        best = torch.from_numpy(learner.act(far).actions)
        torch.testing.assert_close(policy(torch.tensor(far), None).actions, best)


def test_a_policy_without_statistics_and_images_are_refused() -> None:
    with pytest.raises(CheckpointError, match="has no obs_moments: it was trained without that normalisation"):
        build("sac", normalize_observations=True).load_policy_state_dict(build("sac").policy_state_dict())
    with pytest.raises(
        SpaceError, match=r"normalize_observations needs vector observations, but these are Box.*; set it to false"
    ):
        build("sac", normalize_observations=True, observation=Box(0, 255, (8, 8, 3), np.uint8))


def test_training_counts_every_step_once_and_a_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    td3 = next(case for case in ACTOR_CRITICS if case.name == "td3")
    case = replace(td3, settings=td3.settings | {"total_timesteps": 300}, algo_kwargs={"normalize_observations": True})
    whole = run_unbroken(case, tmp_path)
    moments = open_checkpoint(find_checkpoint(whole)).load(POLICY)["obs_moments"]
    assert moments["count"] == 300  # evaluations and replayed batches do not count
    assert differences(run_broken(case, tmp_path, [50, 201]), whole) == []
    last = [record["return"] for record in read_json_lines(whole / "eval.jsonl")][-2:]
    assert [episode.ret for episode in TD3.load(whole).evaluate()] == last


# --- The fast path ---------------------------------------------------------------------------------------------------
# REDQ's step is SAC's with a subset and a mean; with those of TQC, TD3, ReBRAC, CQL and CrossQ in one program they
# are compiled in less time than each for itself.


def all_at_once(learners: dict[str, ActorCritic]) -> Callable[[State, Batch], tuple[State, Metrics]]:
    def of(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        new: State = {}
        metrics: Metrics = {}
        for name, learner in learners.items():
            changed, more = learner.pure_step(of(name, state), of(name, batch))
            new |= {f"{name}/{key}": value for key, value in changed.items()}
            metrics |= {f"{name}/{key}": value for key, value in more.items()}
        return new, metrics

    return step


@pytest.mark.compile
def test_compiled_rounds_equal_eager_updates() -> None:
    def make() -> tuple[dict[str, ActorCritic], State]:
        settings: dict[str, dict[str, Any]] = {
            "redq": {"normalize_observations": True, "dropout": 0.2, "layer_norm": True},
            "tqc": {"num_critics": 2, "num_quantiles": 3, "dropped_quantiles": 1, "critic_hidden_sizes": (8,)},
            "td3": {"layer_norm": True, "weight_decay": 0.1},
            "rebrac": {"reward_scale": 0.5},
            "cql": {"normalize_observations": False, "num_sampled_actions": 2},
            "crossq": {"norm_warmup": 2},  # ends within the rounds
            "discrete_sac": {"action": Discrete(2), "critic_entropy": 0.5},
        }
        learners = {name: build(name, hidden_sizes=(8,), **own) for name, own in settings.items()}
        learners["redq"].observe({"obs": make_box_batch(1, size=50)["obs"].numpy()})
        state = {f"{name}/{key}": value for name, learner in learners.items() for key, value in learner.state.items()}
        return learners, state

    learners, plain_state = make()
    weights = torch.rand(2, 5 * ROWS, generator=torch.Generator().manual_seed(0))
    shared = make_box_batch(size=5 * ROWS) | {"weights": weights[0], "discounts": weights[1]}
    shared["next_actions"] = make_box_batch(1, size=5 * ROWS)["actions"]
    batch: Batch = {}
    for name, learner in learners.items():
        random_inputs = RandomInputs(learner.recipe.random_inputs(5, ROWS, actor=True), torch.device("cpu"))
        drawn = shared | random_inputs.fill(np.random.default_rng(0))
        if learner.num_choices:
            drawn["actions"] = (drawn["actions"][:, 0] > 0).to(torch.int64)
        batch |= {f"{name}/{key}": value for key, value in drawn.items()}

    update, parts = accelerate(all_at_once(learners), "eager"), [tensor.chunk(5) for tensor in batch.values()]
    singles = [update(plain_state, dict(zip(batch, rows, strict=True))) for rows in zip(*parts, strict=True)]
    others, state = make()
    metrics = accelerate_rounds(all_at_once(others), "compile")(state, batch, 5)
    expected = {name: torch.stack([single[name] for single in singles]) for name in singles[0]}
    torch.testing.assert_close(metrics, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state, plain_state, rtol=1e-4, atol=1e-6)
    _, first = make()
    assert all(not torch.equal(state[name], first[name]) for name in state if name.endswith(".params"))


# --- Step sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", FAMILY)
def test_a_linear_schedule_takes_every_step_size_to_zero_over_the_run(algo: str) -> None:
    settings = {"learning_rate_schedule": "linear", "learning_rate": 0.4, "actor_learning_rate": 0.2}
    learner = build(
        algo,
        total_timesteps=8,
        learning_starts=0,
        gradient_updates_per_step=1,
        policy_delay=1,
        batch_size=ROWS,
        **settings,
    )
    found = []
    for _ in range(9):
        learner.update(make_box_batch(size=ROWS))
        found.append([float(learner.state[f"{part}.learning_rate"]) for part in ("critic", "actor")])
    left = [*(1.0 - done / 8 for done in range(8)), 0.0]  # a run that goes on beyond its end learns nothing more
    assert np.allclose(found, [(0.4 * share, 0.2 * share) for share in left])


def test_a_constant_schedule_leaves_the_step_sizes_alone() -> None:
    learner = build("sac", total_timesteps=8, learning_rate=0.4, batch_size=ROWS)
    for _ in range(3):
        learner.update(make_box_batch(size=ROWS))
    assert float(learner.state["critic.learning_rate"]) == pytest.approx(0.4)
