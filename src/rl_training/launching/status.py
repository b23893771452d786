"""What the runs below a folder do now, read from their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rl_training.experiment.claims import holder_of
from rl_training.launching.marks import is_stopped, read_failure
from rl_training.results.return_text import return_text
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import find_runs

State = Literal["waiting", "running", "stopped", "failed", "finished"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run: what it does, and where, how far or why."""

    folder: Path
    state: State
    detail: str


def read_status(root: Path) -> list[RunStatus]:
    """Return the status of all runs below a folder, in the order of their paths."""
    return [_status_of(run) for run in find_runs(root)]


def _status_of(run: RunRecord) -> RunStatus:
    if run.status == "finished":
        score = run.score
        return RunStatus(run.path, "finished", "" if score is None else f"return {return_text(score)}")
    steps = f"step {run.steps:,} of {_total(run.config)}"
    if run.status == "running":
        holder = holder_of(run.path)
        if holder is None:
            return RunStatus(run.path, "running", steps)
        since = datetime.fromtimestamp(holder.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return RunStatus(run.path, "running", f"{steps}, on {holder.host}, process {holder.pid}, since {since}")
    if (failure := read_failure(run.path)) is not None:
        times = "once" if failure.count == 1 else f"{failure.count} times"
        return RunStatus(run.path, "failed", f"{times} at {steps}: {failure.message}")
    return RunStatus(run.path, "stopped" if is_stopped(run.path) else "waiting", steps)


def _total(config: Mapping[str, Any]) -> str:
    total = config.get("total_timesteps")
    return f"{total:,}" if isinstance(total, int) else "?"
