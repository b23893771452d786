"""Run a row of the score table again and compare: is the mean where the committed seeds predict it?

The committed results are not changed: the new lines go to `runs/benchmarks/reproduced`.
"""

import argparse
import math
from collections.abc import Sequence
from statistics import fmean, stdev

from benchmarks import command_line
from benchmarks.command_line import UsageError
from benchmarks.engine import RowRuns, run_scores
from benchmarks.launch import KEPT_RUNS
from benchmarks.results import RESULTS, Line, read_lines
from benchmarks.rows import ROWS
from benchmarks.summaries import latest_runs

REPRODUCED = KEPT_RUNS / "reproduced"
# 97.5 % quantiles of Student's t distribution by degrees of freedom, from 1.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
ROUNDING = 1e-9  # of a mean, where all seeds reach the same score


def prediction_interval(scores: Sequence[float], count: int) -> tuple[float, float]:
    """Return the interval that holds the mean of `count` further seeds with 95 % probability, given these scores.

    Both means vary: the variance of their difference is that of a seed times (1 / len(scores) + 1 / count).
    """
    if len(scores) < 2:
        raise UsageError("the row has one committed seed, which predicts no interval")
    quantile = STUDENT[min(len(scores) - 1, len(STUDENT)) - 1]
    mean = fmean(scores)
    width = quantile * stdev(scores) * math.sqrt(1 / len(scores) + 1 / count) + ROUNDING * max(abs(mean), 1.0)
    return mean - width, mean + width


def our_runs(lines: Sequence[Line]) -> list[Line]:
    """Return the latest of our runs with the most steps, for each seed."""
    found = {key: runs for key, runs in latest_runs(lines).items() if key[0] == "ours"}
    return found[max(found, key=lambda key: key[1])] if found else []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="ROW", help="such as sac-pendulum: `python -m benchmarks scores --list`")
    parser.add_argument("--seeds", type=command_line.parse_seeds, help="0-4 or 0,2,5 (default: the committed ones)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="where ours trains (default: %(default)s)")


def data_of(runs: Sequence[Line]) -> set[str]:
    """Return the digests of the datasets that runs learned from or imitated."""
    return {run[kind]["sha256"] for run in runs for kind in ("dataset", "expert") if kind in run}


def verdict(committed: Sequence[Line], again: Sequence[Line]) -> tuple[bool, str]:
    """Compare the means; return whether the new one is inside the interval, and the report."""
    scores = {run["seed"]: run["score"] for run in committed}
    low, high = prediction_interval(list(scores.values()), len(again))
    mean = fmean(run["score"] for run in again)
    inside = low <= mean <= high
    lines = [f"{'seed':>6} {'committed':>12} {'again':>12}"]
    for run in again:
        before = f"{scores[run['seed']]:12.2f}" if run["seed"] in scores else f"{'':12}"
        lines.append(f"{run['seed']:6} {before} {run['score']:12.2f}")
    lines.append(f"{'mean':>6} {fmean(scores.values()):12.2f} {mean:12.2f}")
    if data_of(again) != data_of(committed):
        lines.append("note: other data than the committed runs: the dataset was recorded again")
    interval = f"{low:.2f} to {high:.2f}, the 95 % interval for the mean of {len(again)} more seeds"
    return inside, "\n".join([*lines, f"{'inside' if inside else 'outside'}: {mean:.2f}, expected {interval}"])


def run(args: argparse.Namespace) -> int:
    command_line.check_names([args.name], list(ROWS), "row")
    row = ROWS[args.name]
    committed = our_runs(read_lines(RESULTS / "scores" / f"{args.name}.jsonl"))
    if not committed:
        raise UsageError(f"{args.name} has no committed score: run `python -m benchmarks scores {args.name}`")
    seeds = args.seeds or [run["seed"] for run in committed]
    prediction_interval([run["score"] for run in committed], len(seeds))  # a row without one fails before it trains
    if row.changed_since:
        print(f"note: the committed scores were taken before a change: {row.changed_since}", flush=True)
    minutes = fmean(run["learn_s"] for run in committed) / 60
    print(f"committed: {minutes:.1f} minutes per seed on {committed[0]['device']}", flush=True)
    steps = committed[0]["steps"]
    wanted = RowRuns(name=args.name, row=row, contenders=["ours"], seeds=seeds, steps=steps, out=REPRODUCED)
    if not run_scores([wanted], jobs=args.jobs, device=args.device):
        return 1
    again = [each for each in our_runs(read_lines(wanted.file)) if each["seed"] in seeds]
    inside, report = verdict(committed, again)
    print(report)
    return 0 if inside else 1
