"""Suites: rows whose scores are normalised, so that they can be summarised together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.datasets import normalised
from benchmarks.results import Line, named
from benchmarks.summaries import dataset_digest, latest_runs, summarize_rows


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Rows that are summarised together after so many steps.

    `units`: the score that counts as 1, by row; without it, scores are normalised by the random and the expert return
    of the row's dataset. `published`: the mean over these rows that the authors of the algorithm report.
    """

    rows: Sequence[str]
    steps: int
    units: Mapping[str, float] = field(default_factory=dict)
    published: float | None = None

    def normalised(self, row: str, run: Line) -> float:
        return run["score"] / self.units[row] if self.units else normalised(run["score"], run["dataset"])


def summarize_suite(suite: Suite, scores: Mapping[str, Sequence[Line]]) -> dict[str, Any]:
    """Summarise a suite from the lines of all rows. `contenders` is empty if no seed ran in every row."""
    published = {} if suite.published is None else {"published": suite.published}
    return {"rows": suite.rows, "budget": suite.steps, **published, "contenders": pooled_scores(suite, scores)}


def pooled_scores(suite: Suite, scores: Mapping[str, Sequence[Line]]) -> list[dict[str, Any]]:
    """Summarise the normalised scores of all rows together, for the contenders that ran in each of them.

    Only runs on the latest dataset of a row count.
    """
    by_contender: dict[str, list[dict[int, float]]] = {}
    for row in suite.rows:
        finished = [line for line in named(scores.get(row, ()), steps=suite.steps) if "failed" not in line]
        for (contender, _, dataset), runs in latest_runs(finished).items():
            if dataset == dataset_digest(finished[-1]):
                task = {run["seed"]: suite.normalised(row, run) for run in runs}
                by_contender.setdefault(contender, []).append(task)
    complete = {contender: tasks for contender, tasks in by_contender.items() if len(tasks) == len(suite.rows)}
    return [{"contender": contender, **each} for contender, each in summarize_rows(complete).items()]
