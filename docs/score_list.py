"""The results page: one line per contender of each row, and the targets that were missed."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from learning_curves import published_score
from result_cells import RESULTS, Entry, library, read_lines, rows, summary, task_text
from score_tables import atari_table, contender_cells, of_algo, score_tables
from targets import Verdict, missed_rows, seeds_below, summary_text, verdicts

from rl_training.experiment.registry import registry
from rl_training.results.return_text import seed_ranges

ALGORITHMS = Path(__file__).resolve().parent / "algorithms"
HEADER = [
    "algorithm",
    "task",
    "contender",
    "mean ± std",
    "IQM (95 % interval)",
    "worst seed",
    "steps",
    "seeds",
    "target",
    "settings chosen on",
    "notes",
]


def page_scores(folder: Path, algos: list[str]) -> Iterator[str]:
    """Describe every row of these algorithms, then the clauses of their targets that the scores miss."""
    yield from score_tables(folder, algos)
    names = [name for algo in algos for name, entry in of_algo(summary()["scores"], algo) if name == entry["row"]]
    missed = missed_rows(names)
    if missed:
        yield ""
        yield from missed_table(missed, folder)


def score_list(folder: Path, arguments: list[str]) -> Iterator[str]:
    """List every contender of every row: ours, the peers, what others published."""
    body: list[list[str]] = []
    for name, entry in (pair for algo in registry() for pair in of_algo(summary()["scores"], algo)):
        link, task = algorithm_link(name, folder), task_link(name, entry, folder)
        for each in entry["contenders"]:
            body.append([link, task, *scored_cells(name, entry, each)])
        published = entry["published"] if name == entry["row"] else {}
        for source, text in published.items():
            body.append([link, task, f"{library(source)}, published", *published_cells(text, entry["budget"])])
    yield from rows(HEADER, *body)


def scored_cells(name: str, entry: Entry, each: Entry) -> list[str]:
    """Return the cells of a contender that was run here."""
    title, steps, _, *figures, _ = contender_cells(each, None)
    ours = each["contender"] == "ours"
    facts = [target_text(name, entry), entry["chosen_on"] or "not recorded"] if ours else ["", ""]
    return [title, *figures, steps, seed_ranges(each["seeds"]), *facts, notes(name, entry, each)]


def published_cells(text: str, budget: int) -> list[str]:
    """Return the cells of a score of others: the figure where the text begins with one, its steps, the text."""
    found = published_score(text, budget)
    steps = f"{found.steps:,}" if found else ""
    score = f"{found.score:g}" + (f" ± {found.deviation:g}" if found.deviation else "") if found else ""
    return [score, "", "", steps, "", "", "", text]


def atari_list(folder: Path, arguments: list[str]) -> Iterator[str]:
    yield from atari_table(folder, summary()["atari"])


def algorithm_link(name: str, folder: Path) -> str:
    algo = name.partition("-")[0]
    return f"[`{algo}`]({os.path.relpath(ALGORITHMS / f'{algo}.md', folder)}#scores)"


def task_link(name: str, entry: Entry, folder: Path) -> str:
    """Return the task as a link to the lines of the row."""
    path = RESULTS / "scores" / f"{name}.jsonl"
    return f"[{task_text(name, entry)}]({os.path.relpath(path, folder)})"


def target_text(name: str, entry: Entry) -> str:
    outcome = summary_text(name)
    return f"{outcome}: {entry['target']}" if outcome else "none set"


def notes(name: str, entry: Entry, each: Entry) -> str:
    """Name what a reader must know about a contender's figures: short runs, failures, changes since."""
    found = []
    if each["steps"] < entry["budget"]:
        found.append(f"stopped after {each['steps']:,} of {entry['budget']:,} steps")
    lines = read_lines(RESULTS / "scores" / f"{name}.jsonl")
    failed = [line for line in lines if line["contender"] == each["contender"] and "failed" in line]
    if failed:
        found.append(f"{len(failed)} runs ended with an error: {failed[0]['failed'].strip().rstrip(':')}")
    if each["contender"] == "ours" and "changed_since" in entry:
        found.append(f"taken before a change: {entry['changed_since']}")
    if entry["threshold"] is not None and (below := seeds_below(each, entry["threshold"])):
        found.append(f"below {entry['threshold']:g}: {below}")
    return "; ".join(found)


def missed_targets(folder: Path, arguments: list[str]) -> Iterator[str]:
    """List the clauses of targets that our scores do not meet, then those that cannot be read off the results."""
    names = [name for name, entry in summary()["scores"].items() if name == entry["row"]]
    yield from missed_table(missed_rows(names), folder)
    unchecked: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for verdict in verdicts(name):
            if verdict.met is None:
                unchecked.setdefault((verdict.clause, verdict.found), []).append(f"`{name}`")
    if unchecked:
        yield from ("", "Not decided by the result files:", "")
        yield from rows(
            ["target", "reason", "rows"],
            *([clause, found or "not checked", ", ".join(each)] for (clause, found), each in unchecked.items()),
        )


def missed_table(missed: Sequence[tuple[str, Verdict]], folder: Path) -> Iterator[str]:
    body = [[task_cell(name, folder), verdict.clause, verdict.found, age(name)] for name, verdict in missed]
    yield from rows(["row", "target that is missed", "found", "note"], *body)


def task_cell(name: str, folder: Path) -> str:
    return f"[`{name}`]({os.path.relpath(RESULTS / 'scores' / f'{name}.jsonl', folder)})"


def age(name: str) -> str:
    entry = summary()["scores"][name]
    ours = next(each for each in entry["contenders"] if each["contender"] == "ours")
    short = f"{ours['steps']:,} of {entry['budget']:,} steps" if ours["steps"] < entry["budget"] else ""
    older = "taken before a later change" if "changed_since" in entry else ""
    return "; ".join(text for text in (short, older) if text)
