"""The manager sets up, continues and recalls runs by spec, and summarises several seeds."""

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_config
from rl_training.core.seeding import parse_seeds
from rl_training.errors import ConfigError, EnvError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.launching import local, process
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.seed_runs import run_in, run_seeds
from rl_training.results import statistics as seed_statistics
from rl_training.results.statistics import interquartile_mean, summarize
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions
from stand_ins import EndedProcess

QUIET = RunOptions(show_progress=False)


@pytest.mark.parametrize(("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("7", [7]), ("0,2,5-6", [0, 2, 5, 6])])
def test_seeds_are_read_as_ranges_and_lists(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "4-0", "1,1", "0-2,2", "-3", "1.5", "0-99999999999999999999"])
def test_seeds_that_make_no_sense_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(ConfigError, match='seeds must be like "0-4" or "0,2,5"'):
        parse_seeds(text)


def test_interquartile_mean_drops_the_lowest_and_highest_quarter() -> None:
    # Of five values one falls at each end: (20 + 30 + 40) / 3 = 30; of four also one: (20 + 30) / 2 = 25.
    assert interquartile_mean([1000.0, 20.0, 30.0, 40.0, -7.0]) == pytest.approx(30.0)
    assert interquartile_mean([10.0, 20.0, 30.0, 400.0]) == pytest.approx(25.0)
    assert interquartile_mean([1.0, 2.0, 6.0]) == pytest.approx(3.0)


def test_summary_of_known_scores() -> None:
    summary = summarize([100.0, 200.0, 300.0, 400.0, 500.0])
    assert (summary.count, summary.mean, summary.iqm) == (5, 300.0, 300.0)
    assert summary.std == pytest.approx(np.sqrt(25_000))  # squared distances 40k + 10k + 0 + 10k + 40k, over n - 1 = 4
    assert 100.0 < summary.interval[0] < 300.0 < summary.interval[1] < 500.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_interval_lies_within_the_scores_and_is_repeatable(scores: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seed_statistics, "BOOTSTRAP_RESAMPLES", 200)
        summary, again = summarize(scores), summarize(scores)
    assert summary == again
    slack = 1e-6 * (1 + max(map(abs, scores)))
    low, high = summary.interval
    assert min(scores) - slack <= low <= high <= max(scores) + slack
    assert summary.mean == pytest.approx(statistics.fmean(scores))


def test_no_scores_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="no scores"):
        summarize([])


def test_each_seed_gets_its_own_folder_and_all_one_summary(tmp_path: Path) -> None:
    outcome = run_seeds(make_config(tmp_path), [0, 3], options=QUIET)
    assert not outcome.interrupted
    assert sorted(path.name for path in outcome.folder.iterdir()) == ["seed0", "seed3", "summary.json"]
    evaluations = {
        seed: [json.loads(line)["return"] for line in (outcome.folder / f"seed{seed}" / "eval.jsonl").open()]
        for seed in (0, 3)
    }
    assert outcome.results == {seed: pytest.approx(statistics.fmean(values)) for seed, values in evaluations.items()}
    written = json.loads((outcome.folder / "summary.json").read_text())
    assert written["summary"]["mean"] == pytest.approx(statistics.fmean(outcome.results.values()))
    assert written["summary"]["count"] == 2


LOCK = """
import sys
from pathlib import Path
from rl_training.experiment.run_dir import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def in_other_process(folder: Path) -> Iterator[None]:
    """Lock a run folder as a process does that trains in it."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LOCK, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield


class StopAt(Callback):
    """Ends the run of one seed early, as a signal would."""

    def __init__(self, seed: int, step: int) -> None:
        self.seed, self.step = seed, step
        self.started: list[int] = []

    def on_start(self, run: Run) -> None:
        self.started.append(run.config.seed)

    def on_step(self, run: Run) -> None:
        if run.config.seed == self.seed and run.step == self.step:
            run.stop_reason, run.interrupted = "signal", True


@pytest.mark.learning
def test_after_an_interruption_finished_seeds_are_recalled_and_the_open_one_continues(tmp_path: Path) -> None:
    config = make_config(tmp_path / "stopped")
    stop = StopAt(seed=1, step=30)
    first = run_seeds(config, [0, 1, 2], options=RunOptions(callbacks=[stop], show_progress=False))
    assert first.interrupted
    assert list(first.results) == [0]
    assert stop.started == [0, 1]

    goes_on = StopAt(seed=-1, step=0)
    second = run_seeds(config, [0, 1, 2], options=RunOptions(callbacks=[goes_on], show_progress=False))
    assert not second.interrupted
    assert goes_on.started == [1, 2]  # seed 0 is not run again
    unbroken = run_seeds(make_config(tmp_path / "unbroken"), [0, 1, 2], options=QUIET)
    assert second.results == unbroken.results


def test_another_setting_is_another_experiment_and_another_seed_is_not(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    same = run_seeds(config.updated(seed=9), [0], options=QUIET)
    other = run_seeds(make_config(tmp_path, algo_kwargs={"gamma": 0.5}), [0], options=QUIET)
    assert same.folder == run_seeds(config, [0], options=QUIET).folder
    assert other.folder != same.folder


@pytest.mark.process
def test_several_jobs_reach_what_one_reaches(tmp_path: Path) -> None:
    alone = run_seeds(make_config(tmp_path / "alone"), [0, 1], options=QUIET)
    together = run_seeds(make_config(tmp_path / "together"), [0, 1], jobs=2)
    assert together.results == alone.results
    assert (together.folder / "seed1" / "log.txt").read_text() != ""


def misbehaving(folder: Path) -> TrainConfig:
    return make_config(folder, env_id="rl_training/Misbehaving-v0", env_kwargs={"fault": "raise", "episode": 1})


@pytest.mark.process
def test_a_seed_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"seed 0 ended with exit code 2; see .*seed0/log\.txt: .*on purpose"):
        run_seeds(misbehaving(tmp_path), [0], launch=LaunchOptions(root=tmp_path, jobs=2, fail_fast=True))
    log = next(tmp_path.rglob("log.txt")).read_text()
    assert "misbehaving on purpose" in log
    assert "Traceback" not in log


class FailsOnce:
    """Stands for the processes of seeds: seed 1 fails at its first start, seed 2 always, the others finish."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def __call__(self, folder: Path, flags: Sequence[str]) -> EndedProcess:
        self.started.append(folder.name)
        fails = folder.name == "seed2" or (folder.name == "seed1" and self.started.count("seed1") == 1)
        return EndedProcess(folder, 2 if fails else 0)


def test_other_seeds_go_on_when_one_fails_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = FailsOnce()
    monkeypatch.setattr(process, "start_process", start)
    outcome = run_seeds(make_config(tmp_path), [0, 1, 2, 3], jobs=2, options=QUIET)
    assert sorted(start.started) == ["seed0", *["seed1"] * 2, *["seed2"] * 3, "seed3"]
    assert list(outcome.results) == [0, 1, 3]
    assert outcome.failed == {2: f"ended with exit code 2; see {outcome.folder}/seed2/log.txt"}
    assert not outcome.interrupted
    assert json.loads((outcome.folder / "seed2" / "failed.json").read_text())["count"] == 3
    assert not (outcome.folder / "seed1" / "failed.json").exists()


def test_the_same_command_tries_a_failed_seed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = FailsOnce()
    monkeypatch.setattr(process, "start_process", start)
    for _ in range(2):
        run_seeds(make_config(tmp_path), [2], launch=LaunchOptions(root=tmp_path, jobs=2, retries=1), options=QUIET)
    assert start.started == ["seed2"] * 4


def test_fail_fast_starts_no_more_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = FailsOnce()
    monkeypatch.setattr(process, "start_process", start)
    with pytest.raises(TrainingError, match="seed 2 ended with exit code 2"):
        run_seeds(
            make_config(tmp_path),
            [2, 3, 0, 1],
            launch=LaunchOptions(root=tmp_path, jobs=2, fail_fast=True),
            options=QUIET,
        )
    assert start.started == ["seed2", "seed3"]


@pytest.mark.learning
def test_seeds_in_turn_go_on_when_one_fails(tmp_path: Path) -> None:
    outcome = run_seeds(misbehaving(tmp_path), [0, 1], options=QUIET)
    assert list(outcome.failed) == [0, 1]
    assert "misbehaving on purpose" in outcome.failed[1]
    with pytest.raises(EnvError, match="misbehaving on purpose"):
        run_seeds(misbehaving(tmp_path), [0, 1], launch=LaunchOptions(root=tmp_path, fail_fast=True), options=QUIET)


@pytest.mark.process
def test_a_seed_in_use_is_left_out_and_the_others_are_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(tmp_path)
    folder = run_seeds(config, [0], options=QUIET).folder
    (folder / "seed1").mkdir()
    with in_other_process(folder / "seed1"):
        outcome = run_seeds(config, [1, 2], options=QUIET)
    assert list(outcome.results) == [2]
    assert outcome.interrupted
    assert "seed 1 is left out: " in caplog.text


@pytest.mark.process
def test_several_jobs_leave_out_a_seed_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "start_process", lambda folder, flags: EndedProcess(folder))
    monkeypatch.setattr(local, "IN_USE_SECONDS", 0.0)
    config = make_config(tmp_path)
    folder = run_seeds(config, [0], jobs=2).folder
    (folder / "seed1").mkdir()
    with in_other_process(folder / "seed1"):
        outcome = run_seeds(config, [0, 1, 2], jobs=2)
    assert list(outcome.results) == [0, 2]
    assert outcome.interrupted
    assert "seed 1 is left out: another process trains in it" in caplog.text
    assert run_seeds(config, [0, 1, 2], jobs=2).results.keys() == {0, 1, 2}  # free again


def test_several_jobs_refuse_what_a_process_cannot_be_handed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="network or callbacks; leave jobs at 1, or name a function"):
        run_seeds(make_config(tmp_path), [0], jobs=2, options=RunOptions(callbacks=[StopAt(0, 1)]))


def test_a_finished_run_is_recalled_without_training(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    score = run_in(tmp_path / "run", config, QUIET)
    watch = StopAt(seed=-1, step=0)
    assert run_in(tmp_path / "run", config, RunOptions(callbacks=[watch], show_progress=False)) == score
    assert watch.started == []
