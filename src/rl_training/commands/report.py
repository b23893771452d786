"""`rl-training report`: one HTML file about runs, and its numbers back as CSV."""

import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.commands.messages import command_line, reports_errors
from rl_training.commands.options import AllowCode, Debug, Quiet, whole_number
from rl_training.errors import ConfigError
from rl_training.results.return_text import return_text

if TYPE_CHECKING:
    from rl_training.results.report_videos import Film
    from rl_training.results.run_record import RunRecord

log = logging.getLogger("rl_training")


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
    videos: Annotated[
        int,
        typer.Option(
            parser=whole_number(least=0), metavar="N", help="Film N episodes of the median run of each group."
        ),
    ] = 0,
    extract: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="Write the numbers of a report as CSV instead.")
    ] = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one offline HTML file: scores, curves, settings, system and checksums; also while runs train."""
    from rl_training.core.durable_files import make_folder, write_atomic
    from rl_training.results.report import write_report
    from rl_training.results.report_data import report_as_csv
    from rl_training.results.runs import find_runs

    if bool(paths) == (extract is not None):
        raise ConfigError("give FOLDER... to write a report, or --extract REPORT to read one")
    wanted = ".csv" if extract else ".html"
    if out.suffix.lower() != wanted:
        raise ConfigError(f"--out must be a {wanted} file, got {str(out)!r}")
    if extract:
        text = report_as_csv(extract)
        make_folder(out.parent)
        write_atomic(out, text)
    else:
        command = command_line(*sys.argv[1:])
        film = _film(videos, allow_code=allow_code) if videos else None
        write_report(find_runs(*paths or ()), out, title=title, command=command, max_mb=max_mb, film=film)
    typer.echo(out)


def _film(episodes: int, *, allow_code: bool) -> "Film":
    """Return a function that films a run; raise `ConfigError` at once if the package for it is missing."""
    from rl_training.runtime.filming import film_run
    from rl_training.runtime.setup import RunOptions
    from rl_training.runtime.video_files import check_video_file

    name = "film.mp4"
    check_video_file(Path(name))

    def film(run: "RunRecord") -> tuple[bytes, str]:
        log.info("filming %s", run.path)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, name)
            played = film_run(run.path, out, episodes=episodes, options=RunOptions(allow_code=allow_code))
            returns = ", ".join(return_text(one.ret) for one in played)
            return out.read_bytes(), f"seed {run.seed}, returns {returns}"

    return film
