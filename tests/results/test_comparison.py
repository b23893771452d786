"""`compare` and `plot`: tables, figures and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.results.comparison import compare, curve_figure, read_anchors
from rl_training.results.runs import find_runs
from run_folders import write_run


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def two_groups(tmp_path: Path) -> Path:
    for seed in range(4):
        write_run(tmp_path / f"a{seed}", seed=seed, returns=(1.0, 5.0 + seed), algo="dqn")
        write_run(tmp_path / f"b{seed}", seed=seed, returns=(2.0, 20.0 + seed), algo="ppo")
    return tmp_path


def test_the_table_shows_scores_and_who_is_better(two_groups: Path) -> None:
    first, second = compare(find_runs(two_groups).groups())
    assert (first.label, second.label) == ("dqn", "ppo")
    assert first.summary is not None
    assert first.summary.mean == 6.5
    assert (first.improvement, second.improvement) == (None, (1.0, (1.0, 1.0)))
    result = run("compare", two_groups)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    expected = "dqn 4 200 6.500 ± 1.291 6.500 5.000 to 8.000 - 0:00:04 4 seeds: rough"
    assert " ".join(lines[1].split()) == expected
    assert "1.00 (1.00 to 1.00)" in lines[2]
    assert "  algo: dqn, ppo" in lines


def test_the_comparison_as_json(two_groups: Path) -> None:
    first, second = json.loads(run("compare", two_groups, "--json").stdout)
    assert first["mean"] == 6.5
    assert [each["seed"] for each in first["runs"]] == [0, 1, 2, 3]
    assert second["improvement"] == {"probability": 1.0, "interval": [1.0, 1.0]}


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", returns=(3.0,), finished=False)
    assert "seed 0 interrupted at 100" in run("compare", tmp_path).stdout


def test_runs_that_have_not_started_are_named_together(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path / str(seed), seed=seed, returns=(3.0,) if seed == 0 else (), finished=seed == 0)
    output = run("compare", tmp_path).stdout
    assert "not started: seeds 1, 2" in output
    assert "interrupted" not in output


def test_returns_of_different_environments_need_a_common_scale(tmp_path: Path) -> None:
    write_run(tmp_path / "a", returns=(100.0,), env_id="CartPole-v1")
    write_run(tmp_path / "b", returns=(-200.0,), env_id="Pendulum-v1")
    result = run("compare", tmp_path, "--by", "algo")
    assert result.exit_code == 2
    assert "cannot compare returns of CartPole-v1 and Pendulum-v1: give --normalize FILE" in result.stderr
    anchors = tmp_path / "anchors.yaml"
    anchors.write_text("CartPole-v1: [0, 500]\nPendulum-v1: [-1200, -200]\n")
    (row,) = compare(find_runs(tmp_path).groups(["algo"]), read_anchors(anchors))
    assert row.summary is not None
    assert row.summary.mean == pytest.approx(0.6)
    separate = run("compare", tmp_path, "--by", "algo,env_id").stdout
    assert "CartPole-v1:" in separate
    assert "Pendulum-v1:" in separate


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("curve", ": give the runs of one environment\n"),
        ("interval", ": give --normalize FILE, or the runs of one environment\n"),
        ("profile", ": give --normalize FILE, or the runs of one environment\n"),
    ],
)
def test_a_figure_of_different_environments_names_what_helps_it(tmp_path: Path, kind: str, remedy: str) -> None:
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        write_run(tmp_path / env_id, env_id=env_id)
    result = run("plot", tmp_path, "--by", "env_id", "--kind", kind, "--out", tmp_path / "figure.svg")
    assert (result.exit_code, result.stderr.endswith(remedy)) == (2, True)


def test_normalized_curves_are_refused(tmp_path: Path) -> None:
    result = run("plot", write_run(tmp_path / "a"), "--normalize", "anchors.yaml", "--out", tmp_path / "figure.svg")
    assert (result.exit_code, "--normalize is for final scores" in result.stderr) == (2, True)


@pytest.mark.parametrize("text", ["CartPole-v1: 500", "CartPole-v1: [1, 1]", "[1, 2]", "CartPole-v1: [a, b]"])
def test_anchors_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "anchors.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"must hold lines such as `CartPole-v1: \[20, 500\]`"):
        read_anchors(tmp_path / "anchors.yaml")


def test_an_environment_without_an_anchor_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (tmp_path / "anchors.yaml").write_text("Pendulum-v1: [-1200, -200]")
    result = run("compare", tmp_path / "a", "--normalize", tmp_path / "anchors.yaml")
    assert (result.exit_code, "--normalize has no line for CartPole-v1" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--y", "train/loss", "--x", "gradient_step", "--per-seed"],
        ["--kind", "interval"],
        ["--kind", "profile"],
        ["--kind", "improvement"],
        ["--smooth", "2", "--x", "wall_s"],
    ],
)
def test_every_kind_of_plot_is_written(two_groups: Path, options: list[str]) -> None:
    out = two_groups / "figure.svg"
    result = run("plot", two_groups, "--out", out, *options)
    assert (result.exit_code, result.stdout.strip()) == (0, str(out))
    assert out.read_text().startswith("<svg ")


def test_the_caption_says_what_is_drawn(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, returns=(1.0, 2.0)[: 2 - (seed == 2)], finished=seed != 2)
    groups = find_runs(tmp_path).groups()
    caption = curve_figure(groups, smooth=2).caption
    assert "band: its pointwise 95 % bootstrap interval" in caption
    assert "Dotted: a seed has ended and keeps its last value." in caption
    assert "Smoothed over 2 points." in caption
    assert "mean over seeds." in curve_figure({"a": find_runs(tmp_path / "0")}).caption


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--y", "eval/retrun"], "did you mean 'eval/return'?"),
        (["--kind", "improvement"], "there is nothing to draw"),
        (["--by", "learning_rate"], "no run has a setting 'learning_rate'"),
        (["--smooth", "0"], "--smooth"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_refused_in_one_line(tmp_path: Path, options: list[Any], message: str) -> None:
    write_run(tmp_path / "a")
    result = run("plot", tmp_path, "--out", tmp_path / "a.svg", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "a.svg").exists()


def test_the_folder_of_a_figure_is_made(tmp_path: Path) -> None:
    result = run("plot", write_run(tmp_path / "a"), "--out", tmp_path / "new" / "figure.svg")
    assert result.exit_code == 0
    assert (tmp_path / "new" / "figure.svg").is_file()


def test_settings_that_only_one_algorithm_has_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "a", algo="dqn", algo_kwargs={"gamma": 0.99, "tau": 1.0})
    write_run(tmp_path / "b", algo="ppo", algo_kwargs={"gamma": 0.9, "clip_coef": 0.2, "vf_coef": 0.5})
    lines = run("compare", tmp_path).stdout.splitlines()
    assert lines[lines.index("settings that differ:") :] == [
        "settings that differ:",
        "  algo: dqn, ppo",
        "  algo_kwargs.gamma: 0.99, 0.9",
        "  and 3 that not all of the algorithms have",
    ]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"CartPole-v1: [20, .inf]", b"CartPole-v1: [.nan, 500]"])
def test_anchors_that_are_no_numbers_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "anchors.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"anchors\.yaml (cannot be read|must hold lines)"):
        read_anchors(tmp_path / "anchors.yaml")
