"""Options and arguments that several commands share."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rl_training.hparams.fields import expand_home


def whole_number(*, least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` on, written as 10000, 10_000 or 1e4."""

    def parse(text: str) -> int:
        for read in (int, float):
            with contextlib.suppress(ValueError, OverflowError):  # also raised by `int` of NaN and infinity
                number = read(text)
                if number == int(number) and number >= least:
                    return int(number)
        raise typer.BadParameter(f"must be a whole number >= {least}, got {text!r}")

    return parse


Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as algo_kwargs.gamma=0.9; repeatable.",
    ),
]
ChangedSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Continue with another setting, such as algo_kwargs.learning_rate=1e-4, in a new run folder; repeatable.",
    ),
]
TotalTimesteps = Annotated[
    int | None,
    typer.Option(
        parser=whole_number(least=1), metavar="N", help="Total env steps (gradient steps if offline), such as 1e5."
    ),
]
RunPath = Annotated[
    Path, typer.Argument(parser=expand_home, metavar="PATH", help="A run folder, or a checkpoint folder in it.")
]
Best = Annotated[bool, typer.Option("--best", help="Use the checkpoint with the best evaluation, not the newest.")]
EvalSeed = Annotated[
    int | None,
    typer.Option(
        parser=whole_number(least=0), metavar="S", help="Play other episodes than the evaluations of the run."
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER",
        help="Send the records to mlflow, wandb, trackio or another tracker, also after a resume; options follow as "
        "NAME:KEY=VALUE,...; repeatable.",
    ),
]
AllowEntryPoints = Annotated[
    bool,
    typer.Option(
        "--allow-entry-points", help="Read a dataset although its metadata name unknown code; the code is not run."
    ),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Import the code that a run of another user names, such as module:EnvId. Only if you trust its author.",
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        parser=whole_number(least=0),
        metavar="N",
        help="How often a run that fails is tried again; a new checkpoint in between starts the count again.",
    ),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop all runs at the first failure, without retries.")]
Launcher = Annotated[
    str,
    typer.Option(metavar="NAME", help="Where the runs are trained: local, slurm (sbatch) or ray."),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="Option of sbatch, such as time=4:00:00; repeatable."),
]
RayOptions = Annotated[
    list[str] | None,
    typer.Option("--ray", metavar="KEY=VALUE", help="address, or num_cpus and num_gpus of a worker; repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With slurm: write the job, show the command, submit nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only warnings and the result.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="RL_TRAINING_DEBUG", help="Show the traceback of an error.", show_envvar=True)
]
