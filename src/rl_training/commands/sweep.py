"""`rl-training sweep`: run every combination of settings that a file lists, and compare them."""

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.commands.compare import show_table
from rl_training.commands.launching import launch_options
from rl_training.commands.messages import EXIT_USER_ERROR, command_line, reports_errors, show
from rl_training.commands.options import (
    AllowEntryPoints,
    Debug,
    FailFast,
    Launcher,
    Quiet,
    RayOptions,
    Retries,
    SlurmOptions,
    whole_number,
)
from rl_training.core.counted import counted
from rl_training.hparams.fields import expand_home

if TYPE_CHECKING:
    from rl_training.launching.pool import LaunchOptions
    from rl_training.studies.sweep import SweepResult
    from rl_training.studies.sweep_file import Sweep

_SHOWN = 10  # folders that are not in the file

log = logging.getLogger("rl_training")


@reports_errors
def sweep(
    file: Annotated[
        Path, typer.Argument(parser=expand_home, metavar="FILE", help="YAML file with configs, set, grid and seeds.")
    ],
    jobs: Annotated[int, typer.Option(parser=whole_number(least=1), metavar="N", help="Number of parallel runs.")] = 1,
    retries: Retries = 2,
    fail_fast: FailFast = False,
    launcher: Launcher = "local",
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, show the plan (with slurm: also the job), run nothing."),
    ] = False,
    allow_entry_points: AllowEntryPoints = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run every combination of a grid of settings with several seeds; write tables and a report.

    The runs of sweeps/lr.yaml lie in sweeps/lr/. The same command continues after an interruption, and runs what is new
    in the file.
    """
    from rl_training.studies.sweep_file import read_sweep

    planned = read_sweep(file)
    options = launch_options(
        launcher=launcher,
        jobs=jobs,
        retries=retries,
        fail_fast=fail_fast,
        slurm=slurm,
        ray=ray,
        dry_run=dry_run and launcher == "slurm",
        quiet=quiet,
        root=planned.folder,
    )
    from rl_training.launching.pool import flags_of
    from rl_training.runtime.signals import EXIT_INTERRUPTED
    from rl_training.studies.sweep import check_environments, run_sweep

    options = replace(options, flags=flags_of(allow_entry_points=allow_entry_points, allow_code=False))
    check_environments(planned)
    if dry_run:
        _show_plan(planned, options)
        return
    log.info(_describe(planned))
    result = run_sweep(planned, options, command=command_line(*sys.argv[1:]))
    _show_result(planned, result)
    if result.failed:
        raise typer.Exit(EXIT_USER_ERROR)
    if result.unfinished:
        raise typer.Exit(EXIT_INTERRUPTED)


def _show_plan(sweep: "Sweep", options: "LaunchOptions") -> None:
    show([(each.label, counted(each.config.total_timesteps, "step")) for each in sweep.combinations])
    typer.echo(_describe(sweep))
    if options.dry_run:
        from rl_training.launching.slurm import show_job

        show_job(options, len(sweep.combinations) * len(sweep.seeds))


def _describe(sweep: "Sweep") -> str:
    """Return the size of a sweep in one line."""
    combinations, seeds = len(sweep.combinations), len(sweep.seeds)
    steps = seeds * sum(combination.config.total_timesteps for combination in sweep.combinations)
    return (
        f"{counted(combinations * seeds, 'run')}: {counted(combinations, 'combination')} x {counted(seeds, 'seed')}, "
        f"{counted(steps, 'step')} in all"
    )


def _show_result(sweep: "Sweep", result: "SweepResult") -> None:
    for env_id, rows in result.rows.items():
        typer.echo(f"{env_id}:")
        show_table(rows)
    lines = [(f"failed: {folder.relative_to(sweep.folder)}", message) for folder, message in result.failed.items()]
    left_out = [str(folder.relative_to(sweep.folder)) for folder in result.not_in_file]
    if left_out:
        more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        lines.append(("not in the file", f"{', '.join(left_out[:_SHOWN])}{more}"))
    if (report := sweep.folder / "report.html").is_file():
        lines.append(("report", str(report)))
    if result.unfinished:
        left = f"{counted(result.unfinished, 'run')} left"
        lines.append((left, "the same command continues; finished runs are not run twice"))
    show(lines)
