"""A run that was stopped and resumed equals the unbroken one: every array, every value, every record.

`benchmarks/exactness.py` holds the comparison; `python -m benchmarks exactness` makes many more stops.
"""

import json
import logging
import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from benchmarks.exactness import (
    COMBINATIONS,
    COMPILED,
    DREAMER,
    IMAGE,
    PPO_COMBINATIONS,
    PPO_DICT,
    PPO_MASKS,
    STATE,
    Case,
    StopAt,
    differences,
    run_broken,
    run_unbroken,
    telling_stops,
    training_differences,
)
from benchmarks.kills import EXIT_INTERRUPTED, prepare_run, start_child, wait_until
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TimeLimit

from builders import make_config
from rl_training.acceleration.compiled_packages import _signals_held_back
from rl_training.core.stop_signals import STOP_SIGNALS
from rl_training.envs.tiny import Chain
from rl_training.errors import ConfigError
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.runtime.callbacks import Callback, Checkpointing
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, resume, train

pytestmark = pytest.mark.process


def shortened(case: Case, **settings: Any) -> Case:
    return replace(case, settings={**case.settings, "total_timesteps": 600, **settings})


SHORT = {case.name: shortened(case) for case in [*COMBINATIONS, *PPO_COMBINATIONS]}
ONE = SHORT["local_sync_1"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The unbroken runs by number of envs, in one process: workers must not make a difference either."""
    folder = tmp_path_factory.mktemp("unbroken")
    return {count: run_unbroken(SHORT[f"local_sync_{count}"], folder) for count in (1, 3)}


@pytest.fixture(scope="module")
def unbroken_ppo(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("unbroken_ppo")
    return {count: run_unbroken(SHORT[f"ppo_local_sync_{count}"], folder) for count in (1, 4)}


@pytest.mark.parametrize("name", [case.name for case in COMBINATIONS])
def test_resumed_equals_unbroken(name: str, unbroken: dict[int, Path], tmp_path: Path) -> None:
    # Before learning starts, right after an episode, within one, at a checkpoint's interval, before the last step.
    case = SHORT[name]
    whole = unbroken[case.settings["num_envs"]]
    stops = telling_stops(case, whole)
    assert len(stops) == 5
    assert differences(run_broken(case, tmp_path, stops), whole) == []


@pytest.mark.parametrize("name", [case.name for case in PPO_COMBINATIONS])
def test_resumed_ppo_equals_unbroken(name: str, unbroken_ppo: dict[int, Path], tmp_path: Path) -> None:
    # As above: within the first rollout, and others; and at a rollout's end and one step after another's.
    case = SHORT[name]
    whole = unbroken_ppo[case.settings["num_envs"]]
    stops, rollout = telling_stops(case, whole), 24 * case.settings["num_envs"]
    assert [stop % rollout for stop in stops if stop in (rollout // 2, 2 * rollout)] == [rollout // 2, 0]
    assert len(stops) == 7
    assert differences(run_broken(case, tmp_path, stops), whole) == []


@pytest.mark.parametrize("case", [PPO_MASKS, PPO_DICT], ids=lambda case: case.name)
def test_masks_dicts_and_their_statistics_come_back(case: Case, tmp_path: Path) -> None:
    whole = run_unbroken(case, tmp_path, execution_backend="local_sync")
    assert differences(run_broken(case, tmp_path, telling_stops(case, whole)), whole) == []


def test_comparison_sees_a_rollout_of_another_length(unbroken_ppo: dict[int, Path], tmp_path: Path) -> None:
    longer = replace(SHORT["ppo_local_sync_1"], algo_kwargs={"num_steps": 36})
    found = differences(run_unbroken(longer, tmp_path), unbroken_ppo[1])
    assert any(text.startswith("policy:") for text in found)
    assert any(text.startswith("memory:") for text in found)


def test_signal_saves_the_very_step_of_a_rollout(unbroken_ppo: dict[int, Path], tmp_path: Path) -> None:
    broken = run_broken(SHORT["ppo_local_sync_4"], tmp_path, [200], signal.SIGTERM)
    assert differences(broken, unbroken_ppo[4]) == []


def test_comparison_sees_one_round_of_updates_more(unbroken: dict[int, Path], tmp_path: Path) -> None:
    # The comparison must be able to fail: learning that starts 4 steps earlier makes one round of updates more.
    earlier = replace(ONE, algo_kwargs={"learning_starts": 146})
    found = differences(run_unbroken(earlier, tmp_path), unbroken[1])
    assert any(text.startswith("policy:") for text in found)
    assert any(text.startswith("metrics.jsonl") for text in found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_saves_the_very_step(number: int, unbroken: dict[int, Path], tmp_path: Path) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # `nohup` ignores SIGHUP, and then a run does, too
    try:
        assert differences(run_broken(ONE, tmp_path, [203], number), unbroken[1]) == []
    finally:
        signal.signal(number, before)


def test_sigterm_from_outside_ends_with_75_and_loses_nothing(unbroken: dict[int, Path], tmp_path: Path) -> None:
    run_dir = prepare_run(SHORT["local_async_3"], tmp_path)
    child = start_child(run_dir)
    metrics = run_dir / "metrics.jsonl"
    assert wait_until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 3, child)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)
    child.join()
    assert child.exitcode == EXIT_INTERRUPTED
    assert not (run_dir / "result.json").exists()
    resume(run_dir, SHORT["local_async_3"].options())
    assert differences(run_dir, unbroken[3]) == []


def test_signal_is_answered_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answers = []

    class Interrupt(Callback):
        def on_step(self, run: Run) -> None:
            if run.step == 20:
                capfd.readouterr()  # what was said before
                os.kill(os.getpid(), signal.SIGINT)
                answers.append(capfd.readouterr().err)

    train(ONE.config(tmp_path), ONE.options(Interrupt()), run_dir=tmp_path / "run")
    assert answers == ["\nsaving the run; press Ctrl-C again to stop at once\n"]


def test_signal_in_the_last_step_leaves_the_evaluation_to_the_resumed_run(
    unbroken: dict[int, Path], tmp_path: Path
) -> None:
    stopped = train(ONE.config(tmp_path), ONE.options(StopAt(600, signal.SIGTERM)), run_dir=tmp_path / "run")
    assert (stopped.step, stopped.interrupted, stopped.eval_episodes) == (600, True, [])
    result = resume(stopped.run_dir, ONE.options())
    assert (result.interrupted, result.stop_reason) == (False, "all steps taken")
    assert differences(result.run_dir, unbroken[1]) == []
    with pytest.raises(ConfigError, match=r"is finished: 600 of 600 steps"):
        resume(result.run_dir, ONE.options())


def test_signal_after_the_last_callback_of_a_step_is_saved(
    unbroken: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Checkpointing.on_step

    def decide_then_signal(self: Checkpointing, run: Run) -> None:
        decide(self, run)
        if run.step == 201:  # the checkpoint's turn is over; the loop looks next whether it should stop
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Checkpointing, "on_step", decide_then_signal)
    result = train(ONE.config(tmp_path), ONE.options(), run_dir=tmp_path / "run")
    assert (result.step, result.interrupted, result.checkpoint.name) == (201, True, "step_000000201")
    resume(tmp_path / "run", ONE.options())
    assert differences(tmp_path / "run", unbroken[1]) == []


class SignalWhileEvaluating(gym.Wrapper[Any, Any, Any, Any]):
    """Sends SIGINT at the first reset with the seed of an evaluation episode."""

    eval_seeds: tuple[int, ...] = ()
    sent = False

    def reset(self, **kwargs: Any) -> Any:
        if kwargs["seed"] in self.eval_seeds and not self.sent:
            type(self).sent = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().reset(**kwargs)


def test_signal_during_an_evaluation_leaves_it_to_the_resumed_run(
    unbroken: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [record["seed"] for record in read_json_lines(unbroken[1] / "eval.jsonl")]
    monkeypatch.setattr(SignalWhileEvaluating, "eval_seeds", tuple(seeds))
    monkeypatch.setattr(SignalWhileEvaluating, "sent", False)
    case = replace(ONE, env_factory=lambda: SignalWhileEvaluating(gym.make("CartPole-v1")))
    result = train(case.config(tmp_path), case.options(), run_dir=tmp_path / "run")
    assert (result.step, result.interrupted) == (230, True)
    assert read_json_lines(tmp_path / "run" / "eval.jsonl") == []
    resume(tmp_path / "run", case.options())
    assert differences(tmp_path / "run", unbroken[1]) == []


def test_ctrl_c_does_not_reach_the_compiler() -> None:
    # A terminal sends SIGINT to every process in it; a compiler that it ends would leave the step without its update.
    with _signals_held_back():
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)
    assert all(blocked >> (number - 1) & 1 for number in STOP_SIGNALS)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_evaluating_more_often_does_not_change_training(unbroken: dict[int, Path], tmp_path: Path) -> None:
    often = run_unbroken(ONE, tmp_path, eval_interval=23)
    assert len(read_json_lines(often / "eval.jsonl")) == 2 * 27
    assert training_differences(often, unbroken[1]) == []


def test_images_come_back(tmp_path: Path) -> None:
    case = replace(IMAGE, settings={**IMAGE.settings, "total_timesteps": 300})
    assert differences(run_broken(case, tmp_path, [74, 201]), run_unbroken(case, tmp_path)) == []


def test_sequences_and_which_of_them_are_fresh_come_back(tmp_path: Path) -> None:
    # Two envs with 50 rows each. Before learning starts, these rows are fresh, and the first are already overwritten.
    case = replace(DREAMER, algo_kwargs={"buffer_capacity": 100, "learning_starts": 150})
    assert differences(run_broken(case, tmp_path, [141, 203, 332]), run_unbroken(case, tmp_path)) == []


@pytest.mark.usefixtures("whole_replay_checks")
def test_env_with_a_state_of_its_own_comes_back(tmp_path: Path) -> None:
    case = shortened(STATE)
    broken = run_broken(case, tmp_path, [99, 310])
    assert differences(broken, run_unbroken(case, tmp_path)) == []
    starts = json.loads((broken / "metadata.json").read_text())["starts"]
    assert [start["resume"] for start in starts] == ["exact: the environment restores its own state"] * 3
    assert open_checkpoint(find_checkpoint(broken)).manifest["counters"]["replayable"] is False


class FourGaits(gym.ActionWrapper[Any, Any, Any]):
    """BipedalWalker with four actions, so that DQN takes it."""

    def __init__(self) -> None:
        super().__init__(gym.make("BipedalWalker-v3", max_episode_steps=120))
        self.action_space = Discrete(4)

    def action(self, action: np.int64) -> np.ndarray:
        return np.roll(np.array([1.0, -1.0, 0.5, -0.5], np.float32), int(action))


@pytest.mark.usefixtures("whole_replay_checks")
def test_env_that_cannot_be_replayed_resumes_at_an_episode_boundary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("Box2D")
    case = shortened(Case(name="walker", env_factory=FourGaits), env_id="BipedalWalker-v3", total_timesteps=500)
    stopped = train(case.config(tmp_path), case.options(StopAt(201)), run_dir=tmp_path / "run")
    assert "a resume of this run will continue at an episode boundary" in caplog.text
    opened = read_json_lines(stopped.run_dir / "episodes.jsonl")
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        resumed = resume(stopped.run_dir, case.options())
    assert resumed.step == 500
    assert "resumed at an episode boundary in envs 0" in caplog.text
    starts = json.loads((resumed.run_dir / "metadata.json").read_text())["starts"]
    assert starts[0]["resume"].startswith("at an episode boundary")
    assert starts[1]["resume"].startswith("resumed at an episode boundary in envs 0")
    assert open_checkpoint(resumed.checkpoint).manifest["counters"]["replayable"] is False
    episodes = read_json_lines(resumed.run_dir / "episodes.jsonl")
    assert [record["step"] for record in read_json_lines(resumed.run_dir / "metrics.jsonl")] == [
        *range(70, 500, 70),
        500,
    ]
    # The episode that was open at step 201 is given up: the next one carries the next number and starts there.
    given_up = len(opened)
    assert [episode["episode"] for episode in episodes] == [
        number for number in range(len(episodes) + 1) if number != given_up
    ]
    assert episodes[given_up]["step"] - episodes[given_up]["length"] == 201


@pytest.mark.slow
def test_compiled_update_resumes_exactly(tmp_path: Path) -> None:
    assert differences(run_broken(COMPILED, tmp_path, [75, 301, 520]), run_unbroken(COMPILED, tmp_path)) == []


class Ageing(Chain):
    """Repeats itself in its first episodes; later the return of an episode depends on its age."""

    def __init__(self) -> None:
        super().__init__()
        self._age = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._age += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + (self._age > 10), *rest


@pytest.fixture
def only_one_step_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.resumable.PAST_STEPS", 0)
    monkeypatch.setattr("rl_training.envs.resumable.TRIAL_STEPS", 1)


@pytest.mark.usefixtures("only_one_step_is_compared")
def test_a_later_episode_that_differs_corrects_the_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = RunOptions(env_factory=lambda: TimeLimit(Ageing(), 20), show_progress=False)
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        result = train(make_config(tmp_path, total_timesteps=400), options)
    (start,) = json.loads((result.run_dir / "metadata.json").read_text())["starts"]
    assert start["resume_at_start"].startswith("exact: episodes were repeated in ")
    assert start["resume"] == "at an episode boundary: episode 10 was different when it was played again"
    assert f"a resume of this run will continue {start['resume']}" in caplog.messages
    assert open_checkpoint(result.checkpoint).manifest["counters"]["replayable"] is False


@pytest.mark.usefixtures("only_one_step_is_compared")
def test_a_later_episode_that_repeats_leaves_the_record_alone(tmp_path: Path) -> None:
    options = RunOptions(env_factory=lambda: TimeLimit(Chain(), 20), show_progress=False)
    result = train(make_config(tmp_path, total_timesteps=400), options)
    (start,) = json.loads((result.run_dir / "metadata.json").read_text())["starts"]
    assert start["resume"].startswith("exact: episodes were repeated in ")
    assert len(read_json_lines(result.run_dir / "episodes.jsonl")) > 10
    assert open_checkpoint(result.checkpoint).manifest["counters"]["replayable"] is True


def test_a_signal_during_the_replay_check_saves_the_run_at_its_start(tmp_path: Path) -> None:
    class Signalled(Chain):
        built = 0

        def __init__(self) -> None:
            super().__init__()
            Signalled.built += 1
            self._number = Signalled.built

        def step(self, action: Any) -> Any:
            if self._number == 3 and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # a copy of the check
                self._number = 0
                os.kill(os.getpid(), signal.SIGTERM)
            return super().step(action)

    config = make_config(tmp_path)
    stopped = train(config, RunOptions(env_factory=Signalled, show_progress=False), run_dir=tmp_path / "run")
    assert (stopped.interrupted, stopped.step, stopped.stop_reason) == (True, 0, "signal SIGTERM")
    resumed = resume(stopped.run_dir, RunOptions(env_factory=Chain, show_progress=False))
    whole = train(config, RunOptions(env_factory=Chain, show_progress=False), run_dir=tmp_path / "whole")
    assert resumed.step == config.total_timesteps
    assert training_differences(resumed.run_dir, whole.run_dir) == []
