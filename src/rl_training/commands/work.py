"""`rl-training work` and `rl-training status`: the runs of a folder, which any number of workers share."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.messages import EXIT_USER_ERROR, reports_errors, show
from rl_training.commands.options import AllowCode, AllowEntryPoints, Debug, Quiet, Retries
from rl_training.core.printable_text import printable
from rl_training.hparams.fields import expand_home

RunsFolder = Annotated[
    Path, typer.Argument(parser=expand_home, metavar="FOLDER", help="A folder with run folders, at any depth.")
]


@reports_errors
def work(
    folder: RunsFolder,
    retries: Retries = 2,
    allow_entry_points: AllowEntryPoints = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train the unfinished runs of FOLDER, one after the other, until none is free; start as many workers as you like.

    A run is free if it is not finished and no other worker, on this or another machine, trains it.
    """
    from rl_training.launching.pool import flags_of
    from rl_training.launching.worker import work as run_worker
    from rl_training.runtime.signals import EXIT_INTERRUPTED

    flags = flags_of(allow_entry_points=allow_entry_points, allow_code=allow_code)
    ended_by_itself = run_worker(folder.absolute(), retries=retries, flags=flags)
    failed = _show_status(folder, only_failed=quiet)
    if not ended_by_itself:
        raise typer.Exit(EXIT_INTERRUPTED)
    if failed:
        raise typer.Exit(EXIT_USER_ERROR)


@reports_errors
def status(folder: RunsFolder, debug: Debug = False) -> None:
    """Show the runs of FOLDER: waiting, running (where, since when), stopped, failed (why) or finished."""
    _show_status(folder)


def _show_status(folder: Path, *, only_failed: bool = False) -> bool:
    """Show a line for each run, then their number; return whether some have failed."""
    from rl_training.launching.status import read_status

    runs = read_status(folder)
    rows = [
        (printable(str(run.folder.relative_to(folder))), printable(f"{run.state:<8}  {run.detail}"))
        for run in runs
        if run.state == "failed" or not only_failed
    ]
    counts = Counter(run.state for run in runs)
    rows.append(
        (f"{len(runs)} run{'s' * (len(runs) != 1)}", ", ".join(f"{count} {state}" for state, count in counts.items()))
    )
    show(rows)
    return counts["failed"] > 0
