"""What a trial is worth: the mean over its seeds, at its end and at each step that all of them have reached."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from rl_training.results.run_record import RunRecord
from rl_training.results.runs import EVAL_RETURN
from rl_training.studies.tune_plan import Objective


def final_value(runs: Sequence[RunRecord], objective: Objective) -> float:
    """Return the value of a trial whose runs have all finished; NaN if one has no score."""
    return fmean(_final(run, objective) for run in runs)


def shared_values(runs: Sequence[RunRecord], objective: Objective) -> dict[int, float]:
    """Return the value of a trial at each evaluation that all its runs have reached, in the order of steps.

    A run that ended early keeps its last value.
    """
    curves = [run.records.get(EVAL_RETURN, {}) for run in runs]
    steps = sorted({step for curve in curves for step in curve})
    shared = [
        step
        for step in steps
        if all(step in curve or _has_ended(run, step) for run, curve in zip(runs, curves, strict=True))
    ]
    return {step: fmean(_value_at(curve, step, objective) for curve in curves) for step in shared}


def value_from(runs: Sequence[RunRecord], step: int, objective: Objective) -> float:
    """Return the value of a trial at the first evaluation of each run from `step` on; at the last one if it ended."""
    curves = [run.records[EVAL_RETURN] for run in runs]
    return fmean(
        _value_at(curve, min((reached for reached in curve if reached >= step), default=max(curve)), objective)
        for curve in curves
    )


def area(curve: Mapping[int, float], until: int) -> float:
    """Return the mean return from step 0 on: each evaluation counts for the steps before it, the last also after it."""
    before, total = 0, 0.0
    for step in sorted(step for step in curve if step <= until):
        total += curve[step] * (step - before)
        before = step
    return (total + curve[before] * (until - before)) / until


def _final(run: RunRecord, objective: Objective) -> float:
    if objective == "area":
        return area(run.records[EVAL_RETURN], int(run.config["total_timesteps"]))
    return float("nan") if run.score is None else run.score


def _has_ended(run: RunRecord, step: int) -> bool:
    return run.result is not None and int(run.result["step"]) <= step


def _value_at(curve: Mapping[int, float], step: int, objective: Objective) -> float:
    if objective == "area":
        return area(curve, step)
    return curve[max(reached for reached in curve if reached <= step)]
