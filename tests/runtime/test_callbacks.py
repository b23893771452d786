"""Callbacks: what they may log, predict and remember, and the ready-made ones that end a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from builders import make_config
from rl_training import DQN, Callback, EarlyStopping, EvalEpisode, Run, RunOptions, StopOnPlateau, TrainResult
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.run import RECENT_EPISODES
from rl_training.runtime.trainer import resume, train

STATES = np.eye(5, dtype=np.float32)


def train_with(*callbacks: Callback, folder: Path, **settings: Any) -> TrainResult:
    return train(make_config(folder, **settings), RunOptions(callbacks=callbacks, show_progress=False))


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            run.stop_reason, run.interrupted = "for the test", True


def train_in_parts(stop: int, *callbacks: Callback, after: Sequence[Callback], folder: Path, **settings: Any) -> Path:
    """Stop a run at a step, as a signal does, and resume it with other callbacks."""
    stopped = train_with(StopAt(stop), *callbacks, folder=folder, **settings)
    assert stopped.step == stop
    return resume(stopped.run_dir, RunOptions(callbacks=after, show_progress=False)).run_dir


# --- Logging ----------------------------------------------------------------------------------------------------------


class LogSteps(Callback):
    """Logs the step at every seventh one, and a number after each evaluation."""

    def on_step(self, run: Run) -> None:
        if run.step % 7 == 0:
            run.log("my/step", run.step)

    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        run.log("my/episodes", torch.tensor(len(episodes)))  # type: ignore[arg-type]  # any number is taken


def logged(run_dir: Path) -> list[tuple[int, dict[str, float]]]:
    records = read_json_lines(run_dir / "metrics.jsonl")
    found = [(r["step"], {name: x for name, x in r["metrics"].items() if "/" in name}) for r in records]
    return [(step, values) for step, values in found if values]


EXPECTED = [
    (10, {"my/step": 7.0}),
    (20, {"my/step": 14.0}),
    (25, {"my/step": 21.0, "my/episodes": 2.0}),
    (30, {"my/step": 28.0}),
    (40, {"my/step": 35.0}),
    (50, {"my/step": 49.0}),  # 42 was replaced
    (50, {"my/episodes": 2.0}),
    (60, {"my/step": 56.0}),
    (60, {"my/episodes": 2.0}),
]


def test_logged_values_are_in_the_next_record_and_those_of_an_evaluation_at_its_step(tmp_path: Path) -> None:
    result = train_with(LogSteps(), folder=tmp_path, log_interval=10, eval_interval=25)
    assert logged(result.run_dir) == EXPECTED


@pytest.mark.parametrize("stop", [25, 29])
def test_a_resumed_run_logs_the_same(stop: int, tmp_path: Path) -> None:
    settings = {"log_interval": 10, "eval_interval": 25}
    assert logged(train_in_parts(stop, LogSteps(), after=[LogSteps()], folder=tmp_path, **settings)) == EXPECTED


def test_logged_values_are_in_tensorboard_under_their_names(tmp_path: Path) -> None:
    result = train_with(LogSteps(), folder=tmp_path, log_interval=10, tensorboard=True)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(result.run_dir / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("my/step")][:2] == [(10, 7.0), (20, 14.0)]
    assert [event.step for event in events.Scalars("my/episodes")] == [60]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", 1.0, "run.log: the name must have a group, such as 'my/accuracy', got 'loss'"),
        ("my/a b", 1.0, "the name must have a group, such as 'my/accuracy', got 'my/a b'"),
        ("train/loss", 1.0, "run.log: 'train/loss' is in a group of the library; use another, such as 'my/accuracy'"),
        ("my/x", float("nan"), r"run.log\('my/x'\): the value must be a finite number, got nan"),
        ("my/x", float("inf"), r"run.log\('my/x'\): the value must be a finite number, got inf"),
    ],
)
def test_other_names_and_values_are_refused(name: str, value: float, message: str) -> None:
    run = SimpleNamespace(logged={})
    with pytest.raises(ValueError, match=message):
        Run.log(cast(Run, run), name, value)
    assert run.logged == {}


# --- Acting -----------------------------------------------------------------------------------------------------------


def test_callbacks_can_ask_the_policy_which_changes_nothing(tmp_path: Path) -> None:
    answers: list[tuple[list[int], list[int]]] = []

    class Ask(Callback):
        def on_step(self, run: Run) -> None:
            answers.append((run.predict(STATES).tolist(), agent.predict(STATES).tolist()))

    plain = DQN(make_config(tmp_path / "plain"), show_progress=False)
    agent = DQN(make_config(tmp_path / "asked"), callbacks=[Ask()], show_progress=False)
    states = [a.learn().algorithm.policy_state_dict() for a in (plain, agent)]
    assert len(answers) == 60
    assert all(ours == theirs for ours, theirs in answers)
    assert answers[-1][0] == agent.predict(STATES).tolist()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# --- State ------------------------------------------------------------------------------------------------------------


class Counter(Callback):
    def __init__(self) -> None:
        self.count = 0

    def on_step(self, run: Run) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


def test_the_state_of_callbacks_comes_back_by_class_and_order(tmp_path: Path) -> None:
    class Slow(Counter):
        def on_step(self, run: Run) -> None:
            self.count += run.step % 10 == 0

    after = [Slow(), Counter(), Counter()]
    train_in_parts(30, Counter(), Slow(), folder=tmp_path, after=after)
    assert [callback.count for callback in after] == [6, 60, 30]


def test_a_callback_that_is_missing_after_a_resume_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_in_parts(30, Counter(), folder=tmp_path, after=[])
    assert "the run had a callback Counter, whose state is saved, but continues without it" in caplog.text


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"best": torch.zeros(2)}, "the state of Bad cannot be saved: Object of type Tensor is not JSON serializable"),
        ({"best": float("nan")}, "the state of Bad cannot be saved: Out of range float values"),
        ({"pair": (1, 2)}, r"the state of Bad would be loaded as {'pair': \[1, 2\]}, but is {'pair': \(1, 2\)}"),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(
    state: dict[str, Any], message: str, tmp_path: Path
) -> None:
    class Bad(Counter):
        def state_dict(self) -> dict[str, Any]:
            return state

    bad = Bad()
    bad.__class__.__qualname__ = "Bad"
    with pytest.raises(CheckpointError, match=message):
        train_with(bad, folder=tmp_path)
    assert bad.count == 0


# --- Ready-made -------------------------------------------------------------------------------------------------------


def evaluated(callback: EarlyStopping, *means: float) -> list[str]:
    """Return the reasons to stop after evaluations with these mean returns, until one of them stops."""
    run: Any = SimpleNamespace(stop_reason="")
    reasons = []
    for mean in means:
        callback.on_evaluation(run, [EvalEpisode(0, 0, mean - 1.0, 1), EvalEpisode(1, 1, mean + 1.0, 1)])
        reasons.append(run.stop_reason)
    return reasons


def test_early_stopping_waits_for_a_new_best() -> None:
    assert evaluated(EarlyStopping(2), 5.0, 4.0, 6.0, 6.0, 5.9) == [
        *[""] * 4,
        "2 evaluations without a return above 6.0",
    ]
    assert evaluated(EarlyStopping(2, min_delta=1.0), 5.0, 5.5, 6.0)[-1].endswith("without a return above 6.0")
    assert evaluated(EarlyStopping(2, min_delta=1.0), 5.0, 5.5, 6.1) == ["", "", ""]


def played(callback: StopOnPlateau, *returns: float) -> list[str]:
    """Return the reasons to stop after training episodes of ten steps with these returns."""
    run: Any = SimpleNamespace(stop_reason="", step=0, num_episodes=0, recent=[])
    reasons = []
    for ret in returns:
        run.recent.append(SimpleNamespace(ret=ret))
        run.step, run.num_episodes = run.step + 10, run.num_episodes + 1
        callback.on_step(run)
        reasons.append(run.stop_reason)
    return reasons


def test_stop_on_plateau_waits_for_steps_without_a_new_best_mean() -> None:
    # Means of two: -, 2, 3 (best, at step 30), 3, 2.5, 2 (30 steps later).
    assert played(StopOnPlateau(30, episodes=2), 1, 3, 3, 3, 2, 2) == [
        *[""] * 5,
        "30 steps without a mean return above 3.0",
    ]
    assert played(StopOnPlateau(30, episodes=2), 1, 3, 3, 3, 4, 2) == [""] * 6
    assert played(StopOnPlateau(10, episodes=100), 1, 1, 1, 1) == [""] * 4


class CountEvaluations(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        assert [episode.episode for episode in episodes] == [0, 1]
        self.steps.append(run.step)


SPARSE = {"env_kwargs": {"num_states": 60, "max_episode_steps": 5}}  # too far to arrive: every return is 0


def test_early_stopping_ends_a_run_and_a_resumed_one_at_the_same_step(tmp_path: Path) -> None:
    counted = CountEvaluations()
    result = train_with(counted, EarlyStopping(3), folder=tmp_path / "whole", eval_interval=10, **SPARSE)
    assert (result.step, result.stop_reason) == (40, "3 evaluations without a return above 0.0")
    assert counted.steps == [10, 20, 30, 40]
    for stop in (20, 25):
        folder = tmp_path / str(stop)
        after = [EarlyStopping(3)]
        resumed = train_in_parts(stop, EarlyStopping(3), after=after, folder=folder, eval_interval=10, **SPARSE)
        assert read_json_lines(resumed / "eval.jsonl") == read_json_lines(result.run_dir / "eval.jsonl")


def test_stop_on_plateau_ends_a_run_and_a_resumed_one_at_the_same_step(tmp_path: Path) -> None:
    # Episodes of 5 steps: the first mean of two is at step 10, and 30 steps later is step 40.
    result = train_with(StopOnPlateau(30, episodes=2), folder=tmp_path / "whole", **SPARSE)
    assert (result.step, result.stop_reason) == (40, "30 steps without a mean return above 0.0")
    after = [StopOnPlateau(30, episodes=2)]
    resumed = train_in_parts(27, StopOnPlateau(30, episodes=2), after=after, folder=tmp_path / "parts", **SPARSE)
    assert read_json_lines(resumed / "episodes.jsonl") == read_json_lines(result.run_dir / "episodes.jsonl")


def test_a_callback_of_another_run_starts_again(tmp_path: Path) -> None:
    early = EarlyStopping(2)
    for name in ("first", "second"):
        assert train_with(early, folder=tmp_path / name, eval_interval=10, **SPARSE).step == 30


@pytest.mark.parametrize("callbacks", [EarlyStopping(2), [EarlyStopping], [print]])
def test_anything_but_a_list_of_callbacks_is_refused(callbacks: Any) -> None:
    with pytest.raises(TypeError, match=r"callbacks must be a list of Callback objects, got .*(EarlyStopping|print)"):
        DQN.for_env("CartPole-v1", 100, callbacks=callbacks)


def test_a_method_that_training_does_not_call_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Misspelled(Callback):
        on_purpose = True

        def on_stpe(self, run: Run) -> None: ...

        def on_end(self, run: Run) -> None: ...

    assert caplog.messages == ["Misspelled.on_stpe: training calls no method of this name; did you mean 'on_step'?"]


def test_values_and_runs_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="patience must be >= 1, got 0"):
        EarlyStopping(0)
    with pytest.raises(ConfigError, match="min_delta must be >= 0, got -1"):
        StopOnPlateau(10, min_delta=-1)
    with pytest.raises(ConfigError, match=f"episodes must be <= {RECENT_EPISODES}, got 101"):
        StopOnPlateau(10, episodes=101)
    with pytest.raises(ConfigError, match="EarlyStopping compares evaluations: the run needs an eval_interval above 0"):
        train_with(EarlyStopping(2), folder=tmp_path)
    offline = {"algo": "bc", "env_id": "Pendulum-v1", "algo_kwargs": {"dataset_kind": "random"}}
    with pytest.raises(ConfigError, match="StopOnPlateau reads training episodes, which a run on a dataset does not"):
        train_with(StopOnPlateau(10), folder=tmp_path, **offline)
