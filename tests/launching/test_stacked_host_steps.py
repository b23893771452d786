"""Stacked members with environments on the host: each acts, steps, samples and learns as it would alone."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from benchmarks.exactness import differences
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, TransformObservation

from first_policies import FirstPolicy
from host_stacks import CONTINUOUS, HOST, assert_close, assert_same_draws, base, train_members
from recorded_streams import RecordedStreams
from rl_training.acceleration import acting, steps
from rl_training.envs.tiny import TinyImage
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.population import PopulationConfig
from rl_training.experiment.run_dir import read_run_config
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.launching.populations import train_population
from rl_training.learners import stack
from rl_training.runtime import collector
from rl_training.runtime.trainer import RunOptions, train
from stacks import QUIET, member
from state_comparison import assert_identical


@pytest.mark.parametrize("algo", HOST)
def test_members_learn_as_single_runs_do(algo: str, tmp_path: Path, recorded_streams: RecordedStreams) -> None:
    first = FirstPolicy()
    options = RunOptions(show_progress=False, callbacks=[first])
    result = train_members(tmp_path, algo, (0, 5), options=options)
    assert [state.state for state in result.states.values()] == ["done"] * 2
    for number, seed in enumerate((0, 5)):
        drawn, policy = recorded_streams.take(seed), first.of.pop(seed)
        alone = train(base(tmp_path, algo, seed=seed), options)
        assert recorded_streams.take(seed) == drawn
        assert_identical(first.of[seed], policy)
        assert read_run_config(member(result, number)) == read_run_config(alone.run_dir)
        assert_same_draws(member(result, number), alone.run_dir)
        assert_close(member(result, number), alone.run_dir)
        folders = (member(result, number), alone.run_dir)
        ours, theirs = (read_json_lines(folder / "metrics.jsonl") for folder in folders)
        counts = [[(line["step"], line["gradient_step"]) for line in lines] for lines in (ours, theirs)]
        assert counts[0] == counts[1]
        for name, value in theirs[-1]["metrics"].items():
            assert ours[-1]["metrics"][name] == pytest.approx(value, rel=1e-2, abs=1e-2), name


def with_new_goals(algo: str) -> dict[str, Any]:
    plain = {"n_step": 1, "normalize_observations": False} if algo == "sac" else {}
    task = "PointReach" if algo in CONTINUOUS else "BitFlip"
    return {"env_id": f"rl_training/{task}-v0", "algo_kwargs": {"her": "future", "clip_targets": True, **plain}}


@pytest.mark.parametrize("algo", ["sac", "dqn", "discrete_sac"])
def test_members_learn_from_new_goals_as_single_runs_do(algo: str, tmp_path: Path) -> None:
    result = train_members(tmp_path, algo, (0, 5), **with_new_goals(algo))
    for number, seed in enumerate((0, 5)):
        alone = train(base(tmp_path, algo, seed=seed, **with_new_goals(algo)), QUIET)
        assert_same_draws(member(result, number), alone.run_dir)
        assert_close(member(result, number), alone.run_dir)


def test_a_member_does_not_depend_on_the_others(tmp_path: Path) -> None:
    three = train_members(tmp_path, seeds=(0, 1, 2))
    fewer = train_members(tmp_path, seeds=(2, 0))
    for ours, theirs in ((0, 2), (1, 0)):
        assert_same_draws(member(fewer, ours), member(three, theirs))
        assert_close(member(fewer, ours), member(three, theirs))


def test_a_member_does_not_depend_on_the_settings_of_the_others(tmp_path: Path) -> None:
    def with_rates(folder: Path, *rates: float) -> Path:
        vary = {"algo_kwargs.learning_rate": rates}
        config = PopulationConfig(base=base(folder), seeds=(0, 1), vary=vary, combine="zip", run="stacked")
        return member(train_population(config, QUIET), 0)

    assert differences(with_rates(tmp_path, 1e-3, 1e-2), with_rates(tmp_path / "other", 1e-3, 3e-2)) == []


def test_members_may_differ_in_their_learning_rates(tmp_path: Path) -> None:
    rates = {"algo_kwargs.learning_rate": (1e-4, 1e-2)}
    result = train_members(tmp_path, seeds=(0,), vary=rates, algo_kwargs={"learning_rate_schedule": "constant"})
    for number in range(2):
        own = read_run_config(member(result, number))
        assert_close(member(result, number), train(own, QUIET).run_dir)


def stacked_frames() -> gym.Env[Any, Any]:
    grey = TransformObservation(TinyImage(8), lambda obs: obs[..., 0], Box(0, 255, (8, 8), np.uint8))
    return FrameStackObservation(grey, 2)


@pytest.mark.parametrize("prioritized", [False, True])
def test_members_learn_from_stacked_frames_as_single_runs_do(prioritized: bool, tmp_path: Path) -> None:
    options = RunOptions(show_progress=False, env_factory=stacked_frames)
    changes: dict[str, Any] = {"env_id": "frames", "algo_kwargs": {"prioritized": prioritized}}
    result = train_members(tmp_path, "dqn", options=options, **changes)
    alone = train(base(tmp_path, "dqn", seed=1, **changes), options)
    assert_same_draws(member(result, 1), alone.run_dir)
    assert_close(member(result, 1), alone.run_dir)


def test_members_learn_from_dicts_with_fewer_updates_than_steps_as_single_runs_do(tmp_path: Path) -> None:
    updates = {"train_frequency": 5, "gradient_steps": 3}  # two steps of two environments are four
    changes: dict[str, Any] = {"env_id": "rl_training/TinyDict-v0", "total_timesteps": 80, "algo_kwargs": updates}
    result = train_members(tmp_path, "dqn", **changes)
    alone = train(base(tmp_path, "dqn", seed=1, **changes), QUIET)
    assert_same_draws(member(result, 1), alone.run_dir)
    assert_close(member(result, 1), alone.run_dir)


@pytest.mark.parametrize("algo", ["sac", "td3", "simbav2", "crossq", "rainbow_dqn"])
def test_a_captured_stack_equals_an_eager_one(
    algo: str, tmp_path: Path, recorded_graphs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"total_timesteps": 60, "vary": {"algo_kwargs.learning_rate": (1e-3, 1e-2)}}
    eager = train_members(tmp_path, algo, **changes)
    real = steps.accelerate_rounds
    monkeypatch.setattr(stack, "accelerate_rounds", lambda step, mode, name: real(step, "cuda_graph", name))
    monkeypatch.setattr(steps, "_compile", lambda step, *_: steps._run_eagerly(step))  # a compiler takes a minute
    result = train_members(tmp_path / "captured", algo, **changes)
    for number in range(4):
        assert_same_draws(member(result, number), member(eager, number))
        assert_close(member(result, number), member(eager, number))


@pytest.mark.parametrize("algo", ["sac", "td3", "crossq", "simbav2", "discrete_sac", "rainbow_dqn", "dueling_dqn"])
def test_members_learn_as_single_runs_do_in_the_order_of_a_gpu(algo: str, tmp_path: Path, as_on_a_gpu: None) -> None:
    result = train_members(tmp_path, algo)
    alone = train(base(tmp_path, algo, seed=1), QUIET)
    assert_same_draws(member(result, 1), alone.run_dir)
    assert_close(member(result, 1), alone.run_dir)
    counters = [
        open_checkpoint(find_checkpoint(folder)).manifest["counters"] for folder in (member(result, 1), alone.run_dir)
    ]
    assert [each["learned"] for each in counters] == [False, False]
    assert counters[0]["gradient_step"] == counters[1]["gradient_step"]


def test_members_learn_from_new_goals_in_the_order_of_a_gpu(tmp_path: Path, as_on_a_gpu: None) -> None:
    result = train_members(tmp_path, "sac", **with_new_goals("sac"))
    alone = train(base(tmp_path, "sac", seed=1, **with_new_goals("sac")), QUIET)
    assert_same_draws(member(result, 1), alone.run_dir)
    assert_close(member(result, 1), alone.run_dir)


def test_one_call_evaluates_the_networks_of_all_members_and_they_learn_before_the_next_step(
    tmp_path: Path, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(owner: Any, method: str, name: str) -> None:
        real = getattr(owner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, method, call)

    noted(acting, "start_work", "evaluated")  # once while the device computes actions, once more after that
    noted(stack.Stack, "update", "update")
    noted(collector.Collector, "step", "step")
    train_members(tmp_path, "td3", total_timesteps=40, eval_interval=0)
    assert calls[-10:] == ["evaluated", "update", "evaluated", "step", "step"] * 2
