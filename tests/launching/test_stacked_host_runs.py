"""What becomes of stacked members with environments on the host: kills, resumes, ends, checks and refusals."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.exactness import differences
from gymnasium.wrappers import TimeLimit

import rl_training
from host_stacks import assert_same_draws, base, train_members
from rl_training.core import memory_limits
from rl_training.data import replay_buffer
from rl_training.envs.resumable import ReplayCheck
from rl_training.envs.tiny import Chain
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import resumable_names
from rl_training.experiment.population import PopulationDir
from rl_training.experiment.registry import registry
from rl_training.launching.populations import resume_population
from rl_training.learners import stack
from rl_training.runtime import replaying, stacked_runs
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.stacked_host_steps import StackedHostSteps
from rl_training.runtime.trainer import RunOptions, resume, train
from stacks import QUIET, Killed, kill_at, member, poison

# --- Kills, resumes, and what becomes of a member ---------------------------------------------------------------------


def assert_kill_loses_nothing(folder: Path, algo: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    unbroken = train_members(folder / "unbroken", algo, **changes)
    with monkeypatch.context() as patch:
        kill_at(patch, StackedHostSteps, 94)
        with pytest.raises(Killed):
            train_members(folder, algo, **changes)
    result = train_members(folder, algo, **changes)
    for number in range(2):
        assert differences(member(result, number), member(unbroken, number)) == []


@pytest.mark.parametrize("algo", ["sac", "simbav2", "td3", "dqn", "rainbow_dqn"])
def test_a_stack_that_is_killed_continues_as_if_it_never_was(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_kill_loses_nothing(tmp_path, algo, monkeypatch)  # from step 80, its last checkpoint


@pytest.mark.parametrize("algo", ["sac", "rainbow_dqn"])
def test_a_stack_that_is_killed_continues_in_the_order_of_a_gpu(
    algo: str, tmp_path: Path, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_kill_loses_nothing(tmp_path, algo, monkeypatch)


def test_a_stack_that_was_saved_by_time_between_two_logs_continues_as_if_it_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_runs, "MAX_SHARE_OF_SAVES", 1e9)  # after every step
    saves: list[int] = []
    real = PopulationDir.write_states

    def noted(population: Any, changes: Any) -> None:
        saves.extend(state.step for state in changes.values())
        real(population, changes)

    monkeypatch.setattr(PopulationDir, "write_states", noted)
    by_time: dict[str, Any] = {"checkpoint_interval": 0, "checkpoint_minutes": 1e-9, "log_interval": 60}
    assert_kill_loses_nothing(tmp_path, "dqn", monkeypatch, **by_time)
    assert 94 in saves


@pytest.mark.parametrize("algo", ["td3", "dqn"])
def test_a_stack_that_a_signal_interrupts_between_two_logs_continues_as_if_it_never_was(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = train_members(tmp_path / "unbroken", algo)
    real = stacked_runs.StackedTraining._advance

    def interrupted(training: Any, step: int) -> int:
        end = real(training, step)
        for one in training._members if step == 72 else ():  # after the step, as a signal may come
            one.run.interrupted, one.run.stop_reason = True, "signal SIGTERM"
        return end

    with monkeypatch.context() as patch:
        patch.setattr(stacked_runs.StackedTraining, "_advance", interrupted)
        result = train_members(tmp_path, algo)
    assert [(state.state, state.step) for state in result.states.values()] == [("running", 74)] * 2
    result = resume_population(result.folder, QUIET)
    for number in range(2):
        assert differences(member(result, number), member(unbroken, number)) == []


DIVERGED = "its numbers stopped being finite before step 60"


@pytest.mark.parametrize(
    ("algo", "entry", "reason"),
    [
        ("sac", "critic.params", DIVERGED),
        ("sac", "actor.params", "the policy produced a NaN action for env 0 at env step 50"),
        ("prioritized_dqn", "params", "8 of 8 TD errors of a batch are negative or not finite (such as nan)"),
    ],
)
def test_a_member_that_diverges_ends_alone(
    algo: str, entry: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = train_members(tmp_path / "healthy", algo, (0, 1, 2))
    poison(monkeypatch, StackedHostSteps, entry, {50: [1]})
    result = train_members(tmp_path, algo, (0, 1, 2))
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    assert reason in result.states["001"].reason
    assert "a smaller learning_rate or max_grad_norm usually helps" in result.states["001"].reason
    assert resumable_names(member(result, 1) / "checkpoints") == ["step_000000040"]
    for number in (0, 2):  # bit for bit: the others do not notice
        assert differences(member(result, number), member(healthy, number)) == []


@pytest.mark.parametrize("members", [{50: [0, 1], 70: [2]}, {50: [0, 1, 2]}])
def test_several_members_may_diverge_in_one_step_and_the_last_one_ends_the_stack(
    members: dict[int, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, StackedHostSteps, "params", members)
    result = train_members(tmp_path, "prioritized_dqn", (0, 1, 2))
    assert [(state.state, state.step) for state in result.states.values()] == [("diverged", 40)] * 3
    assert not result.interrupted


class StopAt(Callback):
    """Stops the run of one seed at a step."""

    def on_step(self, run: Run) -> None:
        if run.config.seed == 1 and run.step >= 40:
            run.stop_reason = "enough"


def test_a_callback_ends_one_member_and_the_others_go_on(tmp_path: Path) -> None:
    options = RunOptions(show_progress=False, callbacks=[StopAt()])
    result = train_members(tmp_path, options=options)
    assert [(state.state, state.step) for state in result.states.values()] == [("done", 120), ("done", 40)]
    alone = train(base(tmp_path, seed=0), QUIET)
    assert_same_draws(member(result, 0), alone.run_dir)


def test_a_member_evaluates_loads_and_resumes_alone(tmp_path: Path) -> None:
    result = train_members(tmp_path)
    folder = member(result, 0)
    agent = rl_training.SAC.load(folder, show_progress=False)
    assert agent.predict(np.zeros((2, 3), np.float32)).shape == (2, 1)
    episodes = [episode["return"] for episode in json.loads((folder / "result.json").read_text())["eval"]]
    assert [episode.ret for episode in agent.evaluate(episodes=len(episodes))] == pytest.approx(episodes)
    longer = resume(folder, QUIET, total_timesteps=160)
    assert (longer.step, longer.run_dir) == (160, folder)
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["starts"][0]["population"] == "member 0 of 2, stacked"
    assert metadata["starts"][0]["resume"].startswith("exact: episodes were repeated")


def test_members_with_environments_on_the_host_need_no_tensor_environments() -> None:
    assert replace(registry()["fqf"], device_loop=False).stackable


# --- The check of the environments -----------------------------------------------------------------------------------


def test_environments_are_checked_once_for_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checks: list[int] = []

    def check(factory: Any, seed: int, **kwargs: Any) -> ReplayCheck:
        checks.append(seed)
        return ReplayCheck(repeats=False, trials=2, unlimited=True)

    monkeypatch.setattr(replaying, "check_replay", check)
    result = train_members(tmp_path, "dqn", total_timesteps=4, eval_interval=0)
    assert len(checks) == 1
    for number in range(2):
        (start,) = json.loads((member(result, number) / "metadata.json").read_text())["starts"]
        assert start["resume"] == (
            "at an episode boundary: seed and actions did not repeat an episode of this environment (trial 2)"
        )
    for warning in ("has no time limit", "a resume of this run will continue at an episode boundary"):
        assert sum(warning in record.message for record in caplog.records) == 1


class OddSecondEpisode(Chain):
    """The rewards of its second episode are larger."""

    episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + (self.episode == 2), *rest


def test_all_episodes_that_were_chosen_between_two_logs_are_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "check_replay", lambda *_, **__: ReplayCheck(True, 1, unlimited=False))
    options = RunOptions(show_progress=False, env_factory=lambda: TimeLimit(OddSecondEpisode(), 4))
    changes: dict[str, Any] = {"env_id": "odd", "max_episode_steps": None, "checkpoint_interval": 120}
    result = train_members(tmp_path, "dqn", options=options, **changes, log_interval=120, eval_interval=0)
    for number in range(2):  # each of them played the chosen episodes 1 and 10 before its only log
        (start,) = json.loads((member(result, number) / "metadata.json").read_text())["starts"]
        assert start["resume"] == "at an episode boundary: episode 1 was different when it was played again"


@pytest.mark.process
def test_a_signal_during_the_check_ends_the_population_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(factory: Any, seed: int, *, should_stop: Callable[[], bool]) -> ReplayCheck:
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
        return ReplayCheck(repeats=True, trials=1, unlimited=False)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "check_replay", check)
        outside = signal.signal(signal.SIGTERM, lambda *_: None)  # a signal that is not handled would end the tests
        try:
            result = train_members(tmp_path, "dqn", total_timesteps=4)
        finally:
            signal.signal(signal.SIGTERM, outside)
    assert result.interrupted
    result = resume_population(result.folder, QUIET)
    assert [(state.state, state.step) for state in result.states.values()] == [("done", 4)] * 2


# --- What is refused -------------------------------------------------------------------------------------------------


def test_replay_buffers_that_do_not_fit_are_refused_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = memory_limits.check_memory
    monkeypatch.setattr(replay_buffer, "check_memory", lambda *args: real(*args, available=20_000))
    message = (
        r"a stack of 3 members with replay buffers of 200 transitions each needs 0.1 MiB, but only 0.0 MiB of memory "
        "are available; lower algo_kwargs.buffer_capacity or the number of members, or keep the buffers in a file: "
        "algo_kwargs.memory: mmap"
    )
    with pytest.raises(ConfigError, match=message):
        train_members(tmp_path, seeds=(0, 1, 2))


@pytest.mark.parametrize(("memory", "stacks"), [("ram", 1), ("mmap", 0)])
def test_buffers_in_the_memory_of_a_cpu_are_added_to_its_stack(
    memory: str, stacks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: dict[str, int] = {}
    monkeypatch.setattr(replay_buffer, "check_memory", lambda size, what, setting: needed.update({what: size}))
    monkeypatch.setattr(replay_buffer, "check_disk", lambda size, folder, what, setting: needed.update({what: size}))
    monkeypatch.setattr(stack, "check_memory", lambda size, *_, available: needed.update(stack=size))
    train_members(tmp_path, "dqn", (0, 1, 2), total_timesteps=4, eval_interval=0, algo_kwargs={"memory": memory})
    buffer = needed["a replay buffer of 200 transitions"]
    together = needed["a stack of 3 members with replay buffers of 200 transitions each"]
    assert needed["stack"] > 0
    assert together == 3 * buffer + stacks * needed["stack"]
