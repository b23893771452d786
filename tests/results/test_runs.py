"""Run folders are found, grouped by their settings and joined to curves."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from rl_training.errors import ConfigError
from rl_training.results.runs import Runs, find_runs
from run_folders import write_run


def test_runs_are_found_at_any_depth_and_nothing_else_is(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "seed0")
    write_run(tmp_path / "b" / "deep" / "seed1", seed=1)
    write_run(tmp_path / "a" / "seed0" / "checkpoints" / "not_a_run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [run.path.relative_to(tmp_path).as_posix() for run in find_runs(tmp_path)] == ["a/seed0", "b/deep/seed1"]
    assert len(find_runs(tmp_path / "a", tmp_path / "a" / "seed0")) == 1
    with pytest.raises(ConfigError, match=r"no run found in .*empty: a run folder holds a config.yaml"):
        find_runs(tmp_path / "empty")
    with pytest.raises(ConfigError, match="there is no folder"):
        find_runs(tmp_path / "missing")


def test_groups_are_runs_that_differ_in_their_seed_only(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"slow{seed}", seed=seed, algo_kwargs={"learning_rate": 1e-4})
        write_run(tmp_path / f"fast{seed}", seed=seed, algo_kwargs={"learning_rate": 1e-3})
    runs = find_runs(tmp_path)
    groups = runs.groups()
    assert {label: sorted(run.seed for run in group) for label, group in groups.items()} == {
        "learning_rate=0.001": [0, 1],
        "learning_rate=0.0001": [0, 1],
    }
    assert runs.differences() == {"algo_kwargs.learning_rate": ["0.001", "0.0001"]}
    assert list(runs.groups(["algo"])) == ["dqn CartPole-v1"]
    with pytest.raises(ConfigError, match=r"no run has a setting 'alg'; did you mean 'algo'\?"):
        runs.groups(["alg"])


def test_a_curve_joins_the_seeds_at_the_steps_they_share(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, returns=(1.0, 2.0, 3.0))
    write_run(tmp_path / "b", seed=1, returns=(3.0, 4.0), finished=False)
    curve = find_runs(tmp_path).curve("eval/return")
    assert list(curve.positions) == [100, 200, 300]
    assert curve.per_seed.tolist() == [[1, 2, 3], [3, 4, 4]]  # a seed that stopped keeps its last value
    assert curve.ends == [3, 2]
    assert curve.centre.tolist() == [2.0, 3.0, 3.5]
    assert curve.low is None


def test_three_seeds_have_a_band_and_smoothing_is_a_mean_of_the_last_points(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, returns=(1.0 + seed, 2.0 + seed, 6.0 + seed))
    runs = find_runs(tmp_path)
    curve = runs.curve("eval/return")
    assert curve.low is not None
    assert (curve.low < curve.centre).all()
    smooth = runs.curve("eval/return", smooth=2)
    assert smooth.per_seed[0].tolist() == [1.0, 1.5, 4.0]
    assert runs.curve("train/loss", x="wall_s").positions == pytest.approx([2.0, 4.0, 6.0])


def test_an_unknown_record_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    message = "a has no record named 'eval/retrun'; did you mean 'eval/return'? others: eval/length, speed/steps_per_s"
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_runs(tmp_path).curve("eval/retrun")


def test_seeds_evaluated_at_different_steps_cannot_be_joined(tmp_path: Path) -> None:
    write_run(tmp_path / "a", interval=100, returns=(1.0, 2.0))
    write_run(tmp_path / "b", interval=70, returns=(1.0, 2.0, 3.0, 4.0))
    with pytest.raises(ConfigError, match="the seeds share no step at which eval/return was recorded"):
        find_runs(tmp_path).curve("eval/return")


def test_positions_without_records_are_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has no records of wall_s yet"):
        find_runs(tmp_path).curve("eval/return", x="wall_s")
    assert np.array_equal(find_runs(tmp_path).curve("eval/return").positions, [100, 200, 300])


def test_labels_name_what_differs_within_an_algorithm(tmp_path: Path) -> None:
    write_run(tmp_path / "a", algo="dqn", algo_kwargs={"gamma": 0.9, "epsilon_end": 0.1})
    write_run(tmp_path / "b", algo="ppo", algo_kwargs={"gamma": 0.9, "clip_coef": 0.2})
    write_run(tmp_path / "c", algo="ppo", algo_kwargs={"gamma": 0.9, "clip_coef": 0.3})
    assert list(find_runs(tmp_path).groups()) == ["dqn", "ppo clip_coef=0.2", "ppo clip_coef=0.3"]


# --- What a notebook shows -------------------------------------------------------------------------------------------


def test_runs_are_a_table_per_environment(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    write_run(tmp_path / "a", returns=(1.0, 5.0), env_id=evil)
    write_run(tmp_path / "b", returns=(1.0, 7.0), env_id="CartPole-v1")
    html = find_runs(tmp_path)._repr_html_()
    assert html.count("<table>") == 2
    assert "<td>5.000 ± 0.000</td>" in html
    assert "<caption>&lt;script&gt;alert(1)&lt;/script&gt;</caption>" in html
    assert "<script" not in html
    assert Runs([])._repr_html_() == "<p>no runs</p>"


def test_runs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (write_run(tmp_path / "a") / "config.yaml").write_text("- 1", "utf-8")
    assert "does not hold the settings of a run" in find_runs(tmp_path)._repr_html_()


def test_a_curve_is_a_picture(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, returns=(1.0, 5.0 + seed))
    html = find_runs(tmp_path).curve()._repr_html_()
    assert html.startswith('<img alt="eval/return" src="data:image/svg+xml;base64,')
    svg = base64.b64decode(html.partition("base64,")[2].partition('"')[0]).decode()
    assert "3 seeds" in svg
    assert "pointwise 95 % bootstrap interval" in svg
