"""Tables of the suites: scores of several tasks summarised together."""

from collections.abc import Iterator
from pathlib import Path

from result_cells import Entry, number, rows, steps_text, summary
from score_list import algorithm_link
from score_tables import of_algo

from rl_training.experiment.registry import registry

FIVE_TASKS = "five_tasks"
HEADER = ["algorithm", "env steps", "seeds", "mean", "IQM (95 % interval)", "published mean", "target"]


def five_tasks_table(folder: Path, algos: list[str]) -> Iterator[str]:
    """Show what the scores of five MuJoCo tasks come to together, by budget. No `algos`: all of them."""
    suites = [pair for algo in algos or registry() for pair in of_algo(summary()["suites"], algo)]
    body = [
        (entry["budget"], [algorithm_link(name, folder), steps_text(entry["budget"]), *suite_cells(entry)])
        for name, entry in suites
        if FIVE_TASKS in name
    ]
    yield from rows(HEADER, *(cells for _, cells in sorted(body, key=lambda each: each[0])))


def suite_cells(entry: Entry) -> list[str]:
    """Return our seeds, mean and IQM, the published mean, and whether ours reaches it in the digits it is known to."""
    ours = next((each for each in entry["contenders"] if each["contender"] == "ours"), None)
    published = f"{entry['published']:.2f}" if "published" in entry else ""
    if ours is None:
        return ["", "not scored yet", "", published, ""]
    low, high = map(number, ours["interval"])
    outcome = ("met" if ours["mean"] >= float(published) else "missed") + f": >= {published}" if published else ""
    figures = [str(len(ours["seeds"])), number(ours["mean"]), f"{number(ours['iqm'])} ({low} to {high})"]
    return [*figures, published, outcome]
