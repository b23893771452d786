"""Compare the scores of a row with its target: each clause of the target is met, missed or not checked.

A target is a sentence such as `500 on 5/5 seeds; first held at 475+ by 20k`. The clauses that occur are read by their
patterns; what has no pattern is listed as not checked, never as met.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from result_cells import RESULTS, Entry, mean_text, number, read_lines, steps_text, summary

NUMBER = r"(-?[\d.]+)"
UNITS = {"k": 1e3, "M": 1e6}


class Verdict(NamedTuple):
    """A clause of a target, whether the scores meet it (None: not checked), and what was found."""

    clause: str
    met: bool | None
    found: str


class Scored(NamedTuple):
    """A row of the summary by its name, and the entry of our contender in it."""

    name: str
    entry: Entry
    ours: Entry

    def curve_value(self, steps: float) -> float | None:
        """Return the mean over seeds of the evaluation during training at a step; None if there was none."""
        curves = {
            line["seed"]: dict(zip(line["curve"]["steps"], line["curve"]["returns"], strict=True))
            for line in read_lines(RESULTS / "scores" / f"{self.name}.jsonl")
            if line["contender"] == "ours" and "failed" not in line
        }
        values = [curve.get(steps) for curve in curves.values()]
        return None if None in values else fmean(value for value in values if value is not None)


def our_entry(name: str) -> Entry | None:
    """Return the entry of our contender in a row, on the latest dataset."""
    found = [each for each in summary()["scores"].get(name, {}).get("contenders", ()) if each["contender"] == "ours"]
    return next((each for each in found if each.get("dataset") == found[-1].get("dataset")), None)


def to_compare(row: Scored, other: str) -> Entry | None:
    """Return a peer in the row, or another of our algorithms on the task; None without a score on the same data."""
    scores = summary()["scores"]
    its_row = scores.get(row.name.replace(row.name.partition("-")[0], other, 1), {"contenders": ()})
    found = [each for each in row.entry["contenders"] if each["contender"] in (other, f"ours-{other}")]
    found += [each for each in its_row["contenders"] if each["contender"] == "ours"]
    return next((each for each in found if each.get("dataset") == row.ours.get("dataset")), None)


def seeds_below(ours: Entry, value: float) -> str:
    """Name the seeds whose final score is below a value, with the score."""
    low = [(seed, score) for seed, score in zip(ours["seeds"], ours["scores"], strict=True) if score < value]
    return ", ".join(f"seed {seed}: {number(score, ours['mean'])}" for seed, score in low)


def by_each_seed(row: Scored, value: str, seeds: str) -> tuple[bool, str]:
    below = seeds_below(row.ours, float(value))
    return not below and len(row.ours["seeds"]) >= int(seeds), below or f"{len(row.ours['seeds'])} seeds"


def by_the_mean(row: Scored, value: str) -> tuple[bool, str]:
    return row.ours["mean"] >= float(value), mean_text(row.ours)


def during_training(row: Scored, value: str, steps: str, unit: str) -> tuple[bool | None, str]:
    reached = row.curve_value(float(steps) * UNITS[unit])
    if reached is None:
        return None, "not evaluated there"
    return reached >= float(value), f"{number(reached)} at {steps}{unit}"


def held_by(row: Scored, value: str, steps: str, unit: str) -> tuple[bool, str]:
    held = zip(row.ours["seeds"], row.ours["first_held"], strict=True)
    late = [(seed, step) for seed, step in held if step is None or step > float(steps) * UNITS[unit]]
    return not late, ", ".join(f"seed {seed}: {steps_text(step)}" for seed, step in late) or "all seeds"


def held_no_later(row: Scored, value: str, other: str) -> tuple[bool | None, str]:
    theirs = our_entry(row.name.replace(row.name.partition("-")[0], other, 1))
    if theirs is None:
        return None, f"{other} has no score"
    held = [
        sorted(float("inf") if step is None else step for step in each["first_held"][: len(row.ours["seeds"])])
        for each in (row.ours, theirs)
    ]
    medians = [each[len(each) // 2] for each in held]
    return medians[0] <= medians[1], f"median {steps_text(medians[0])}, {other} {steps_text(medians[1])}"


def above_another(row: Scored, other: str, distance: str = "0", unit: str = "%") -> tuple[bool | None, str]:
    """Compare with another contender. `distance`: by how much ours is above, in percent or in normalised points."""
    other = {"stable-baselines3's defaults": "sb3"}.get(other, other)
    theirs = to_compare(row, other)
    if theirs is None:
        return None, f"{other} has no score to compare with"
    if unit == "normalised points":
        ours, its = row.ours["normalised_mean"], theirs["normalised_mean"]
        return ours >= its + float(distance), f"{number(ours)} points, {other} {number(its)} points"
    needed = theirs["mean"] + abs(theirs["mean"]) * float(distance) / 100
    return row.ours["mean"] >= needed, f"{mean_text(row.ours)}, {other} {mean_text(theirs)}"


def control_below(row: Scored, control: str, value: str) -> tuple[bool | None, str]:
    theirs = to_compare(row, control)
    if theirs is None:
        return None, f"{control} has no score"
    return theirs["mean"] < float(value), f"{control} {mean_text(theirs)}"


def near_the_expert(row: Scored, distance: str, unit: str | None) -> tuple[bool, str]:
    expert = read_lines(RESULTS / "scores" / f"{row.name}.jsonl")[0]["expert"]["mean_return"]
    needed = expert - float(distance) * (abs(expert) / 100 if unit else 1)
    far = [score for score in row.ours["scores"] if score < needed]
    found = (
        f"{mean_text(row.ours)}, the expert {number(expert)}; {len(far)} of {len(row.ours['scores'])} seeds are below"
    )
    return row.ours["mean"] >= needed, found


def no_seed_below(row: Scored, value: str) -> tuple[bool, str]:
    below = seeds_below(row.ours, float(value))
    return not below, below or f"{len(row.ours['seeds'])} seeds"


def of_the_window(row: Scored, value: str) -> tuple[bool | None, str]:
    windows = row.ours.get("final_window", [None])
    if None in windows or row.ours["steps"] < row.entry["budget"]:
        return None, "not run to its end"
    return fmean(windows) >= float(value), number(fmean(windows))


CHECKS: Mapping[str, Callable[..., tuple[bool | None, str]]] = {
    rf"(?:>= )?{NUMBER} on (\d+)/\d+ seeds(?: without epsilon)?": by_each_seed,
    rf"(?:mean )?(?:>= )?{NUMBER}(?: on the mean of \d+ seeds| at \d+k| of the balls caught.*)?": by_the_mean,
    rf"(?:>= )?{NUMBER}(?: on \d+/\d+ seeds)? by {NUMBER}([kM])": during_training,
    rf"first held at {NUMBER}\+ by {NUMBER}([kM])": held_by,
    rf"{NUMBER} first held no later than by (\w+)": held_no_later,
    r"(?:mean )?>= (?:our )?(stable-baselines3's defaults|[a-z][\w-]+)(?: on the mean)?": above_another,
    rf">= (?:our )?(\w+) \+ {NUMBER} (%|normalised points)": above_another,
    rf"(ours-[\w-]+) below {NUMBER}": control_below,
    rf"within {NUMBER}( %)? of the expert's mean return": near_the_expert,
    rf"no seed below {NUMBER}": no_seed_below,
    rf"mean of the final window >= {NUMBER}": of_the_window,
}


def clauses(target: str) -> list[str]:
    """Split a target into its clauses; alternatives stay together. None, where no target is set."""
    return [] if target.startswith("none set") else re.split(r"; |, and |, (?!or )| and (?=>= )", target)


def check(row: Scored, clause: str) -> tuple[bool | None, str]:
    for pattern, function in CHECKS.items():
        match = re.fullmatch(pattern, clause)
        if match:
            return function(row, *match.groups())
    return None, ""


def verdicts(name: str) -> list[Verdict]:
    """Return a verdict per clause of the row's target."""
    entry, ours = summary()["scores"][name], our_entry(name)
    if ours is None:
        return []
    row = Scored(name, entry, ours)
    found = []
    for clause in clauses(entry["target"]):
        outcomes = [check(row, alternative) for alternative in clause.split(", or ")]
        found.append(Verdict(clause, any_met([met for met, _ in outcomes]), "; ".join(text for _, text in outcomes)))
    return found


def any_met(outcomes: Sequence[bool | None]) -> bool | None:
    if any(outcomes):
        return True
    return None if None in outcomes else False


def missed_rows(names: Sequence[str]) -> list[tuple[str, Verdict]]:
    return [(name, verdict) for name in names for verdict in verdicts(name) if verdict.met is False]


def summary_text(name: str) -> str:
    """Return what became of a row's target in a few words."""
    found: list[Any] = verdicts(name)
    if not found:
        return ""
    if any(verdict.met is False for verdict in found):
        return "missed"
    return "met" if all(verdict.met for verdict in found) else "not checked in full"
