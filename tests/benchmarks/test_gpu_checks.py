"""The checks for a GPU: on the CPU they find no difference, and each finds one that is planted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu_cases import CASES
from benchmarks.gpu_checks import (
    check_captured,
    check_counters,
    check_envs,
    check_runs,
    check_syncs,
    continue_envs,
    different,
    syncs_in,
)

from benchmarks import gpu_checks
from rl_training.acceleration import steps
from rl_training.envs.tensor_env import TENSOR_ENVS

ENVS = {name: TENSOR_ENVS[name] for name in ("tensor/CartPole-v1", "tensor/MinAtar-Breakout-v0")}


@pytest.fixture(autouse=True)
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "TENSOR_ENVS", ENVS)
    monkeypatch.setattr(gpu_checks, "SETTINGS", {name: gpu_checks.SETTINGS[name] for name in ("ppo", "sac")})
    monkeypatch.setattr(gpu_checks, "CASES", {"dqn": CASES["dqn"]})


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "in_new_process", lambda function, *arguments: function(*arguments))


@pytest.fixture
def eager_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_compile", lambda step, *_: steps._run_eagerly(step))


def test_a_difference_is_one_bit_or_more_than_the_tolerance() -> None:
    one = {"words": torch.tensor([1, 2]), "numbers": torch.tensor([1.0, 10.0])}
    assert different(one, one) == []
    assert different(one | {"words": torch.tensor([1, 3])}, one, 0.5) == ["words differs"]
    assert different(one | {"numbers": torch.tensor([1.0, 10.0 + 1e-6])}, one) == ["numbers differs"]
    assert different(one | {"numbers": torch.tensor([1.0, 10.0 + 1e-6])}, one, 1e-6) == []
    assert different(one | {"numbers": torch.tensor([1.0, 10.1])}, one, 1e-6) == ["numbers differs"]


@pytest.mark.usefixtures("eager_compiler")
def test_the_numbers_of_counters_are_compared_in_each_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_counters("cpu", tmp_path) == {"eager": [], "compile": []}
    real = gpu_checks.draw

    def wrong(state: Any, batch: Any) -> Any:
        new, metrics = real(state, batch)
        return new, metrics | {"below": (metrics["below"] + 1) % 7}

    monkeypatch.setattr(steps, "_compile", lambda step, *_: steps._run_eagerly(wrong))
    assert check_counters("cpu", tmp_path) == {"eager": [], "compile": ["below differs"]}


@pytest.mark.usefixtures("recorded_graphs", "eager_compiler")
def test_captured_and_compiled_steps_are_compared_with_eager_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_captured("cpu", tmp_path) == {name: [] for name in ENVS}

    def rounded(step: Any, *_: Any) -> Any:
        def other(state: Any, batch: Any) -> Any:
            new, metrics = step(state, batch)
            return new, metrics | {"rewards": metrics["rewards"] * (1 + 1e-4)}

        return steps._run_eagerly(other)

    monkeypatch.setattr(steps, "_compile", rounded)
    assert check_captured("cpu", tmp_path)["tensor/CartPole-v1"] == ["compiled: rewards differs"]


@pytest.mark.usefixtures("recorded_graphs", "eager_compiler")
def test_a_captured_step_that_the_eager_one_replaces_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = steps._capture

    def corrupt(step: Any, state: Any, *arguments: Any, **choice: Any) -> Any:
        captured = real(step, state, *arguments, **choice)

        def wrong(state: Any, batch: Any) -> Any:
            metrics = captured(state, batch)
            state["env.x"].add_(1.0)
            return metrics

        return wrong

    monkeypatch.setattr(steps, "_capture", corrupt)
    monkeypatch.setattr(gpu_checks, "TENSOR_ENVS", {"tensor/CartPole-v1": ENVS["tensor/CartPole-v1"]})
    (warning,) = check_captured("cpu", tmp_path)["tensor/CartPole-v1"]
    assert "the compiled environment step differs from the eager one by more than rounding in env.x" in warning


def test_an_operation_that_waits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def waits() -> None:
        if modes[-1:] == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation\nmore")

    assert syncs_in(waits, "cuda") == ["called a synchronizing CUDA operation"]
    assert syncs_in(lambda: None, "cuda") == []
    assert modes == ["error", 0, "error", 0]


def test_steps_updates_and_iterations_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Callable[[], object]] = []
    real = gpu_checks.syncs_in

    def noted(call: Callable[[], object], device: str) -> list[str]:
        looked.append(call)
        return real(call, device)

    monkeypatch.setattr(gpu_checks, "syncs_in", noted)
    loops = [f"{algo}, {members} members" for algo in ("ppo", "sac") for members in (1, 2)]
    assert check_syncs("cpu", tmp_path) == {name: [] for name in (*ENVS, "dqn_1", *loops)}
    assert len(looked) == 7


@pytest.mark.usefixtures("in_this_process")
def test_saved_environments_are_continued_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_envs("cpu", tmp_path) == {name: [] for name in ENVS}

    def late(function: Callable[..., None], *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_checks, "STEPS", gpu_checks.STEPS - 1)
            function(*arguments)

    monkeypatch.setattr(gpu_checks, "in_new_process", late)
    found = check_envs("cpu", tmp_path)
    assert all("elapsed differs" in texts for texts in found.values())


@pytest.mark.process
def test_the_states_reach_a_new_process(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="continue_envs ended with exit code 1"):
        gpu_checks.in_new_process(continue_envs, "cpu", tmp_path / "missing")


@pytest.mark.usefixtures("in_this_process")
def test_runs_are_repeated_and_resumed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "RUNS", ("ppo",))
    assert check_runs("cpu", tmp_path / "same") == {f"ppo, {name}": [] for name in ("two", "stopped", "stacks")}
    seeds: Iterator[int] = iter(range(100))
    real = gpu_checks.config_of
    monkeypatch.setattr(gpu_checks, "config_of", lambda *args, **changes: real(*args, **changes, seed=10 * next(seeds)))
    found = check_runs("cpu", tmp_path / "other")
    assert found["ppo, two"]
    assert found["ppo, stopped"]
