"""A row that is run again: the interval, the verdict, and what is refused before anything is trained."""

from argparse import Namespace
from typing import Any

import pytest
from benchmarks.command_line import UsageError
from benchmarks.reproduce import our_runs, prediction_interval, verdict

from benchmarks import reproduce


def score(seed: int, value: float, steps: int = 100, contender: str = "ours") -> dict[str, Any]:
    return {"contender": contender, "seed": seed, "steps": steps, "score": value, "learn_s": 60.0, "device": "cpu"}


def test_the_interval_is_the_one_of_students_distribution() -> None:
    # Mean 2, deviation 1, t(2) = 4.303: 2 +- 4.303 * sqrt(1/3 + 1/2) = 2 +- 3.928.
    assert prediction_interval([1.0, 2.0, 3.0], 2) == pytest.approx((-1.928, 5.928), abs=1e-3)


def test_equal_scores_predict_the_same_score() -> None:
    low, high = prediction_interval([500.0] * 5, 1)
    assert low < 500.0 < high
    assert high - low < 1e-5


def test_more_seeds_narrow_the_interval() -> None:
    wide, narrow = (prediction_interval([1.0, 2.0, 3.0], count) for count in (1, 3))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_longest_runs_of_ours_count_and_the_last_of_each_seed() -> None:
    lines = [score(0, 1.0, steps=50), score(0, 2.0), score(0, 3.0), score(1, 4.0), score(0, 9.0, contender="sb3")]
    assert [run["score"] for run in our_runs(lines)] == [3.0, 4.0]


@pytest.mark.parametrize(("again", "word"), [(2.5, "inside"), (9.0, "outside")])
def test_the_report_says_inside_or_outside(again: float, word: str) -> None:
    committed = [score(seed, value) for seed, value in enumerate((1.0, 2.0, 3.0))]
    inside, report = verdict(committed, [score(1, again), score(7, again)])
    assert inside == (word == "inside")
    assert report.splitlines()[-1].startswith(f"{word}: {again:.2f}, expected -1.93 to 5.93")
    assert report.splitlines()[1].split() == ["1", "2.00", f"{again:.2f}"]
    assert report.splitlines()[2].split() == ["7", f"{again:.2f}"]


def test_the_report_names_data_that_differ_from_the_committed_ones() -> None:
    def on(sha256: str) -> list[dict[str, Any]]:
        return [{**score(seed, float(seed)), "dataset": {"sha256": sha256}} for seed in range(3)]

    assert "other data" not in verdict(on("a" * 64), on("a" * 64))[1]
    assert (
        "note: other data than the committed runs: the dataset was recorded again"
        in verdict(on("a" * 64), on("b" * 64))[1]
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sac-pendulm", "unknown row 'sac-pendulm'; did you mean 'sac-pendulum'"),
        ("mopo-pendulum-medium-replay", "one committed seed"),
        ("sac-hopper", "no committed score"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_training(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = {"mopo-pendulum-medium-replay": [score(0, 1.0)]}
    monkeypatch.setattr(reproduce, "read_lines", lambda path: committed.get(path.stem, []))
    with pytest.raises(UsageError, match=message):
        reproduce.run(Namespace(name=name, seeds=None, jobs=1, device="cpu"))
