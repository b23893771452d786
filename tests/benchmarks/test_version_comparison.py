"""Comparing two versions of the library: their speed, and the fingerprints of their runs."""

import argparse
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.command_line import UsageError
from benchmarks.peers import ROOT

from benchmarks import compile_times, fingerprints, versions


def test_speeds_are_summarised_by_their_medians() -> None:
    speeds = {"before": (100.0, 90.0, 400.0), "after": (110.0, 120.0, 10.0)}
    lines = [
        {"case": "dqn-cpu-eager", "version": version, "round": number, "steps_per_s": speed}
        for version, values in speeds.items()
        for number, speed in enumerate(values)
    ]
    summary = versions.summarize_versions(lines)
    assert summary == {"dqn-cpu-eager": {"before": 100.0, "after": 110.0, "ratio": pytest.approx(1.1)}}


def test_compiling_costs_what_a_cold_run_takes_longer_than_a_warm_one() -> None:
    times = [(20.0, 5.0), (30.0, 4.0), (16.0, 6.0)]  # differences 15, 26 and 10
    lines = [
        {
            "case": "dqn",
            "version": "after",
            "cold": {"wall_s": cold, "cpu_s": 2 * cold},
            "warm": {"wall_s": warm, "cpu_s": 2 * warm},
        }
        for cold, warm in times
    ]
    assert compile_times.summarize_compile_times(lines) == {"dqn, after": {"wall_s": 15.0, "cpu_s": 30.0}}


@pytest.mark.parametrize("command", [versions, compile_times])
def test_a_folder_without_the_library_is_refused(command: ModuleType, tmp_path: Path) -> None:
    args = argparse.Namespace(before=tmp_path, cases=None, rounds=1, out=tmp_path)
    with pytest.raises(UsageError, match=f"--before must be a folder that holds rl_training, got {tmp_path}"):
        command.run(args)


@pytest.mark.process
def test_one_run_gives_one_speed(tmp_path: Path) -> None:
    short = versions.CASES["dqn-cpu-eager"]._replace(steps=60, algo_kwargs={"learning_starts": 10})
    assert versions.steps_per_second(short, ROOT / "src", tmp_path / "cache") > 0.0


def test_a_fingerprint_repeats_itself_and_another_setting_changes_it(tmp_path: Path) -> None:
    small = {"learning_starts": 50, "batch_size": 16, "hidden_sizes": [16]}
    once, again = (fingerprints.fingerprint("dqn", small, "eager", tmp_path) for _ in range(2))
    other = fingerprints.fingerprint("dqn", {**small, "gamma": 0.9}, "eager", tmp_path)
    assert once == again
    assert {key for key in once if once[key] != other[key]} >= {"metrics", "training/algorithm|adam_mean"}


def test_an_algorithm_whose_defaults_do_not_fit_a_single_env_has_a_fingerprint(tmp_path: Path) -> None:
    # pqn's minibatches of 128 rows do not divide a rollout of 32 steps of one env.
    assert {"metrics", "episodes"} <= fingerprints.fingerprint("pqn", {}, "eager", tmp_path).keys()


def test_differing_runs_are_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    before = {"dqn eager": {"policy/a": "1", "metrics": "2"}, "sac eager": {"policy/a": "3"}}
    assert fingerprints.compare(before, before) == 0
    assert fingerprints.compare({"dqn eager": {"policy/a": "1", "metrics": "9"}}, before) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["dqn eager differs: metrics", "1 run compared, 1 differ"]
