"""A sweep runs its combinations seed by seed, continues where it stopped, and ends with one table and one report."""

import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.experiment.run_dir import create_run_dir, read_run_config, write_result
from rl_training.launching.pool import Ended, LaunchOptions
from rl_training.results.runs import Runs
from rl_training.studies import sweep as sweeps
from rl_training.studies.sweep import SweepResult, check_environments, run_sweep
from rl_training.studies.sweep_file import read_sweep

TWO = """
configs: [dqn/cartpole]
set: {total_timesteps: 60, eval_episodes: 1}
grid: {algo_kwargs.gamma: [0.9, 0.99]}
seeds: 0-1
"""


class InTurn:
    """Ends runs without training, as `run_all` does with training; it stops after `stop_after` of them."""

    def __init__(self) -> None:
        self.stop_after = 100
        self.started: list[str] = []
        self.fails: set[str] = set()

    def __call__(self, folders: Sequence[Path], options: LaunchOptions, *, labels: Sequence[str]) -> list[Ended]:
        ended: list[Ended] = []
        for folder, label in zip(folders, labels, strict=True):
            if len(ended) >= self.stop_after:
                ended.append(Ended(folder, "interrupted"))
            elif label in self.fails:
                ended.append(Ended(folder, "failed", "ended with exit code 2"))
            else:
                self.started.append(label)
                finish(folder)
                ended.append(Ended(folder, "finished"))
        return ended


def finish(folder: Path) -> None:
    """Write what a run leaves; its start writes what `auto` stands for on this machine into config.yaml."""
    config = read_run_config(folder)
    create_run_dir(config.updated(device="cpu"), folder)
    score = 100.0 * config.algo_kwargs["gamma"] + config.seed
    write_result(folder, {"step": 60, "wall_s": time.monotonic(), "eval": [{"return": score, "length": 5}]})


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> InTurn:
    in_turn = InTurn()
    monkeypatch.setattr(sweeps, "run_all", in_turn)
    return in_turn


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Runs]]:
    """Collect the groups of each report, which is not written: its statistics take time."""
    found: list[Mapping[str, Runs]] = []
    monkeypatch.setattr(sweeps, "write_report", lambda runs, out, *, groups, **others: found.append(groups))
    return found


def run(folder: Path, text: str = TWO) -> SweepResult:
    file = folder / "lr.yaml"
    file.write_text(text)
    sweep = read_sweep(file)
    return run_sweep(sweep, LaunchOptions(root=sweep.folder))


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "lr" / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("reports")
def test_runs_go_seed_by_seed_over_all_combinations(tmp_path: Path, pool: InTurn) -> None:
    result = run(tmp_path)
    assert pool.started == [
        "dqn CartPole-v1 gamma=0.9 seed 0",
        "dqn CartPole-v1 gamma=0.99 seed 0",
        "dqn CartPole-v1 gamma=0.9 seed 1",
        "dqn CartPole-v1 gamma=0.99 seed 1",
    ]
    assert (result.failed, result.unfinished, result.not_in_file) == ({}, 0, [])
    lines = table(tmp_path)
    assert [(line["algo_kwargs.gamma"], line["finished"], line["seeds"]) for line in lines] == [
        ("0.9", "2", "2"),
        ("0.99", "2", "2"),
    ]
    assert [float(line["mean"]) for line in lines] == [90.5, 99.5]  # of the scores 90 and 91, 99 and 100
    assert (tmp_path / "lr" / "sweep.yaml").read_text() == TWO


def test_an_interrupted_sweep_ends_with_the_same_table(
    tmp_path: Path, pool: InTurn, reports: list[Mapping[str, Runs]]
) -> None:
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole")
    pool.started.clear()
    pool.stop_after = 1
    for left in (3, 2, 1, 0):
        result = run(tmp_path)
        assert result.unfinished == left
        assert list(reports[-1]) == ["dqn CartPole-v1 gamma=0.9", "dqn CartPole-v1 gamma=0.99"]
        assert sum(run.status == "finished" for runs in reports[-1].values() for run in runs) == 4 - left
    assert len(pool.started) == 4  # no run was started twice
    for name in ("table.csv", "table.md", "sweep.yaml"):
        assert (tmp_path / "lr" / name).read_bytes() == (tmp_path / "whole" / "lr" / name).read_bytes()


@pytest.mark.usefixtures("reports")
def test_new_values_run_and_removed_ones_are_listed(tmp_path: Path, pool: InTurn) -> None:
    run(tmp_path)
    pool.started.clear()
    result = run(tmp_path, TWO.replace("[0.9, 0.99]", "[0.99, 0.5]").replace("0-1", "0"))
    assert pool.started == ["dqn CartPole-v1 gamma=0.5 seed 0"]
    left_out = [path.relative_to(tmp_path / "lr").as_posix() for path in result.not_in_file]
    assert sorted(path.partition("__")[0] + path[-6:] for path in left_out) == [
        "dqn-CartPole-v1-gamma=0.9/seed0",
        "dqn-CartPole-v1-gamma=0.9/seed1",
        "dqn-CartPole-v1-gamma=0.99/seed1",
    ]
    markdown = (tmp_path / "lr" / "table.md").read_text()
    assert all(f"- {path}" in markdown for path in left_out)
    assert [line["algo_kwargs.gamma"] for line in table(tmp_path)] == ["0.99", "0.5"]


@pytest.mark.usefixtures("reports")
def test_workers_leave_runs_that_are_not_in_the_file(tmp_path: Path, pool: InTurn) -> None:
    pool.stop_after = 2
    run(tmp_path)
    run(tmp_path, TWO.replace("[0.9, 0.99]", "[0.99]").replace("0-1", "0"))
    left_out = {f"{path.parts[-3].partition('__')[0]}/{path.parts[-2]}" for path in tmp_path.rglob("stop")}
    assert left_out == {"dqn-CartPole-v1-gamma=0.9/seed1", "dqn-CartPole-v1-gamma=0.99/seed1"}


@pytest.mark.usefixtures("reports")
def test_a_combination_keeps_its_folder_when_the_grid_gets_a_setting(tmp_path: Path, pool: InTurn) -> None:
    run(tmp_path)
    pool.started.clear()
    run(tmp_path, TWO.replace("[0.9, 0.99]", "[0.9], num_envs: [1, 2]"))
    assert pool.started == [f"dqn CartPole-v1 gamma=0.9 num_envs=2 seed {seed}" for seed in (0, 1)]


@pytest.mark.usefixtures("reports")
def test_a_failed_run_does_not_stop_the_others_and_is_named(tmp_path: Path, pool: InTurn) -> None:
    pool.fails = {"dqn CartPole-v1 gamma=0.9 seed 0"}
    result = run(tmp_path)
    ((folder, message),) = result.failed.items()
    assert (folder.name, message, result.unfinished) == ("seed0", "ended with exit code 2", 0)
    assert [line["finished"] for line in table(tmp_path)] == ["1", "2"]


def test_a_report_that_would_be_too_large_does_not_end_the_sweep(
    tmp_path: Path, pool: InTurn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **others: object) -> None:
        raise ConfigError("the report would have 12.0 MB")

    monkeypatch.setattr(sweeps, "write_report", refuse)
    (stale := tmp_path / "lr" / "report.html").parent.mkdir(exist_ok=True)
    stale.write_text("of earlier runs")
    assert run(tmp_path).unfinished == 0
    assert not stale.exists()
    assert len(table(tmp_path)) == 2
    assert "no report was written: the report would have 12.0 MB" in caplog.text


def test_settings_with_markup_are_text_in_the_table_and_the_report(tmp_path: Path, pool: InTurn) -> None:
    hostile = "a|b<script>alert(1)</script>"
    run(tmp_path, TWO.replace("grid: {", f"grid: {{env_kwargs.note: ['{hostile}'], "))
    (line, *_) = [line for line in (tmp_path / "lr" / "table.md").read_text().splitlines() if "alert" in line]
    assert "a\\|b&lt;script&gt;alert(1)" in line
    assert table(tmp_path)[0]["env_kwargs.note"] == hostile
    assert "<td>a|b&lt;script&gt;alert(1)&lt;/script&gt;" in (tmp_path / "lr" / "report.html").read_text()


def test_environments_that_do_not_fit_are_refused_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "envs.yaml"
    file.write_text("configs: [dqn/cartpole]\ngrid: {env_id: [CartPole-v1, Pendulum-v1, CartPole-v7]}\n")
    with pytest.raises(ConfigError) as caught:
        check_environments(read_sweep(file))
    assert "2 of 3 combinations are refused, and nothing was run" in str(caught.value)
    assert "dqn needs a discrete action space, but Pendulum-v1 has Box" in str(caught.value)
    assert "CartPole-v7" in str(caught.value)
    assert not (tmp_path / "envs").exists()


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "lr.yaml").write_text(TWO)
    shown = CliRunner().invoke(app, ["sweep", str(tmp_path / "lr.yaml"), "--dry-run"])
    assert shown.exit_code == 0
    assert "dqn CartPole-v1 gamma=0.99  60 steps" in shown.stdout
    assert "4 runs: 2 combinations x 2 seeds, 240 steps in all" in shown.stdout
    assert not (tmp_path / "lr").exists()


def test_a_dry_run_with_slurm_shows_the_job_and_submits_nothing(tmp_path: Path) -> None:
    (tmp_path / "lr.yaml").write_text(TWO)
    command = ["sweep", str(tmp_path / "lr.yaml"), "--dry-run", "--launcher", "slurm", "--jobs", "3"]
    shown = CliRunner().invoke(app, [*command, "--slurm", "time=1:00:00"])
    assert shown.exit_code == 0, shown.output
    assert "--time=1:00:00 --array=0-2" in shown.stdout.splitlines()[-1]
    assert str(tmp_path / "lr") in (tmp_path / "lr" / "slurm" / "job.sh").read_text()
    assert not list((tmp_path / "lr").glob("*__*"))


@pytest.mark.usefixtures("reports")
def test_the_command_ends_with_75_while_runs_are_left(tmp_path: Path, pool: InTurn) -> None:
    (tmp_path / "lr.yaml").write_text(TWO)
    pool.stop_after = 2
    command = ["sweep", str(tmp_path / "lr.yaml"), "--quiet"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 75
    assert "2 runs left" in first.stdout
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 0, second.output
    assert "dqn CartPole-v1 gamma=0.99" in second.stdout
    pool.fails = {"dqn CartPole-v1 gamma=0.5 seed 0"}
    (tmp_path / "lr.yaml").write_text(TWO.replace("[0.9, 0.99]", "[0.5, 0.99]"))
    assert CliRunner().invoke(app, command).exit_code == 2
