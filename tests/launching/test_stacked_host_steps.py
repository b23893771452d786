"""Stacked members with environments on the host: each acts, steps, samples and learns as it would alone."""

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from benchmarks.exactness import differences
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

import rl_training
from builders import make_config
from rl_training.acceleration import acting, steps
from rl_training.core import memory_limits
from rl_training.data import replay_buffer
from rl_training.envs.resumable import ReplayCheck
from rl_training.envs.tiny import Chain, TinyImage
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, open_checkpoint, resumable_names
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.population import PopulationConfig
from rl_training.experiment.registry import registry
from rl_training.experiment.run_dir import read_run_config
from rl_training.launching.populations import PopulationResult, resume_population, train_population
from rl_training.learners import stack, stacked_acting
from rl_training.runtime import collector, loops, replaying, stacked_host_steps, stacked_runs
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, resume, train

QUIET = RunOptions(show_progress=False)
HOST = sorted(name for name, spec in registry().items() if spec.loop == "off_policy" and spec.stackable)
CONTINUOUS = {name for name in HOST if registry()[name].actions == {"box"}}
# Settings whose part in a stack is its own: delays, running statistics, schedules, colored noise, several updates.
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {"normalize_observations": True, "learning_rate_schedule": "linear", "n_step": 3},
    "td3": {"policy_delay": 3, "noise_color": 1.0},
    "redq": {"gradient_updates_per_step": 3, "policy_delay": 3, "dropout": 0.1},
    "tqc": {"prioritized": True, "policy_delay": 2},
    "dqn": {"target_update_interval": 7, "learning_rate_schedule": "linear"},
    # Rounding may decide which of two equal features is the largest, or which row has a priority: neither happens here.
    "bbf": {
        "learning_starts": 20,
        "reset_interval": 50,
        "encoder_width": 1,
        "n_step_start": 5,
        "anneal_updates": 40,
        "augmentation": "shift",
        "prioritized": False,
    },
    "dueling_dqn": {"act_with_target": True, "tau": 0.1, "target_update_interval": 1},
}


def base(folder: Path, algo: str = "sac", **changes: Any) -> TrainConfig:
    """60 steps of two environments each, with updates after the tenth."""
    env_id = "Pendulum-v1" if algo in CONTINUOUS else "rl_training/Catch-v0" if algo == "bbf" else "CartPole-v1"
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": env_id,
        "num_envs": 2,
        "total_timesteps": 120,
        "log_interval": 20,
        "eval_interval": 60,
        "checkpoint_interval": 40,
        "eval_episodes": 1,
        "max_episode_steps": 25,
        "device": "cpu",
        "acceleration": "eager",
        "tensorboard": False,
    }
    own = SETTINGS.get(algo, {}) | changes.pop("algo_kwargs", {})
    return make_config(folder, **{**values, **changes, "algo_kwargs": own})


def train_members(
    folder: Path, algo: str = "sac", seeds: Sequence[int] = (0, 1), *, options: RunOptions = QUIET, **changes: Any
) -> PopulationResult:
    vary = changes.pop("vary", {})
    config = PopulationConfig(base=base(folder, algo, **changes), seeds=tuple(seeds), vary=vary, run="stacked")
    return train_population(config, options)


def member(result: PopulationResult, number: int) -> Path:
    return result.folder / "members" / f"{number:03d}"


def saved(folder: Path, part: str) -> dict[str, Any]:
    return open_checkpoint(find_checkpoint(folder)).load(part)


def assert_close(ours: Path, theirs: Path, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(saved(ours, POLICY), saved(theirs, POLICY), rtol=tolerance, atol=tolerance)


def assert_same_draws(ours: Path, theirs: Path) -> None:
    """Compare where the generators of the algorithm and of the memory are left, and which episodes were played."""
    assert saved(ours, MEMORY)["generator"] == saved(theirs, MEMORY)["generator"]
    found, expected = (saved(folder, TRAINING) for folder in (ours, theirs))
    assert found["algorithm"]["generators"] == expected["algorithm"]["generators"]
    assert found["collector"]["seeds"] == expected["collector"]["seeds"]


@pytest.mark.parametrize("algo", HOST)
def test_members_learn_as_single_runs_do(algo: str, tmp_path: Path) -> None:
    result = train_members(tmp_path, algo, (0, 5))
    assert [state.state for state in result.states.values()] == ["done"] * 2
    for number, seed in enumerate((0, 5)):
        alone = train(base(tmp_path, algo, seed=seed), QUIET)
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


@pytest.fixture
def as_on_a_gpu(recorded_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the order of steps, the acting and its graphs be those of a GPU."""
    for module in (loops, stacked_host_steps):
        monkeypatch.setattr(module, "learns_meanwhile", lambda config: True)
    monkeypatch.setattr(stacked_acting, "evaluates_together", lambda device: True)
    real = acting.on_arrays
    monkeypatch.setattr(
        stacked_acting, "on_arrays", lambda function, device, mode: real(function, device, "cuda_graph")
    )


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


# --- Kills, resumes, and what becomes of a member ---------------------------------------------------------------------


class Killed(KeyboardInterrupt):
    """The only exception that training lets through as it is."""


@pytest.mark.parametrize("algo", ["sac", "simbav2", "td3", "dqn", "rainbow_dqn"])
def test_a_stack_that_is_killed_continues_as_if_it_never_was(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = train_members(tmp_path / "unbroken", algo)
    real = stacked_host_steps.StackedHostSteps.advance

    def dying(work: Any, step: int) -> Any:
        if step == 94:  # the last checkpoint is that of step 80
            raise Killed
        return real(work, step)

    with monkeypatch.context() as patch:
        patch.setattr(stacked_host_steps.StackedHostSteps, "advance", dying)
        with pytest.raises(Killed):
            train_members(tmp_path, algo)
    result = train_members(tmp_path, algo)
    for number in range(2):
        assert differences(member(result, number), member(unbroken, number)) == []


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


def test_a_member_that_diverges_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = train_members(tmp_path / "healthy", seeds=(0, 1, 2))
    real = stacked_host_steps.StackedHostSteps.advance

    def poisoned(work: Any, step: int) -> Any:
        if step == 50:
            work.state["critic.params"][1] = torch.nan
        return real(work, step)

    monkeypatch.setattr(stacked_host_steps.StackedHostSteps, "advance", poisoned)
    result = train_members(tmp_path, seeds=(0, 1, 2))
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    assert "smaller learning_rate" in result.states["001"].reason
    assert resumable_names(member(result, 1) / "checkpoints") == ["step_000000040"]
    for number in (0, 2):  # bit for bit: the others do not notice
        assert differences(member(result, number), member(healthy, number)) == []


def test_a_member_whose_actions_are_not_finite_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = train_members(tmp_path / "healthy", seeds=(0, 1, 2))
    real = stacked_host_steps.StackedHostSteps.advance

    def poisoned(work: Any, step: int) -> Any:
        if step == 50:
            work.state["actor.params"][1] = torch.nan
        return real(work, step)

    monkeypatch.setattr(stacked_host_steps.StackedHostSteps, "advance", poisoned)
    result = train_members(tmp_path, seeds=(0, 1, 2))
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    assert "the policy produced a NaN action for env 0 at env step 50" in result.states["001"].reason
    for number in (0, 2):
        assert differences(member(result, number), member(healthy, number)) == []


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
