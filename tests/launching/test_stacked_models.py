"""Stacked members of MOPO and MBPO: each fits and rolls out its own models, one step updates the policies of all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.exactness import differences

import rl_training
from builders import make_config
from rl_training.algorithms.mbpo import MBPO
from rl_training.core import memory_limits
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.population import PopulationConfig, PopulationDir
from rl_training.experiment.run_dir import read_run_config
from rl_training.launching.populations import PopulationResult, resume_population, train_population
from rl_training.runtime import model_training, stacked_members
from rl_training.runtime.stacked_host_steps import StackedHostSteps
from rl_training.runtime.stacked_work import StackedUpdates
from rl_training.runtime.trainer import resume, train
from stacks import QUIET, Killed, kill_at, member, poison, saved
from state_comparison import assert_identical


def base(folder: Path, **changes: Any) -> TrainConfig:
    """60 updates on 60 random transitions; rollouts of two steps every 25 updates, checkpoints every 20."""
    own = {
        "model_max_epochs": 60,
        "model_learning_rate": 0.03,
        "model_patience": 1,
        "model_train_frequency": 0,
        "rollout_refresh_interval": 25,
        "rollout_horizon": 2,
        **changes.pop("algo_kwargs", {}),
    }
    values: dict[str, Any] = {
        "algo": "mopo",
        "env_id": "Pendulum-v1",
        "max_episode_steps": 20,
        "eval_episodes": 1,
        "log_interval": 20,
        "eval_interval": 40,
        "checkpoint_interval": 20,
    }
    return make_config(folder, **{**values, **changes, "algo_kwargs": own})


def online(**changes: Any) -> dict[str, Any]:
    """Return the changes for MBPO: 40 steps of two environments, fits and rollouts from the 21st on."""
    own = {
        "learning_starts": 21,
        "model_train_frequency": 24,
        "rollout_refresh_interval": 16,
        "gradient_updates_per_step": 2,
        **changes.pop("algo_kwargs", {}),
    }
    return {"algo": "mbpo", "num_envs": 2, "total_timesteps": 80, **changes, "algo_kwargs": own}


def train_members(folder: Path, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> PopulationResult:
    vary = changes.pop("vary", {})
    return train_population(
        PopulationConfig(base=base(folder, **changes), seeds=tuple(seeds), vary=vary, run="stacked"), QUIET
    )


def alone(result: PopulationResult, number: int, folder: Path) -> Path:
    """Train a member by itself; return the folder of its run."""
    return train(read_run_config(member(result, number)).updated(output_dir=folder), QUIET).run_dir


def assert_close(ours: Path, theirs: Path) -> None:
    torch.testing.assert_close(saved(ours, POLICY), saved(theirs, POLICY), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"model_train_frequency": 33, "policy_delay": 3, "synthetic_batch_ratio": 1}])
def test_stacked_members_learn_as_single_runs_do(settings: dict[str, Any], tmp_path: Path) -> None:
    result = train_members(tmp_path / "stacked", algo_kwargs=settings)
    assert [state.state for state in result.states.values()] == ["done"] * 3
    epochs = set()
    for number in range(3):
        ours, theirs = member(result, number), alone(result, number, tmp_path / "alone")
        assert_close(ours, theirs)
        found, expected = (saved(folder, TRAINING)["algorithm"] for folder in (ours, theirs))
        # A fit is that of the single run, bit for bit: where it ends is, too.
        assert_identical(found["ensemble"], expected["ensemble"])
        assert found["policy"]["generators"] == expected["policy"]["generators"]
        memories = [saved(folder, MEMORY) for folder in (ours, theirs)]
        for part in ("real", "model"):
            assert memories[0][part]["generator"] == memories[1][part]["generator"]
        assert memories[0]["model"]["rows"].shape == memories[1]["model"]["rows"].shape
        logs = [read_json_lines(folder / "metrics.jsonl") for folder in (ours, theirs)]
        assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]] == [20, 40, 60]
        for name, value in logs[1][-1]["metrics"].items():
            assert logs[0][-1]["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
        epochs.add(logs[0][0]["metrics"]["model_epochs"])
    assert len(epochs - {60}) > 1  # early stopping is each member's own


def test_fits_and_rollouts_come_on_time_between_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    fit, rollout = MBPO.update_model, MBPO.rollout

    def noted_fit(self: MBPO, *args: Any) -> Any:
        seen.append(("fit", self.policy.num_updates))
        return fit(self, *args)

    def noted_rollout(self: MBPO, *args: Any) -> Any:
        seen.append(("rollout", self.policy.num_updates))
        return rollout(self, *args)

    monkeypatch.setattr(MBPO, "update_model", noted_fit)
    monkeypatch.setattr(MBPO, "rollout", noted_rollout)
    intervals = {"log_interval": 60, "eval_interval": 0, "checkpoint_interval": 0}
    train_members(tmp_path, (0,), **intervals, algo_kwargs={"model_train_frequency": 33})
    assert seen == [("fit", 0), ("rollout", 0), ("rollout", 25), ("fit", 33), ("rollout", 50)]


def test_members_differ_in_the_penalty_and_share_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[np.ndarray] = []
    real = stacked_members.opened_member

    def noted(prepared: Any, *args: Any) -> Any:
        rows.append(prepared.memory.real.storage.memory)
        return real(prepared, *args)

    monkeypatch.setattr("rl_training.runtime.stacked_runs.opened_member", noted)
    vary = {"algo_kwargs.penalty_coef": (0.0, 2.0), "algo_kwargs.policy_learning_rate": (1e-3, 1e-2)}
    result = train_members(tmp_path / "stacked", (3,), vary=vary)
    assert len(PopulationDir(result.folder).stacks() or ()) == 1
    assert len(rows) == 4
    assert all(each is rows[0] or np.shares_memory(each, rows[0]) for each in rows)
    for number in range(4):
        assert_close(member(result, number), alone(result, number, tmp_path / "alone"))


def assert_like_alone(result: PopulationResult, number: int, folder: Path) -> None:
    """Compare a member of MBPO with its single run: models see data that rounding has changed."""
    ours, theirs = member(result, number), alone(result, number, folder)
    memories = [saved(each, MEMORY) for each in (ours, theirs)]
    for part in ("real", "model"):
        assert memories[0][part]["generator"] == memories[1][part]["generator"]
        assert memories[0][part]["rows"].shape == memories[1][part]["rows"].shape
    found, expected = (saved(each, TRAINING) for each in (ours, theirs))
    assert found["algorithm"]["policy"]["generators"] == expected["algorithm"]["policy"]["generators"]
    assert found["algorithm"]["ensemble"]["generator"] == expected["algorithm"]["ensemble"]["generator"]
    assert found["algorithm"]["ensemble"]["num_fits"] == expected["algorithm"]["ensemble"]["num_fits"] == 4
    assert found["collector"]["seeds"] == expected["collector"]["seeds"]
    torch.testing.assert_close(saved(ours, POLICY), saved(theirs, POLICY), rtol=1e-3, atol=1e-3)
    logs = [read_json_lines(each / "metrics.jsonl") for each in (ours, theirs)]
    steps = [[(line["step"], line["gradient_step"]) for line in lines] for lines in logs]
    assert steps[0] == steps[1]


def test_stacked_members_of_mbpo_learn_as_single_runs_do(tmp_path: Path) -> None:
    rates = {"algo_kwargs.policy_learning_rate": (1e-4, 1e-3)}
    result = train_members(tmp_path / "stacked", (0, 5), vary=rates, **online())
    assert len(PopulationDir(result.folder).stacks() or ()) == 1
    for number in range(4):
        assert_like_alone(result, number, tmp_path / "alone")


def test_stacked_members_of_mbpo_learn_as_single_runs_do_in_the_order_of_a_gpu(
    tmp_path: Path, as_on_a_gpu: None
) -> None:
    result = train_members(tmp_path / "stacked", (0, 5), **online())
    for number in range(2):
        assert_like_alone(result, number, tmp_path / "alone")


def test_a_stack_of_mbpo_that_is_killed_continues_as_if_it_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = train_members(tmp_path / "unbroken", **online())
    with monkeypatch.context() as patch:
        kill_at(patch, StackedHostSteps, 54)  # its last checkpoint is that of step 40
        with pytest.raises(Killed):
            train_members(tmp_path / "killed", **online())
    result = train_members(tmp_path / "killed", **online())
    for number in range(3):
        assert differences(member(result, number), member(unbroken, number)) == []


@pytest.mark.parametrize("step", [20, 30, 50])  # at its first checkpoint, and after the second and third rollouts
def test_a_stack_that_is_killed_continues_as_if_it_never_was(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = train_members(tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        kill_at(patch, StackedUpdates, step)
        with pytest.raises(Killed):
            train_members(tmp_path / "killed")
    result = train_members(tmp_path / "killed")
    for number in range(3):
        assert differences(member(result, number), member(unbroken, number)) == []


def test_a_signal_during_the_fits_ends_the_population_which_then_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = train_members(tmp_path / "unbroken")
    fits: list[int] = []
    real = model_training._train

    def interrupted(run: Any, **what: bool) -> None:
        fits.append(run.config.seed)
        real(run, **what)
        for one in runs:
            one.interrupted, one.stop_reason = True, "signal SIGTERM"

    runs: list[Any] = []
    opened = stacked_members.described_member

    def noted(run: Any, *args: Any) -> Any:
        runs.append(run)
        return opened(run, *args)

    with monkeypatch.context() as patch:
        patch.setattr(model_training, "_train", interrupted)
        patch.setattr("rl_training.runtime.stacked_runs.described_member", noted)
        result = train_members(tmp_path / "broken")
    assert result.interrupted
    assert fits == [0]  # the others are not fitted in vain
    result = resume_population(result.folder, QUIET)
    for number in range(3):
        assert differences(member(result, number), member(unbroken, number)) == []


# --- A member that diverges ------------------------------------------------------------------------------------------


def test_a_member_whose_policy_diverges_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = train_members(tmp_path / "healthy")
    poison(monkeypatch, StackedUpdates, "critic.params", {40: [1]})
    result = train_members(tmp_path / "poisoned")
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    assert "its numbers stopped being finite before step 50" in result.states["001"].reason
    for number in (0, 2):  # bit for bit: the others do not notice
        assert differences(member(result, number), member(healthy, number)) == []


@pytest.mark.parametrize("fit", [0, 1])
@pytest.mark.parametrize("changes", [{"algo_kwargs": {"model_train_frequency": 33}}, online()], ids=["mopo", "mbpo"])
def test_a_member_whose_models_diverge_ends_alone(
    changes: dict[str, Any], fit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = train_members(tmp_path / "healthy", **changes)
    real = model_training._train

    def diverging(run: Any, *, fits: bool, rolls_out: bool) -> None:
        ensemble = run.algorithm.ensemble
        if run.config.seed == 1 and fits and ensemble.num_fits == fit:
            ensemble.state["params"].fill_(torch.nan)
        real(run, fits=fits, rolls_out=rolls_out)

    monkeypatch.setattr(model_training, "_train", diverging)
    result = train_members(tmp_path / "poisoned", **changes)
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    assert "a smaller model_learning_rate usually helps" in result.states["001"].reason
    for number in (0, 2):
        assert differences(member(result, number), member(healthy, number)) == []


# --- A member is an ordinary run -------------------------------------------------------------------------------------


def test_a_member_evaluates_loads_and_resumes_alone(tmp_path: Path) -> None:
    result = train_members(tmp_path, (0, 1))
    folder = member(result, 0)
    agent = rl_training.MOPO.load(folder, show_progress=False)
    assert agent.predict(np.zeros((2, 3), np.float32)).shape == (2, 1)
    episodes = [episode["return"] for episode in json.loads((folder / "result.json").read_text())["eval"]]
    assert [episode.ret for episode in agent.evaluate(episodes=len(episodes))] == pytest.approx(episodes)
    longer = resume(folder, QUIET, total_timesteps=80)
    assert (longer.step, longer.run_dir) == (80, folder)


# --- Memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, online()], ids=["mopo", "mbpo"])
def test_memories_of_rollouts_that_do_not_fit_are_refused_with_the_figures(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = memory_limits.check_memory
    monkeypatch.setattr(stacked_members, "check_memory", lambda *args: real(*args, available=20_000))
    message = (
        r"a stack of 3 members with memories of \d+ rollout transitions each needs 0.\d MiB, but only 0.0 MiB of "
        "memory are available; lower algo_kwargs.synthetic_buffer_capacity or the number of members"
    )
    with pytest.raises(ConfigError, match=message):
        train_members(tmp_path, **changes)


def test_the_replay_buffers_of_mbpo_are_added_to_its_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    monkeypatch.setattr(stacked_members, "check_memory", lambda size, *_: needed.append(size))
    monkeypatch.setattr(stacked_members, "check_buffers", lambda hparams, size, *_: needed.append(size))
    result = train_members(tmp_path, **online())
    rows = saved(member(result, 0), MEMORY)["real"]["rows"]
    rollouts, together = needed
    assert together == rollouts + 3 * 200 * (rows.nbytes // len(rows))


def test_the_estimate_counts_the_rollouts_and_models_of_each_member_and_the_dataset_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []
    stacks: list[tuple[int, int, int]] = []
    members: list[MBPO] = []
    monkeypatch.setattr(stacked_members, "check_memory", lambda size, *_: needed.append(size))
    monkeypatch.setattr(stacked_members, "check_stack", lambda *args: stacks.append(args[:3]))
    built = MBPO.__init__

    def noted(self: MBPO, *args: Any) -> None:
        members.append(self)
        built(self, *args)

    monkeypatch.setattr(MBPO, "__init__", noted)
    result = train_members(tmp_path)
    rows = saved(member(result, 0), MEMORY)["model"]["rows"]
    states = [value for part in (members[0].policy, members[0].ensemble) for value in part.state.values()]
    ((number, each, shared),) = stacks
    assert (number, shared) == (3, 0)  # the dataset stays on the host
    assert each >= 4 * sum(value.nbytes for value in states)
    assert needed == [3 * (rows.nbytes // len(rows) * 200 + each)]
