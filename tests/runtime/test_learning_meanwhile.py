"""On a GPU the device learns while the host steps the envs: what is learned when, and that a resume stays exact.

These runs are on the CPU, told to learn as on a GPU.
"""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from builders import make_config
from rl_training.errors import EnvError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime import loops
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, resume, train
from stand_ins import StopAt
from state_comparison import assert_same_run

STEPS = 60


class Watch(Callback):
    """Notes the order of what happens, and the updates made after every step."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.updates: list[int] = []

    def on_start(self, run: Run) -> None:
        def noted(name: str, function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                self.order.append(name)
                return function(*args, **kwargs)

            return call

        algorithm: Any = run.algorithm
        collector: Any = run.collector
        algorithm.act = noted("act", algorithm.act)
        algorithm.update = noted("update", algorithm.update)
        collector.envs.step = noted("env", collector.envs.step)

    def on_step(self, run: Run) -> None:
        self.updates.append(run.gradient_step)


@pytest.fixture(autouse=True)
def _learns_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "learns_meanwhile", lambda config: True)


def config(folder: Path, **changes: Any) -> TrainConfig:
    algo_kwargs = {"learning_starts": 8, "train_frequency": 1, "gradient_steps": 1, "batch_size": 4}
    algo_kwargs |= changes.pop("algo_kwargs", {})
    return make_config(folder, total_timesteps=STEPS, algo_kwargs=algo_kwargs, **changes)


def options(*callbacks: Callback) -> RunOptions:
    return RunOptions(show_progress=False, callbacks=list(callbacks))


def test_updates_are_made_between_the_next_actions_and_their_step(tmp_path: Path) -> None:
    watch = Watch()
    train(config(tmp_path), options(watch))
    first = watch.order.index("update")
    assert watch.order[first - 1 : first + 5] == ["act", "update", "env", "act", "update", "env"]
    # Learning starts after step 8: the update of step 9 is made within step 10. That of the last step is left out.
    assert watch.updates[:12] == [0] * 9 + [1, 2, 3]
    assert watch.updates[-1] == STEPS - 8 - 1


@pytest.mark.parametrize("stop", [5, 9, 10, 31, STEPS - 1])
def test_a_stopped_run_continues_as_if_never_stopped(stop: int, tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole"), options())
    stopped = train(config(tmp_path / "stopped"), options(StopAt(stop)))
    assert_same_run(resume(stopped.run_dir, options()), whole)


class Fragile(gym.Wrapper[Any, Any, Any, Any]):
    """Raises while it is broken."""

    broken = False

    def step(self, action: Any) -> Any:
        if Fragile.broken:
            raise OSError("the simulator lost its licence")
        return super().step(action)


class BreakAt(Callback):
    """Break the environment after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        Fragile.broken = run.step == self.step


def fragile() -> gym.Env[Any, Any]:
    return Fragile(gym.make("CartPole-v1"))


@pytest.mark.parametrize("step", [3, 25])  # before learning starts, and after
def test_a_step_that_failed_after_its_updates_is_taken_again_without_them(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "broken", False)
    own = RunOptions(show_progress=False, env_factory=fragile)
    whole = train(config(tmp_path / "whole"), own)
    with pytest.raises(EnvError, match="lost its licence"):
        train(
            config(tmp_path / "broken"), RunOptions(show_progress=False, env_factory=fragile, callbacks=[BreakAt(step)])
        )
    monkeypatch.setattr(Fragile, "broken", False)
    (broken,) = (tmp_path / "broken").iterdir()
    assert_same_run(resume(broken, own), whole)


def test_runs_on_the_cpu_learn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    watch = Watch()
    train(config(tmp_path), options(watch))
    assert watch.updates[:11] == [0] * 8 + [1, 2, 3]
    assert watch.updates[-1] == STEPS - 8


def test_what_was_left_to_learn_is_learned_when_the_run_continues_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = train(config(tmp_path), options(StopAt(20)))
    monkeypatch.undo()
    watch = Watch()
    resume(stopped.run_dir, options(watch))
    assert watch.order[:3] == ["act", "update", "env"]  # that of step 20
    assert watch.updates[-1] == STEPS - 8
    metrics = read_json_lines(stopped.run_dir / "metrics.jsonl")
    assert np.all(np.diff([record["gradient_step"] for record in metrics]) >= 0)
