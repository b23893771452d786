"""`rl-training train` and `rl-training resume`."""

import json
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.commands.evaluate import describe_held_out, describe_returns
from rl_training.commands.launching import launch_options
from rl_training.commands.messages import EXIT_USER_ERROR, command_line, reports_errors, show
from rl_training.commands.options import (
    AllowCode,
    AllowEntryPoints,
    ChangedSettings,
    Debug,
    DryRun,
    FailFast,
    Launcher,
    Overrides,
    Quiet,
    RayOptions,
    Retries,
    RunPath,
    SlurmOptions,
    TotalTimesteps,
    Track,
    whole_number,
)
from rl_training.commands.populations import resume_members, train_members
from rl_training.core.import_path import search_current_folder
from rl_training.core.parent_death import end_with_named_parent
from rl_training.core.printable_text import printable_lines
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import build_config, load_config, parse_overrides
from rl_training.experiment.population import MEMBERS, is_population
from rl_training.hparams.datasets import dataset_choice
from rl_training.hparams.fields import expand_home
from rl_training.results.course import describe_course
from rl_training.results.return_text import return_text

if TYPE_CHECKING:
    from rl_training.launching.pool import LaunchOptions
    from rl_training.launching.seed_runs import SeedsResult
    from rl_training.runtime.trainer import RunOptions, TrainResult


@reports_errors
def train(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="YAML file, or - for stdin; the files that `list` shows work from any folder."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="The same as the argument FILE.")
    ] = None,
    algo: Annotated[str | None, typer.Option(metavar="NAME", help="Algorithm; `list` shows them.")] = None,
    env: Annotated[
        str | None, typer.Option(metavar="ID", help="Environment; module:ID imports a module of yours first.")
    ] = None,
    settings: Overrides = None,
    seed: Annotated[
        int | None, typer.Option(parser=whole_number(least=0), metavar="N", help="Seed of the run.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="LIST", help='Several runs, such as "0-4" or "0,2,5", with one summary.')
    ] = None,
    jobs: Annotated[
        int, typer.Option(parser=whole_number(least=1), metavar="N", help="With --seeds: number of parallel runs.")
    ] = 1,
    stacked: Annotated[
        bool | None,
        typer.Option(
            "--stacked/--looped",
            help="With --seeds: one population (docs/populations.md), with one update for the networks of all seeds or "
            "one seed after the other; default with --vary: stacked on a GPU, where the algorithm can be.",
            show_default=False,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2",
            help="With --seeds: train each of these values with each seed, as one population; repeatable.",
        ),
    ] = None,
    retries: Retries = 2,
    fail_fast: FailFast = False,
    launcher: Launcher = "local",
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    dry_run: DryRun = False,
    total_timesteps: TotalTimesteps = None,
    output_dir: Annotated[
        Path | None, typer.Option(parser=expand_home, metavar="DIR", help="Folder in which the run folder is created.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help='"auto", "cpu", "cuda" or "cuda:N".')] = None,
    track: Track = None,
    allow_entry_points: AllowEntryPoints = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train, evaluate and save: from a config FILE, or with --algo, --env and --total-timesteps.

    Options go before --set, and --set before the file. Ctrl-C saves first; `resume` then continues exactly.
    """
    flags = {
        "algo": algo,
        "env_id": env,
        "seed": seed,
        "total_timesteps": total_timesteps,
        "output_dir": output_dir,
        "device": device,
    }
    as_settings = [f"{name}={json.dumps(value, default=str)}" for name, value in flags.items() if value is not None]
    overrides = [*(settings or []), *as_settings]
    if file is not None and config is not None:
        raise ConfigError(f"give FILE or --config FILE, not both: found {file!r} and {config!r}")
    path = file if file is not None else config
    if path is not None:
        loaded = load_config(path, overrides)
    elif algo is not None:
        loaded = build_config({}, overrides)
    else:
        raise ConfigError(
            "give a config FILE, or --algo, --env and --total-timesteps; `rl-training list` shows algorithms and files"
        )
    if choice := dataset_choice(loaded.hparams):
        choice.check_given(loaded.algo)
    if seeds is None and (jobs > 1 or launcher != "local"):
        option = "--jobs runs" if jobs > 1 else f"--launcher {launcher} trains"
        raise ConfigError(f"{option} several seeds in parallel: give --seeds too")
    if seeds is not None and seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    is_population = stacked is not None or bool(vary)
    if is_population:
        option = "--vary" if stacked is None else "--stacked" if stacked else "--looped"
        if seeds is None:
            raise ConfigError(f"{option} trains several members: give --seeds too")
        if jobs > 1 or launcher != "local":
            raise ConfigError(f"{option} trains all members in this process: leave --jobs and --launcher out")
    search_current_folder(loaded.env_id)
    from rl_training.runtime.trainer import RunOptions
    from rl_training.runtime.trainer import train as run_training

    options = RunOptions(
        track=track or (),
        show_progress=not quiet,
        allow_entry_points=allow_entry_points,
        allow_code=allow_code,
    )
    if seeds is not None and is_population:
        train_members(loaded, seeds, vary or [], stacked=stacked, options=options)
    elif seeds is not None:
        launch = launch_options(
            launcher=launcher,
            jobs=jobs,
            retries=retries,
            fail_fast=fail_fast,
            slurm=slurm,
            ray=ray,
            dry_run=dry_run,
        )
        _train_seeds(loaded, seeds, options, launch)
    else:
        _show_result(run_training(loaded, options))


def _train_seeds(config: TrainConfig, seeds: str, options: "RunOptions", launch: "LaunchOptions") -> None:
    from rl_training.core.seeding import parse_seeds
    from rl_training.launching.seed_runs import run_seeds
    from rl_training.runtime.signals import EXIT_INTERRUPTED

    result: SeedsResult = run_seeds(config, parse_seeds(seeds), options=options, launch=launch)
    scores = {seed: return_text(score) for seed, score in result.results.items()}
    failed = {seed: f"failed: {message}" for seed, message in result.failed.items()}
    rows = [(f"seed {seed}", text) for seed, text in sorted((scores | failed).items())]
    if result.summary is not None:
        rows.append(("all seeds", str(result.summary)))
    rows.append(("folder", str(result.folder)))
    if result.interrupted and not launch.dry_run:
        rows.append(("continue", "the same command again; finished seeds are not run twice"))
    show(rows)
    if launch.dry_run:
        return
    if result.failed:
        raise typer.Exit(EXIT_USER_ERROR)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


@reports_errors
def resume(
    path: RunPath,
    total_timesteps: TotalTimesteps = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(parser=expand_home, metavar="DIR", help="Continue in a new run folder in DIR; the old one stays."),
    ] = None,
    settings: ChangedSettings = None,
    track: Track = None,
    allow_entry_points: AllowEntryPoints = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue a run from its newest checkpoint, exactly as if it had never stopped; a finished run stays as it is.

    With --set it continues with other settings in a new run folder; the old one stays. The folder of a population
    continues all members that have not ended.
    """
    end_with_named_parent()
    from rl_training.runtime.resuming import RunFinishedError
    from rl_training.runtime.trainer import RunOptions
    from rl_training.runtime.trainer import resume as resume_training

    options = RunOptions(
        track=track or (),
        show_progress=not quiet,
        allow_entry_points=allow_entry_points,
        allow_code=allow_code,
    )
    changes = parse_overrides(settings or [])
    if is_population(path):
        if total_timesteps is not None or output_dir is not None or changes:
            raise ConfigError(
                f"{path} is a population, which continues as it is: other settings are for single runs, such as "
                f"{path / MEMBERS / '000'}"
            )
        resume_members(path, options)
        return
    try:
        result = resume_training(
            path, options, total_timesteps=total_timesteps, output_dir=output_dir, settings=changes
        )
    except RunFinishedError as finished:
        if output_dir is not None or changes:
            raise
        typer.echo(printable_lines(str(finished)))  # not an error: a batch job may resume until the run is finished
    else:
        _show_result(result)


def _show_result(result: "TrainResult") -> None:
    """Show how training ended and which commands come next."""
    from rl_training.acceleration.compile_watch import seconds_compiling
    from rl_training.experiment.run_dir import read_run_config
    from rl_training.runtime.signals import EXIT_INTERRUPTED

    config = read_run_config(result.run_dir)
    is_offline = config.spec.loop == "offline"
    updates = "" if is_offline else f"{result.gradient_step:,} gradient steps; "
    rows = []
    if result.eval_episodes:
        rows.append(("evaluation", describe_returns(result.eval_episodes)))
    prefix = "held_out_"
    held_out = {name.removeprefix(prefix): x for name, x in result.metrics.items() if name.startswith(prefix)}
    if held_out:
        rows.append(("held out", describe_held_out(held_out)))
    if course := describe_course(result.run_dir, encoding=sys.stdout.encoding):
        rows.append(("course", course))
    rows += [
        ("gradient steps" if is_offline else "steps", f"{result.step:,} ({updates}{result.stop_reason})"),
        ("wall time", _describe_time(result.step, result.wall_s, seconds_compiling())),
        ("run folder", str(result.run_dir)),
        ("evaluate it", command_line("evaluate", result.run_dir)),
    ]
    if result.interrupted:
        rows.append(("resume it", command_line("resume", result.run_dir)))
    else:
        rows.append(("train on", command_line("resume", result.run_dir, "--total-timesteps", 2 * result.step)))
    if config.tensorboard:
        rows.append(("see curves", shlex.join(["tensorboard", "--logdir", str(result.run_dir)])))
    show(rows)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _describe_time(steps: int, wall_s: float, compile_s: float) -> str:
    """Return the time of a run and its speed, which does not count compilation."""
    wall = f"{wall_s:.1f} s" if wall_s < 60 else str(timedelta(seconds=round(wall_s)))
    compiling = f"{compile_s:.0f} s to compile, then " if compile_s >= 1 else ""
    return f"{wall} ({compiling}{steps / max(wall_s - compile_s, 1e-9):,.0f} steps/s)"
