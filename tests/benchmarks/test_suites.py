"""Suites of rows: normalised scores that are summarised together, and the suite of five MuJoCo tasks."""

from collections.abc import Sequence
from typing import Any

import pytest
from benchmarks.rows import ROWS, SUITES
from benchmarks.rows.five_tasks import BUDGETS, ENTRANTS, TASKS
from benchmarks.suites import Suite, summarize_suite


def run(contender: str, seed: int, score: float, *, steps: int = 3_000, **more: Any) -> dict[str, Any]:
    return {"contender": contender, "seed": seed, "steps": steps, "score": score, **more}


def on_data(contender: str, seed: int, score: float, sha256: str = "a") -> dict[str, Any]:
    facts = {"sha256": sha256, "random_return": 0.0, "expert_return": 200.0}
    return run(contender, seed, score, dataset=facts)


DATASETS = Suite(rows=["one", "two"], steps=3_000)
TASKS_OF_TWO = Suite(rows=["one", "two"], steps=3_000, units={"one": 100.0, "two": 10.0}, published=0.7)


def contenders(suite: Suite, one: Sequence[Any], two: Sequence[Any]) -> dict[str, Any]:
    return {each["contender"]: each for each in summarize_suite(suite, {"one": one, "two": two})["contenders"]}


def test_a_suite_pools_the_seeds_that_all_its_contenders_ran_in_every_row() -> None:
    one = [on_data("ours", 0, 100.0), on_data("ours", 1, 200.0), on_data("peer", 0, 40.0), on_data("once", 0, 0.0)]
    two = [on_data("ours", 0, 20.0), on_data("ours", 1, 200.0), on_data("peer", 0, 80.0), on_data("peer", 1, 0.0)]
    found = contenders(DATASETS, one, two)
    assert list(found) == ["ours", "peer"]
    assert (found["ours"]["seeds"], found["ours"]["mean"]) == ([0], 30.0)  # (50 + 10) / 2
    assert (found["peer"]["seeds"], found["peer"]["mean"]) == ([0], 30.0)  # (20 + 40) / 2
    assert contenders(DATASETS, one[1:2], two[:1]) == {}  # no seed in both rows
    assert contenders(DATASETS, one, []) == {}


def test_a_suite_takes_only_runs_on_the_latest_dataset_of_a_row() -> None:
    one = [on_data("ours", 0, 200.0, "b"), on_data("ours", 0, 100.0), on_data("peer", 0, 40.0, "b")]
    found = contenders(DATASETS, [*one, on_data("ours", 0, 80.0, "b")], [on_data("ours", 0, 80.0)])
    assert {name: each["mean"] for name, each in found.items()} == {"ours": 40.0}


def test_a_suite_of_tasks_divides_each_score_by_the_unit_of_its_task() -> None:
    # Shares of the units: 0.1, 0.3, 0.5, 0.7 and 1, 2, 3, 4. Of these eight, 0.5, 0.7, 1 and 2 are the middle half.
    one = [run("ours", seed, score) for seed, score in enumerate((10.0, 30.0, 50.0, 70.0))]
    two = [run("ours", seed, score) for seed, score in enumerate((10.0, 20.0, 30.0, 40.0))]
    ours = contenders(TASKS_OF_TWO, one, two)["ours"]
    assert ours["mean"] == pytest.approx(11.6 / 8)
    assert ours["iqm"] == pytest.approx(4.2 / 4)
    low, high = ours["interval"]
    assert low < ours["iqm"] < high


def test_a_suite_counts_neither_other_budgets_nor_failed_runs() -> None:
    failed = {"contender": "ours", "seed": 1, "steps": 3_000, "failed": "exit code 1"}
    one = [run("ours", 0, 50.0), run("ours", 0, 90.0, steps=6_000), failed]
    ours = contenders(TASKS_OF_TWO, one, [run("ours", 0, 5.0), run("ours", 1, 9.0)])["ours"]
    assert (ours["seeds"], ours["mean"]) == ([0], 0.5)


def test_a_suite_that_was_not_run_has_its_published_mean() -> None:
    assert summarize_suite(TASKS_OF_TWO, {}) == {
        "rows": ["one", "two"],
        "budget": 3_000,
        "published": 0.7,
        "contenders": [],
    }
    assert "published" not in summarize_suite(DATASETS, {})


# --- Five tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "published"),
    [
        ("sac", ("0.28", "0.52")),
        ("redq", ("0.67", "0.91")),
        ("crossq", ("0.74", "1.00")),
        ("simbav2", ("0.67", "1.00")),
    ],
)
def test_the_published_means_are_those_of_the_literature(algo: str, published: tuple[str, str]) -> None:
    for steps, text in zip(BUDGETS, published, strict=True):
        assert f"{SUITES[f'{algo}-five_tasks-{steps // 1_000}k'].published:.2f}" == text


@pytest.mark.parametrize("algo", ["td3", "tqc"])
def test_an_algorithm_without_published_scores_has_no_published_mean(algo: str) -> None:
    assert SUITES[f"{algo}-five_tasks-100k"].published is None


@pytest.mark.parametrize("name", [f"{algo}-five_tasks-{steps // 1_000}k" for algo in ENTRANTS for steps in BUDGETS])
def test_a_suite_of_five_tasks_has_the_rows_of_its_algorithm_and_budget(name: str) -> None:
    suite, algo = SUITES[name], name.partition("-")[0]
    assert [ROWS[row].env_id for row in suite.rows] == [f"{task}-v5" for task in TASKS]
    assert {ROWS[row].steps for row in suite.rows} == {suite.steps}
    assert {row.partition("-")[0] for row in suite.rows} == {algo}
    assert not any(ROWS[row].env_kwargs for row in suite.rows)
    assert list(suite.units) == suite.rows


def test_the_target_of_a_task_is_the_score_of_the_algorithms_authors_after_the_same_steps() -> None:
    names = ("crossq-ant", "crossq-ant-200k", "crossq-ant-as_v4-200k", "tqc-ant", "tqc-ant-200k", "sac-ant-mujoco-200k")
    assert [ROWS[name].threshold for name in names] == [2686.0, 4960.0, 4960.0, 747.0, 2296.0, 2296.0]  # TQC: SAC's
    assert [ROWS[name].target for name in names[:2]] == [">= 2686", ">= 4960"]
    assert ROWS["crossq-ant"].published["paper"].startswith("2686 ± 946 (on Ant-v4")
    assert ROWS["crossq-ant-200k"].published["paper"].startswith("4960 (on Ant-v4")


def test_each_task_has_the_values_of_the_authors() -> None:
    entropies = {task: ROWS[f"redq-{task.lower()}-mujoco"].hparams["target_entropy"] for task in TASKS}
    assert entropies == {"HalfCheetah": -3, "Hopper": -1, "Walker2d": -3, "Ant": -4, "Humanoid": -2}
    dropped = {task: ROWS[f"tqc-{task.lower()}"].hparams["dropped_quantiles"] for task in TASKS}
    assert dropped == {"HalfCheetah": 0, "Hopper": 5, "Walker2d": 2, "Ant": 2, "Humanoid": 2}
