"""Learning curves as SVG: the interquartile mean over seeds, with its 95 % bootstrap interval as a band.

A row of the scores gets a picture, `docs/images/curves/<row>.svg`: ours, the peers and, as dots, published scores.
Rows without evaluations during training, most offline ones, share a picture of their final scores per task.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from result_cells import RESULTS, Entry, library, read_lines, seeds_text, steps_text, summary, task_text
from score_tables import of_algo

from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.registry import registry
from rl_training.results.figures import Figure, Line, Mark
from rl_training.results.statistics import iqm_band, summarize

CURVES = Path(__file__).resolve().parent / "images" / "curves"
UNITS = {"": 1, "k": 1_000, "M": 1_000_000}


class Published(NamedTuple):
    """A score of others: the return, its deviation where it is known, and the steps after which it was reached."""

    score: float
    deviation: float | None
    steps: int


def published_score(text: str, budget: int) -> Published | None:
    """Read the score that a text begins with, such as `-157.0 ± 88.7 at 20k steps (...)`; None if there is none.

    Steps are the last ones that the text names, or the budget of the row.
    """
    score = re.match(r"(?:about )?(-?[\d.]+)(?: ± ([\d.]+))?(?= |$)(?! to )", text)
    if score is None:
        return None
    steps = re.findall(r"([\d.]+)([kM]) (?:steps|frames)", text)
    reached = int(float(steps[-1][0]) * UNITS[steps[-1][1]]) if steps else budget
    return Published(float(score[1]), float(score[2]) if score[2] else None, reached)


def read_curve(row: str, contender: Entry, colour: int) -> Line | None:
    """Return the returns of the evaluations during training, over the seeds of a contender; None if there are none.

    Runs on another dataset than the contender's are left out.
    """
    runs = {  # the last run of a seed counts, as in the summary
        line["seed"]: line["curve"]
        for line in score_lines(row)
        if "failed" not in line
        and (line["contender"], line["steps"]) == (contender["contender"], contender["steps"])
        and line.get("dataset", {}).get("sha256", "").startswith(contender.get("dataset", ""))
        and line["curve"]["steps"]
    }
    if not runs:
        return None
    shortest: Sequence[float] = min((curve["steps"] for curve in runs.values()), key=len)
    middle, low, high = iqm_band(np.array([curve["returns"][: len(shortest)] for curve in runs.values()]))
    label = f"{contender_name(contender)}, {seeds_text(len(runs))}"
    return Line(label, np.array(shortest), middle, low, high, colour=colour)


@cache
def score_lines(row: str) -> list[dict[str, Any]]:
    return read_lines(RESULTS / "scores" / f"{row}.jsonl")


def contender_name(contender: Entry) -> str:
    name, _, variant = contender["contender"].partition("-")
    owner = "rl-training" if name == "ours" else library(name)
    return f"{owner} ({variant})" if variant else owner


def published_dots(entry: Entry, last: float, colour: int) -> Iterator[Line]:
    """Return one dot per published score. A score after more steps than the curves have stands at their end."""
    for source, text in entry["published"].items():
        found = published_score(text, entry["budget"])
        if found is not None:
            label = f"{library(source)}, published: {found.score:g} at {steps_text(found.steps)}"
            score = np.array([found.score])
            low, high = (None, None) if found.deviation is None else (score - found.deviation, score + found.deviation)
            yield Line(label, np.array([min(found.steps, last)]), score, low, high, colour=colour)
            colour += 1


def spec_of(row: str) -> AlgorithmSpec:
    return registry()[row.partition("-")[0]]


def curve_figure(row: str) -> Figure | None:
    """Return ours, the peers and the published scores of a row; None without evaluations during training."""
    entry = summary()["scores"][row]
    contenders = sorted(entry["contenders"], key=lambda each: each["contender"] != "ours")
    lines = [line for number, each in enumerate(contenders) if (line := read_curve(row, each, number))]
    if not lines:
        return None
    last = max(float(line.x[-1]) for line in lines)
    unit = "updates" if spec_of(row).loop == "offline" else "env steps"
    title = f"{spec_of(row).class_name} on {task_text(row, entry)}"
    return Figure(title, unit, "return", lines=[*lines, *published_dots(entry, last, len(lines))])


def atari_figure(row: str) -> Figure | None:
    """Return the training returns of a row per window of frames, whole windows only."""
    entry = summary()["atari"][row]
    lines = []
    for number, run in enumerate(read_lines(RESULTS / "atari" / f"{row}.jsonl")):
        curve = run.get("training_curve")
        if curve and any(curve["complete"]):
            whole = np.array(curve["complete"])
            x, y = (np.array(curve[name], float)[whole] for name in ("frames", "mean_return"))
            lines.append(Line(f"rl-training, seed {run['seed']}", x, y, colour=number))
    if not lines:
        return None
    last = max(float(line.x[-1]) for line in lines)
    dots = published_dots({**entry, "budget": entry["frames"]}, last, len(lines))
    title = f"{spec_of(row).class_name} on {entry['env_id']}, training episodes"
    return Figure(title, "frames", "return", lines=[*lines, *dots])


def final_scores_figure(group: Mapping[str, Entry]) -> Figure:
    """Return the normalised final scores of several datasets of a task: interquartile means and their intervals."""
    marks = []
    for name, entry in group.items():
        for number, each in enumerate(entry["contenders"]):
            found = summarize(each["normalised"])
            dataset = "-".join(name.split("-")[2:])
            label = f"{dataset}: {contender_name(each)}, {seeds_text(len(each['seeds']))}"
            marks.append(Mark(label, found.iqm, *found.interval, colour=number))
    name, first = next(iter(group.items()))
    title = f"{spec_of(name).class_name} on {first['env_id']}, final policies"
    return Figure(title, "normalised score", marks=marks)


@cache
def figures(algo: str) -> dict[str, Figure]:
    """Return the pictures of an algorithm by name: a curve per row, then the rows without one, by task and budget."""
    rows = {name: entry for name, entry in of_algo(summary()["scores"], algo) if name == entry["row"]}
    curves = {name: curve_figure(name) for name in rows}
    found = {name: figure for name, figure in curves.items() if figure}
    groups: dict[str, dict[str, Entry]] = {}
    for name, entry in rows.items():
        if curves[name] is None and "normalised" in entry["contenders"][0]:
            task = "-".join(name.split("-")[:2])
            groups.setdefault(f"{task}-{steps_text(entry['budget'])}", {})[name] = entry
    found |= {name: final_scores_figure(group) for name, group in groups.items()}
    atari = {name: atari_figure(name) for name, _ in of_algo(summary()["atari"], algo)}
    return found | {name: figure for name, figure in atari.items() if figure}


def curves_block(folder: Path, algos: list[str]) -> Iterator[str]:
    """Show the pictures of these algorithms."""
    for algo in algos:
        for name, figure in figures(algo).items():
            kind = "Final scores" if figure.marks else "Learning curve"
            yield f"![{kind}: {figure.title}]({os.path.relpath(CURVES / f'{name}.svg', folder)})"


def pictures() -> dict[Path, str]:
    """Return the text of every generated picture."""
    return {CURVES / f"{name}.svg": figure.svg() for algo in registry() for name, figure in figures(algo).items()}
