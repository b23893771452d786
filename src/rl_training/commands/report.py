"""`rl-training report`: one HTML file about runs, and its numbers back as CSV."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.commands.messages import command_line, reports_errors
from rl_training.commands.options import Debug
from rl_training.errors import ConfigError


@reports_errors
def report(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The .html file; with --extract a .csv file.")
    ],
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER...", help="Run folders, or folders that hold some.")
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title; the environments if not given.")] = "",
    max_mb: Annotated[
        float, typer.Option(metavar="MB", help="Largest size; training metrics are left out first.")
    ] = 10.0,
    extract: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="Write the numbers of a report as CSV instead.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write one offline HTML file: scores, curves, settings, system and checksums; also while runs train."""
    from rl_training.core.durable_files import write_atomic
    from rl_training.results.report import report_as_csv, write_report
    from rl_training.results.runs import find_runs

    if bool(paths) == (extract is not None):
        raise ConfigError("give FOLDER... to write a report, or --extract REPORT to read one")
    wanted = ".csv" if extract else ".html"
    if out.suffix.lower() != wanted:
        raise ConfigError(f"--out must be a {wanted} file, got {str(out)!r}")
    if extract:
        write_atomic(out, report_as_csv(extract))
    else:
        write_report(find_runs(*paths or ()), out, title=title, command=command_line(*sys.argv[1:]), max_mb=max_mb)
    typer.echo(out)
