"""The command line `rl-training`; `rl-training --help` lists the commands.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 a bug in rl-training (or a finding of
`doctor`, `probe` or `verify`), 2 a mistake that the user can fix, 75 interrupted and saved, 130 interrupted at once.
The commands that need torch import it themselves, so that help and config errors appear at once.
"""

import atexit
import contextlib
import os
import sys
import threading
from typing import Annotated

import typer

import rl_training
from rl_training.commands.compare import compare_runs, plot
from rl_training.commands.config import config_app, list_algorithms
from rl_training.commands.datasets import dataset_app
from rl_training.commands.doctor import doctor
from rl_training.commands.evaluate import evaluate, predict
from rl_training.commands.export import export_app
from rl_training.commands.messages import PROGRAM
from rl_training.commands.probe import probe
from rl_training.commands.record import record
from rl_training.commands.report import report
from rl_training.commands.sweep import sweep
from rl_training.commands.track import track
from rl_training.commands.train import resume, train
from rl_training.commands.tune import tune
from rl_training.commands.verify import verify
from rl_training.commands.video import play, video
from rl_training.commands.work import status, work

app = typer.Typer(
    help="Train, evaluate and resume reinforcement-learning agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, sweep, resume, work, status, evaluate, predict, video, play, record):
    app.command()(command)
app.command(name="list")(list_algorithms)
app.command(name="compare")(compare_runs)
app.command()(plot)
app.command()(report)
app.command()(verify)
app.command()(tune)
app.command()(track)
app.command()(probe)
app.command()(doctor)
app.add_typer(config_app, name="config")
app.add_typer(dataset_app, name="dataset")
app.add_typer(export_app, name="export")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(rl_training.__version__)
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, evaluate and resume reinforcement-learning agents."""


def main() -> None:
    """Run the command line; the console script `rl-training`."""
    try:
        app(prog_name=PROGRAM)
    except SystemExit as ending:
        others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
        if all(thread.daemon for thread in others):
            raise
        # An environment left a thread behind. The interpreter would wait for it, perhaps forever.
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(ending.code if isinstance(ending.code, int) else 1)
