"""`rl-training verify`: run a part of a report again."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import AllowCode, Debug, Quiet, whole_number
from rl_training.core.counted import counted

EXIT_DIFFERS = 1


@reports_errors
def verify(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A file that `report` wrote.")],
    seed: Annotated[
        int | None,
        typer.Option(parser=whole_number(least=0), metavar="N", help="Chooses run and segment; else by chance."),
    ] = None,
    steps: Annotated[
        int, typer.Option(parser=whole_number(least=1), metavar="N", help="Most steps to run again.")
    ] = 20_000,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a random segment of a random finished run of a report again and compare it with the record.

    Exit code 1 means that it differs.
    """
    from rl_training.runtime.setup import RunOptions
    from rl_training.runtime.verifying import verify_report

    options = RunOptions(show_progress=not quiet, allow_code=allow_code)
    found = verify_report(report, seed=seed, steps=steps, options=options)
    rows = [("run", str(found.run_dir))]
    if found.last:
        rows.append(("steps", f"{found.first + 1:,} to {found.last:,}"))
        evaluations, records = counted(found.evaluations, "evaluation"), counted(found.metrics, "record")
        rows.append(("compared", f"{evaluations}, {records} of metrics"))
    rows.append(("result", f"differs: {found.difference}" if found.difference else "equals the record"))
    show(rows)
    if found.difference:
        raise typer.Exit(EXIT_DIFFERS)
