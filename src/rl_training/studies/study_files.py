"""The files of a study for people: table.csv, best.yaml and report.html."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.core.counted import counted
from rl_training.core.durable_files import write_atomic
from rl_training.core.version import __version__
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.results.figures import Figure, Line
from rl_training.results.html import chart, folded, paragraph, table
from rl_training.results.report import write_report
from rl_training.results.runs import Runs
from rl_training.studies.trial_journal import FAILED, REFUSED
from rl_training.studies.tune_plan import Plan
from rl_training.studies.verdict import Candidate

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TABLE, BEST, REPORT = "table.csv", "best.yaml", "report.html"
log = logging.getLogger("rl_training")

_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "not finished"}


def trial_rows(trials: "Sequence[FrozenTrial]", plan: Plan, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return what is known of each trial, by column; numbers of fresh seeds only for those that ran on them."""
    summaries = {candidate.number: candidate.summary for candidate in candidates if not candidate.failure}
    rows = []
    for trial in trials:
        settings = {each.name: each.setting(trial.params[each.name]) for each in plan.space}
        fresh = summaries.get(trial.number)
        rows.append(
            {
                "trial": trial.number,
                "state": "refused" if REFUSED in trial.user_attrs else _STATES[trial.state.name],
                "value": trial.value,
                "last step": trial.last_step,
                **settings,
                "fresh IQM": fresh and fresh.iqm,
                "fresh low": fresh and fresh.interval[0],
                "fresh high": fresh and fresh.interval[1],
                "message": trial.user_attrs.get(REFUSED) or trial.user_attrs.get(FAILED) or "",
            }
        )
    return rows


def write_table(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(folder / TABLE, text.getvalue())


def write_best(folder: Path, config: TrainConfig, notes: Sequence[str]) -> None:
    """Write the best config, with how it was found as comments."""
    today = datetime.now(UTC).date()
    lines = [f"Found by `rl-training tune` {__version__} on {today} in the study {folder.name}.", *notes]
    comments = [f"# {part}" for line in lines for part in line.splitlines()]
    write_atomic(folder / BEST, "\n".join([*comments, config.resolved().to_yaml()]))


def search_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the values of the trials that ran to their end, and the best of them so far."""
    complete = [row for row in rows if row["state"] == "complete"]
    numbers = np.array([float(row["trial"]) for row in complete])
    values = np.array([float(row["value"]) for row in complete])
    lines = [
        Line("value of the trial", numbers, values),
        Line("best so far", numbers, np.maximum.accumulate(values), colour=1),
    ]
    caption = "Mean over the seeds of each trial that ran to its end. Trial 0 is the given config."
    return Figure("Search", "trial", "value", lines=lines, caption=caption)


def write_study_report(
    folder: Path, groups: Mapping[str, Runs], rows: Sequence[Mapping[str, Any]], verdict: str, notes: Sequence[str]
) -> None:
    """Write the report of the runs on fresh seeds, with the verdict, its figures and the table of trials."""
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    opening = [
        paragraph(verdict, "verdict"),
        *(paragraph(note) for note in notes),
        *([chart(search_figure(rows))] if any(row["state"] == "complete" for row in rows) else []),
        folded(counted(len(rows), "trial"), table("Trials", list(rows[0]), cells)),
    ]
    runs = Runs([run for group in groups.values() for run in group])
    try:
        write_report(runs, folder / REPORT, title=f"Tuning: {folder.name}", groups=groups, opening=opening)
    except ConfigError as error:  # such as one that is too large
        log.warning("no report was written: %s", error)
