"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as algo_kwargs.gamma=0.98; repeatable.",
    ),
]
TotalTimesteps = Annotated[int | None, typer.Option(metavar="N", help="Total env steps (gradient steps if offline).")]
RunPath = Annotated[Path, typer.Argument(metavar="PATH", help="A run folder, or a checkpoint folder in it.")]
Best = Annotated[bool, typer.Option("--best", help="Use the checkpoint with the best evaluation, not the newest.")]
AllowEntryPoints = Annotated[
    bool,
    typer.Option(
        "--allow-entry-points", help="Read a dataset although its metadata name unknown code; the code is not run."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only warnings and the result.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="RL_TRAINING_DEBUG", help="Show the traceback of an error.", show_envvar=True)
]
