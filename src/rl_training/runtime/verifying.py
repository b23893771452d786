"""Check a report: run a segment of one of its runs again and compare the records."""

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import checkpoint_name, resumable_names, step_of
from rl_training.experiment.run_dir import changed_versions, read_run_config
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.results.report_data import checksums, read_report
from rl_training.results.run_record import RunRecord
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.changed_settings import differing_settings
from rl_training.runtime.run import Run
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.trainer import resume, train

_TIMES = ("wall_s", "steps_per_s")  # differ in every run


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared, and the first difference; empty if everything equals the record."""

    run_dir: Path
    first: int  # the segment: the steps after this one
    last: int
    evaluations: int  # number of evaluations that were compared
    metrics: int  # number of records of metrics that were compared
    difference: str


class _StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step >= self.step:
            run.stop_reason = "the segment ends"


def verify_report(path: Path, *, seed: int | None, steps: int, options: RunOptions) -> Verification:
    """Run a random segment of a random finished run of a report again: at most `steps` steps from a saved state.

    `seed` chooses run and segment. Raises `ConfigError` if the run cannot be run again.
    """
    rng = random.Random(seed)
    finished = [run for run in read_report(path)["runs"] if run["status"] == "finished"]
    if not finished:
        raise ConfigError(f"{path} holds no finished run to repeat: resume one to its end, then write the report again")
    claimed = rng.choice(finished)
    run_dir = path.absolute().parent / claimed["run"]
    if not run_dir.is_dir():
        raise ConfigError(f"the run folder {run_dir} is gone: put it back, or move the report to where the runs are")
    recorded = RunRecord(run_dir)
    if changed := _changed_since(recorded, claimed):
        return Verification(run_dir, 0, 0, 0, 0, changed)
    first = rng.choice(_starting_points(recorded))
    with tempfile.TemporaryDirectory(prefix="rl_training_verify_") as folder:
        options = replace(options, callbacks=[_StopAt(first + steps)])
        if first == 0:
            config = read_run_config(run_dir).updated(tensorboard=False)
            result = train(config.as_own() if options.allow_code else config, options, run_dir=Path(folder, "run"))
        else:
            checkpoint = run_dir / "checkpoints" / checkpoint_name(first)
            result = resume(checkpoint, options, output_dir=Path(folder))
        if result.interrupted:
            raise KeyboardInterrupt
        return _compare(recorded, RunRecord(result.run_dir), first, result.step)


def _changed_since(run: RunRecord, claimed: Mapping[str, Any]) -> str:
    """Return what in a run folder is not what the report was made from."""
    found = checksums(run)
    for name, digest in claimed["sha256"].items():
        if found.get(name) != digest:
            return f"{run.path / name} is {'changed' if name in found else 'gone'} since the report was made"
    for name, numbers in claimed["records"].items():
        if dict(zip(numbers["steps"], numbers["values"], strict=True)) != run.records.get(name):
            return f"the numbers of {name} in the report are not those of {run.path}"
    return ""


def _starting_points(run: RunRecord) -> list[int]:
    """Return the steps from which the run can be run again as it was.

    The start is one if the run was never resumed: a resume may have lengthened it, and schedules depend on its length.
    """
    claim = str(run.starts[-1].get("resume", "")) if run.starts else ""
    if not claim.startswith("exact"):
        raise ConfigError(f"{run.path} does not resume exactly, so it cannot be repeated: {claim or 'unknown'}")
    folder, last = run.path / "checkpoints", int((run.result or {})["step"])
    config = read_run_config(run.path)
    points = [0] if all(start.get("step") == 0 for start in run.starts) else []
    for name in resumable_names(folder):
        if 0 < step_of(name) < last and not differing_settings(open_checkpoint(folder / name, ()).config, config):
            points.append(step_of(name))
    if not points:
        raise ConfigError(
            f"{run.path} was resumed, and no checkpoint with its present settings from before step {last:,} is left: "
            "nothing can be run again"
        )
    return points


def _compare(recorded: RunRecord, repeated: RunRecord, first: int, last: int) -> Verification:
    """Compare the records of a segment; times are not compared."""
    evaluations, again = (
        [(s, e) for s, e in run.evaluations.items() if first < s <= last] for run in (recorded, repeated)
    )
    metrics, metrics_again = (
        [
            {k: v for k, v in record.items() if k not in _TIMES}
            for record in run.metrics
            if first < record["step"] <= last
        ]
        for run in (recorded, repeated)
    )
    if not evaluations and not metrics:
        raise ConfigError(f"nothing was recorded between step {first:,} and {last:,}: give a larger --steps")
    difference = _first_difference("evaluation", evaluations, again)
    difference = difference or _first_difference("record of metrics", metrics, metrics_again)
    if not difference and recorded.result and last == recorded.result["step"]:
        results = [[(run.result or {}).get(name) for name in ("eval", "metrics")] for run in (recorded, repeated)]
        difference = _first_difference("result", results[:1], results[1:])
    if difference and (changed := changed_versions(recorded.path)):
        difference += f" ({', '.join(changed)})"
    return Verification(recorded.path, first, last, len(evaluations), len(metrics), difference)


def _first_difference(what: str, recorded: Sequence[Any], repeated: Sequence[Any]) -> str:
    for old, new in zip(recorded, repeated, strict=False):
        if old != new:
            return f"the {what} was {old}, is now {new}"
    if len(recorded) != len(repeated):
        return f"the number of {what}s was {len(recorded)}, is now {len(repeated)}"
    return ""
