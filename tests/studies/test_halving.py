"""Successive halving: who is dropped and when, stacked or not, and after kills."""

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.exactness import differences

from builders import make_config
from rl_training.errors import ConfigError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.population import PopulationDir
from rl_training.experiment.run_dir import read_run_config
from rl_training.launching import populations
from rl_training.launching.pool import Ended, LaunchOptions
from rl_training.results import statistics
from rl_training.runtime import stacked_members, stacked_runs, stacked_work
from rl_training.runtime.trainer import RunOptions, resume, train
from rl_training.studies import halving, tuning
from rl_training.studies.halving import losers, steps_of_search
from rl_training.studies.trial_journal import TrialJournal
from rl_training.studies.tune_plan import make_plan, read_plan, rung_steps, write_plan
from rl_training.studies.tuning import Outcome, run_study
from study_pools import TrainingPool


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    """Do not wait, run one fresh seed of one candidate, draw few resamples, and leave the report out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_POLL_SECONDS", 0.0)
        patch.setattr(tuning, "FRESH_SEEDS", 1)
        patch.setattr(tuning, "RESCORED", 1)
        patch.setattr(tuning, "write_study_report", lambda *_: None)
        patch.setattr(statistics, "BOOTSTRAP_RESAMPLES", 100)
        yield


def base(folder: Path, **changes: Any) -> TrainConfig:
    """BC on 60 random transitions: trials are compared after 5 and 15 of 50 updates."""
    values: dict[str, Any] = {
        "algo": "bc",
        "env_id": "rl_training/Identity-v0",
        "env_kwargs": {"actions": "box"},
        "total_timesteps": 50,
        "log_interval": 10,
        "eval_interval": 5,
        "eval_episodes": 1,
    }
    return make_config(folder, **{**values, **changes})


def study(folder: Path, *, trials: int = 5, seeds: int = 1, quiet: bool = True, **changes: Any) -> Outcome:
    """Begin a study, or continue it."""
    if not (folder / "space.yaml").is_file():
        write_plan(folder, make_plan(base(folder, **changes), ["learning_rate"], seeds=seeds, halving=True))
    launch = LaunchOptions(root=folder, quiet=quiet)
    return run_study(folder, read_plan(folder), launch, trials=trials, make_pool=lambda _: ForgivingPool())


class ForgivingPool(TrainingPool):
    def run(self, folder: Path) -> Ended:
        try:
            return super().run(folder)
        except TrainingError as error:
            return Ended(folder, "failed", str(error))


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "table.csv").open()))


def states_of(folder: Path, bracket: int = 0) -> list[dict[str, Any]]:
    file = folder / "brackets" / f"{bracket:03d}" / "population.json"
    return list(json.loads(file.read_text())["members"].values())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert study(folder).trials == 5
    return folder


def test_the_worse_half_is_dropped_and_of_equal_trials_the_later() -> None:
    assert losers({0: 1.0, 1: 3.0, 2: 2.0, 3: 4.0}) == [0, 2]
    assert losers({0: 1.0, 1: 1.0, 2: 1.0}) == [2]
    assert losers({7: 1.0}) == []


def test_rungs_are_evaluations(tmp_path: Path) -> None:
    assert rung_steps(base(tmp_path)) == [5, 15]
    assert rung_steps(base(tmp_path, total_timesteps=1_000, eval_interval=300)) == [300]
    plan = make_plan(base(tmp_path), ["learning_rate"], halving=True)
    assert steps_of_search(plan, 8) == 8 * 5 + 4 * 10 + 2 * 35
    for interval in (0, 50):
        with pytest.raises(ConfigError, match=f"set eval_interval below the 50 steps of a run, got {interval}|is 0"):
            make_plan(base(tmp_path, eval_interval=interval), ["learning_rate"], halving=True)
    with pytest.raises(ConfigError, match="--halving drops trials, but --no-prune runs each to its end"):
        make_plan(base(tmp_path), ["learning_rate"], halving=True, prune=False)


def test_dropped_members_say_why_and_the_others_equal_single_runs(unbroken: Path, tmp_path: Path) -> None:
    rows, states = rows_of(unbroken), states_of(unbroken)
    assert sorted(row["state"] for row in rows) == ["complete", "complete", "pruned", "pruned", "pruned"]
    for row, state in zip(rows, states, strict=True):
        step = int(row["last step"])
        assert state["state"] == ("dropped" if row["state"] == "pruned" else "done")
        assert state["step"] == (step if row["state"] == "pruned" else 50)
        if row["state"] == "pruned":
            assert f"at step {step}, is in the worse half of {5 if step == 5 else 3} trials" in state["reason"]
    assert sorted(int(row["last step"]) for row in rows if row["state"] == "pruned") == [5, 5, 15]
    done = next(number for number, state in enumerate(states) if state["state"] == "done")
    folder = unbroken / "brackets" / "000" / "members" / f"{done:03d}"
    config = read_run_config(folder)
    alone = train(config.updated(output_dir=tmp_path), RunOptions(show_progress=False))
    assert differences(folder, alone.run_dir) == []
    assert config.seed == 1_000


def test_the_progress_of_the_runs_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path, trials=2, quiet=False)
    shown = capsys.readouterr().err
    assert f"bc on rl_training/Identity-v0, seed 1000: {tmp_path / 'brackets' / '000' / 'members' / '001'}" in shown
    assert "gradient step 5/50 (10 %)" in shown


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, sizes = tmp_path_factory.mktemp("stacked"), []

    def counted(population: PopulationDir, folders: list[Path], *args: Any, **kwargs: Any) -> bool:
        sizes.append(len(folders))
        return stacked_runs.train_stack(population, folders, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halving, "way_of_trials", lambda config: "stacked")  # as on a GPU
        patch.setattr(populations, "train_stack", counted)
        study(folder)
    assert sizes == [5, 3, 2]
    return folder


def test_a_stack_makes_the_same_decisions(unbroken: Path, stacked: Path) -> None:
    for ours, theirs in zip(rows_of(stacked), rows_of(unbroken), strict=True):
        assert [ours[name] for name in ("state", "last step")] == [theirs[name] for name in ("state", "last step")]
        assert float(ours["value"] or 0) == pytest.approx(float(theirs["value"] or 0), abs=1e-3)
    names = ("state", "step")
    of_both = [[[state[name] for name in names] for state in states_of(folder)] for folder in (stacked, unbroken)]
    assert of_both[0] == of_both[1]


class Killed(Exception):  # noqa: N818 (no error of the library)
    pass


def assert_kill_loses_nothing(owner: Any, name: str, call: int, unbroken: Path, folder: Path) -> None:
    """Make the n-th call of a function raise, as a stand-in for a kill, and continue the study."""
    real, calls = getattr(owner, name), [0]

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise Killed
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            study(folder)
    study(folder)
    assert rows_of(folder) == rows_of(unbroken)
    assert states_of(folder) == states_of(unbroken)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (TrialJournal, "begin", 3),  # some trials have begun, and no bracket is planned
        (PopulationDir, "create_members", 1),
        (PopulationDir, "write_plan", 1),
        (populations, "resume", 3),  # two of five runs have reached the first rung
        (TrialJournal, "report", 2),  # the value of one trial is known
        (TrialJournal, "prune", 2),  # one of two losers is dropped
        (halving.Bracket, "drop", 1),  # it is pruned in the journal, but not marked
        (populations, "resume", 7),  # within the second rung
        (populations, "resume", 9),  # within the last part
        (TrialJournal, "complete", 2),
    ],
)
def test_a_kill_loses_nothing(owner: Any, name: str, call: int, unbroken: Path, tmp_path: Path) -> None:
    assert_kill_loses_nothing(owner, name, call, unbroken, tmp_path)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (stacked_members.MemberCheckpoints, "write", 3),  # at the first rung: two of five members are saved
        (PopulationDir, "write_states", 1),  # all are saved, but nothing says so
        (stacked_work.StackedUpdates, "advance", 2),
    ],
)
def test_a_killed_stack_loses_nothing(
    owner: Any, name: str, call: int, stacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halving, "way_of_trials", lambda config: "stacked")
    assert_kill_loses_nothing(owner, name, call, stacked, tmp_path)


@pytest.mark.process
def test_a_signal_ends_the_search_and_the_same_call_continues_it(unbroken: Path, tmp_path: Path) -> None:
    calls = [0]

    def signalled(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return resume(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(populations, "resume", signalled)
        assert study(tmp_path).verdict is None
    assert calls == [3]
    study(tmp_path)
    assert rows_of(tmp_path) == rows_of(unbroken)


def test_more_trials_are_another_bracket(unbroken: Path, tmp_path: Path) -> None:
    assert study(tmp_path, trials=3).trials == 3
    assert study(tmp_path, trials=5).trials == 5
    assert [len(states_of(tmp_path, bracket)) for bracket in (0, 1)] == [3, 2]
    assert [row["algo_kwargs.learning_rate"] for row in rows_of(tmp_path)] == [
        row["algo_kwargs.learning_rate"] for row in rows_of(unbroken)
    ]


def test_a_trial_fails_if_one_of_its_runs_diverges(tmp_path: Path) -> None:
    study(tmp_path, trials=3, seeds=2, algo_kwargs={"learning_rate": 1e30})
    rows = rows_of(tmp_path)
    assert rows[0]["state"] == "failed"
    assert "training has diverged" in rows[0]["message"]
    assert [row["state"] for row in rows[1:]].count("complete") == 1
    states = [state["state"] for state in states_of(tmp_path)]
    assert states[:2] == ["diverged", "diverged"]
    assert sorted(states[2:]) == ["done", "done", "dropped", "dropped"]


def test_a_trial_fails_if_one_of_its_runs_cannot_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path, options: RunOptions) -> Any:
        if folder.name == "001":
            raise ConfigError("these settings do not fit this environment")
        return resume(folder, options)

    monkeypatch.setattr(populations, "resume", refused)
    study(tmp_path, trials=3)
    assert [row["state"] for row in rows_of(tmp_path)].count("failed") == 1
    assert "these settings do not fit this environment" in rows_of(tmp_path)[1]["message"]
    assert states_of(tmp_path)[1]["state"] == "failed"
    assert "complete" in [row["state"] for row in rows_of(tmp_path)]
