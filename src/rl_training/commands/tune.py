"""`rl-training tune`: search settings with several seeds per trial, and score the best on fresh seeds."""

import math
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.commands.launching import launch_options
from rl_training.commands.messages import command_line, reports_errors, show
from rl_training.commands.options import (
    AllowCode,
    AllowEntryPoints,
    Debug,
    Launcher,
    Overrides,
    Quiet,
    RayOptions,
    Retries,
    SlurmOptions,
    whole_number,
)
from rl_training.core.counted import counted
from rl_training.core.extras import require
from rl_training.core.import_path import search_current_folder
from rl_training.errors import ConfigError
from rl_training.experiment.config_files import load_config
from rl_training.hparams.datasets import dataset_choice
from rl_training.hparams.fields import expand_home

if TYPE_CHECKING:
    from rl_training.studies.tune_plan import Plan


class Objective(str, Enum):
    final = "final"
    area = "area"


@reports_errors
def tune(
    folder: Annotated[
        Path | None,
        typer.Argument(parser=expand_home, metavar="FOLDER", help="A study to continue, or the folder of a new one."),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="Config to start from, as for `train`.")
    ] = None,
    trials: Annotated[
        int, typer.Option(parser=whole_number(least=1), metavar="N", help="Trials in all; the given config is one.")
    ] = 40,
    seeds: Annotated[
        int | None, typer.Option(parser=whole_number(least=1), metavar="N", help="Runs per trial (default: 3).")
    ] = None,
    jobs: Annotated[int, typer.Option(parser=whole_number(least=1), metavar="N", help="Number of parallel runs.")] = 1,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME",
            help="Search only these settings, such as gamma or num_envs=4,8,16; repeatable.",
        ),
    ] = None,
    objective: Annotated[
        Objective | None,
        typer.Option(
            metavar="final|area",
            help="Value of a run: its final score (the default), or the mean over its evaluations (area).",
        ),
    ] = None,
    prune: Annotated[
        bool | None,
        typer.Option("--prune/--no-prune", help="Stop a trial that is worse than the median (default: prune)."),
    ] = None,
    halving: Annotated[
        bool | None,
        typer.Option(
            "--halving/--no-halving",
            help="Train all trials together and drop the worse half after 10 and 30 % of a run (docs/tuning.md).",
        ),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.0, metavar="H", help="Begin no trial after H hours.")] = math.inf,
    retries: Retries = 1,
    launcher: Launcher = "local",
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the search space and the cost, and stop.")] = False,
    settings: Overrides = None,
    allow_entry_points: AllowEntryPoints = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search better settings than those of a config: -c FILE begins a study, FOLDER continues one.

    The best trials and the given config are run on fresh seeds at the end; best.yaml holds the winner.
    """
    require("optuna", extra="tune", what="tune")
    from rl_training.studies.tune_plan import SPACE, continue_plan, make_plan, study_folder, write_plan

    loaded = load_config(config, settings or []) if config is not None else None
    folder = folder or (study_folder(loaded) if loaded else None)
    if folder is None:
        raise ConfigError("give a config to tune, -c FILE, or the FOLDER of a study to continue")
    is_new = not (folder / SPACE).is_file()
    choices = {"seeds": seeds, "objective": objective and objective.value, "prune": prune, "halving": halving}
    if loaded is not None and is_new:
        plan = make_plan(loaded, params or [], **choices)
    else:
        plan = continue_plan(folder, config=loaded, params=params or [], **choices)
    if allow_code:
        plan = replace(plan, config=plan.config.as_own())
    if choice := dataset_choice(plan.config.hparams):
        choice.check_given(plan.config.algo)
    launch = launch_options(
        launcher=launcher, jobs=jobs, retries=retries, slurm=slurm, ray=ray, quiet=quiet, root=folder
    )
    search_current_folder(plan.config.env_id)
    from rl_training.launching.pool import flags_of
    from rl_training.runtime.signals import EXIT_INTERRUPTED
    from rl_training.studies.study_files import BEST, REPORT
    from rl_training.studies.sweep import env_refusal
    from rl_training.studies.tuning import run_study

    if problem := env_refusal(plan.config):
        raise ConfigError(problem)
    if dry_run:
        _show_plan(folder, plan, trials)
        return
    if is_new:
        write_plan(folder, plan)
    launch = replace(launch, flags=flags_of(allow_entry_points=allow_entry_points, allow_code=allow_code))
    outcome = run_study(folder, plan, launch, trials=trials, hours=hours)
    if outcome.verdict is None:
        so_far = f"{counted(outcome.trials, 'trial')} so far"
        show([("interrupted", so_far), ("continue", _continue_line(folder, trials))])
        raise typer.Exit(EXIT_INTERRUPTED)
    for line in [*outcome.verdict.describe(plan.seeds), outcome.verdict.sentence]:
        typer.echo(line)
    show(
        [
            ("best config", str(folder / BEST)),
            ("train it", command_line("train", "-c", folder / BEST, "--seeds", "0-4")),
            ("report", str(folder / REPORT)),
            ("more trials", _continue_line(folder, 2 * outcome.trials)),
        ]
    )


def _continue_line(folder: Path, trials: int) -> str:
    return command_line("tune", folder, "--trials", trials)


def _show_plan(folder: Path, plan: "Plan", trials: int) -> None:
    from rl_training.studies.halving import steps_of_search
    from rl_training.studies.tuning import FRESH_SEEDS, RESCORED

    widths = [max(len(text) for text in column) for column in zip(*_space_rows(plan), strict=True)]
    for row in _space_rows(plan):
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    steps = plan.config.total_timesteps
    searched, fresh = trials * plan.seeds, (RESCORED + 1) * FRESH_SEEDS
    unit = "gradient steps" if plan.config.spec.loop == "offline" else "env steps"
    in_all = plan.seeds * steps_of_search(plan, trials) + fresh * steps
    typer.echo(
        f"\n{counted(trials, 'trial')} of {counted(plan.seeds, 'seed')} and {RESCORED + 1} configs on {FRESH_SEEDS} "
        f"fresh seeds: at most {searched + fresh} runs of {steps:,} {unit}, {in_all:,} in all, into {folder}"
    )


def _space_rows(plan: "Plan") -> list[tuple[str, str, str]]:
    rows = [(dimension.name, str(dimension.given), dimension.describe()) for dimension in plan.space]
    return [("setting", "given", "searched"), *rows]
