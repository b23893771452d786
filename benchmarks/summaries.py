"""Summaries of score lines: what each contender reached, over its seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from benchmarks.datasets import normalised
from benchmarks.engine import Row
from benchmarks.results import Line
from rl_training.results.human_normalized import human_normalized
from rl_training.results.statistics import Summary, median_of_tasks
from rl_training.results.statistics import summarize as summarize_seeds

HELD_EVALUATIONS = 3
Curve = Mapping[str, Sequence[float]]  # "steps" and "returns", of the evaluations during training


def first_held(curve: Curve, threshold: float) -> float | None:
    """Return the step of the first of 3 consecutive evaluations with a mean return of at least `threshold`."""
    good = [value >= threshold for value in curve["returns"]]
    for start in range(len(good) - HELD_EVALUATIONS + 1):
        if all(good[start : start + HELD_EVALUATIONS]):
            return curve["steps"][start]
    return None


def median_step(steps: Sequence[float | None]) -> float | None:
    """Return the median where None means never; None if the median is never."""
    middle = median(float("inf") if step is None else step for step in steps)
    return None if middle == float("inf") else middle


def return_at(curve: Curve, step: float, window: int = 1) -> float | None:
    """Return the mean return of the evaluation at `step`, or of the last `window` evaluations up to it."""
    until = [value for at, value in zip(curve["steps"], curve["returns"], strict=True) if at <= step]
    return fmean(until[-window:]) if step in curve["steps"] and len(until) >= window else None


def dataset_digest(line: Line) -> str:
    """Return the digest of the dataset a run learned from; "" where it learned in an environment."""
    return str(line.get("dataset", {}).get("sha256", ""))


def latest_runs(lines: Sequence[Line]) -> dict[tuple[str, int, str], list[Line]]:
    """Group finished runs by contender, steps and dataset, ordered by seed. The last run of a seed counts."""
    latest: dict[tuple[str, int, str], dict[int, Line]] = {}
    for line in lines:
        if "failed" not in line:
            key = (line["contender"], line["steps"], dataset_digest(line))
            latest.setdefault(key, {})[line["seed"]] = line
    return {key: [runs[seed] for seed in sorted(runs)] for key, runs in latest.items()}


def summarize_scores(lines: Sequence[Line], row: Row) -> list[dict[str, Any]]:
    """Summarise the runs of a row: one entry per contender and number of steps."""
    return [_summarize(runs, row) for runs in latest_runs(lines).values()]


def _statistics(summary: Summary) -> dict[str, Any]:
    """Return mean, std, interquartile mean and interval; the list of seeds says how many there are."""
    return {name: value for name, value in asdict(summary).items() if name != "count"}


def _summarize(runs: Sequence[Line], row: Row) -> dict[str, Any]:
    scores = [run["score"] for run in runs]
    summary: dict[str, Any] = {
        "contender": runs[0]["contender"],
        "steps": runs[0]["steps"],
        "seeds": [run["seed"] for run in runs],
        **_statistics(summarize_seeds(scores)),
        "scores": scores,
    }
    if "dataset" in runs[0]:
        summary["dataset"] = runs[0]["dataset"]["sha256"][:12]
        summary["normalised"] = [normalised(score, runs[0]["dataset"]) for score in scores]
        summary["normalised_mean"] = fmean(summary["normalised"])
    if row.threshold is not None:
        held = [first_held(run["curve"], row.threshold) for run in runs]
        summary["seeds_at_threshold"] = sum(score >= row.threshold for score in scores)
        summary["first_held"] = held
        summary["first_held_median"] = median_step(held)
    if row.goal is not None:
        summary["seeds_at_goal"] = sum(score >= row.goal for score in scores)
    if row.by is not None:
        summary[f"returns_at_{row.by}"] = [return_at(run["curve"], row.by, row.window) for run in runs]
    if row.window > 1:
        last = max(runs[0]["curve"]["steps"], default=0)
        summary["final_window"] = [return_at(run["curve"], last, row.window) for run in runs]
    return summary


def summarize_rows(by_contender: Mapping[str, Sequence[Mapping[int, float]]]) -> dict[str, Any]:
    """Summarise normalised scores together: of each contender, a score by seed for every row.

    Only seeds that all contenders ran in every row count, so that each row has the same weight for each of them. Empty
    if there is no such seed.
    """
    tasks_of_all = [task.keys() for tasks in by_contender.values() for task in tasks]
    seeds = sorted(set.intersection(*map(set, tasks_of_all))) if tasks_of_all else []
    return {
        contender: {
            "rows": len(tasks),
            "seeds": seeds,
            **_over_tasks([[task[seed] for seed in seeds] for task in tasks]),
        }
        for contender, tasks in by_contender.items()
        if seeds
    }


def _over_tasks(tasks: Sequence[Sequence[float]]) -> dict[str, Any]:
    each = summarize_seeds(*tasks)
    return {"mean": each.mean, "median": median_of_tasks(*tasks), "iqm": each.iqm, "interval": each.interval}


def print_scores(row: Row, summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of one row: ours, the peers, and the published scores."""
    print(f"\ntarget: {row.target}")
    last_title = "normalised" if row.threshold is None else f"first held at {row.threshold:g}+ (per seed)"
    header = f"{'contender':20} {'steps':>9} {'mean':>8} {'std':>7} {'IQM':>8} {'95 % interval':>18}"
    print(f"{header}  {last_title}")
    digits = 3 if row.threshold is not None and abs(row.threshold) <= 1.0 else 1
    for each in summaries:
        low, high = each["interval"]
        held = ("-" if step is None else f"{step / 1000:g}k" for step in each.get("first_held", ()))
        last = f"{each['normalised_mean']:.1f}" if "normalised_mean" in each else " ".join(held)
        interval = f"{low:.{digits}f}..{high:.{digits}f}"
        figures = f"{each['mean']:8.{digits}f} {each['std']:7.{digits}f} {each['iqm']:8.{digits}f}"
        print(f"{each['contender']:20} {each['steps']:9} {figures} {interval:>18}  {last}")
    for name, score in row.published.items():
        print(f"{name:20} published: {score}")


def summarize_atari(lines: Sequence[Line], env_id: str) -> list[dict[str, Any]]:
    """Summarise runs of a game: the last complete window of training, and the final policy where it was played."""
    finals = [line["final"]["mean_return"] if line["final"] else None for line in lines]
    return [
        {
            "row": line["row"],
            "seed": line["seed"],
            "steps": line["step"],
            "finished": line["finished"],
            "final": final,
            "human_normalized": None if final is None else human_normalized(env_id, final),
            "training": next((point for point in reversed(_points(line)) if point["complete"]), None),
            "wall_s": line["wall_s"],
            "training_steps_per_s": line["training_steps_per_s"],
        }
        for line, final in zip(lines, finals, strict=True)
    ]


def _points(line: Line) -> list[dict[str, Any]]:
    """Return the training curve as one dict per window."""
    curve = line.get("training_curve") or {}
    return [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]
