"""The command line: `rl-training train | evaluate | resume | predict | record | dataset | list | config | doctor`.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 a bug of ours (or a finding of `doctor`),
2 a mistake the user can mend, 75 interrupted and saved, 130 interrupted at once.
Torch is imported inside the commands that need it, so that help and config errors answer at once.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated

import typer

import rl_training
from rl_training.commands.datasets import AllowEntryPoints, dataset_app, record
from rl_training.commands.messages import EXIT_BUG, PROGRAM, AsJson, Debug, Quiet, answers_errors, command_line, show
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config, packaged_configs
from rl_training.experiment.registry import AlgorithmSpec, registry

if TYPE_CHECKING:
    from rl_training.experiment.checkpointing import Checkpoint
    from rl_training.runtime.evaluation import EvalEpisode
    from rl_training.runtime.seed_runs import SeedsResult
    from rl_training.runtime.trainer import RunOptions, TrainResult

_PROGRESS_SECONDS = 5.0

log = logging.getLogger("rl_training")

app = typer.Typer(
    help="Train, evaluate and resume reinforcement-learning agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at settings.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(dataset_app, name="dataset")

ConfigFile = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML file; those that `list` shows work from any folder.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as algo_kwargs.gamma=0.98; repeatable.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="PATH", help="A run folder, or one checkpoint folder in it.")]
Best = Annotated[bool, typer.Option("--best", help="Take the checkpoint with the best evaluation, not the newest.")]
TotalTimesteps = Annotated[int | None, typer.Option(metavar="N", help="Env steps in all (gradient steps if offline).")]


def main() -> None:
    """Run the command line; the console script `rl-training`."""
    app(prog_name=PROGRAM)


# --- Commands --------------------------------------------------------------------------------------------------------


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


@app.command()
@answers_errors
def train(
    config: ConfigFile,
    settings: Overrides = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the run, in place of the file's.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="LIST", help='Several runs, such as "0-4" or "0,2,5", with one summary.')
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="With --seeds: runs at the same time.")] = 1,
    total_timesteps: TotalTimesteps = None,
    output_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder in which the run's folder is made.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help='"auto", "cpu", "cuda" or "cuda:N".')] = None,
    allow_entry_points: AllowEntryPoints = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train from a config file, evaluate and save. Ctrl-C saves first; `resume` then continues exactly."""
    flags = {"seed": seed, "total_timesteps": total_timesteps, "output_dir": output_dir, "device": device}
    as_settings = [f"{name}={json.dumps(value, default=str)}" for name, value in flags.items() if value is not None]
    loaded = load_config(config, [*(settings or []), *as_settings])
    if seeds is None and jobs > 1:
        raise ConfigError("--jobs runs several seeds at the same time: give --seeds too")
    if seeds is not None and seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    from rl_training.runtime.trainer import RunOptions
    from rl_training.runtime.trainer import train as run_training

    options = RunOptions(show_progress=not quiet, allow_entry_points=allow_entry_points)
    if seeds is not None:
        _train_seeds(loaded, seeds, jobs, options)
    else:
        _end_training(run_training(loaded, options))


def _train_seeds(config: TrainConfig, seeds: str, jobs: int, options: "RunOptions") -> None:
    from rl_training.runtime.seed_runs import EXIT_INTERRUPTED, parse_seeds, run_seeds

    result: SeedsResult = run_seeds(config, parse_seeds(seeds), jobs=jobs, options=options)
    rows = [(f"seed {seed}", f"{score:.1f}") for seed, score in sorted(result.results.items())]
    if result.summary is not None:
        rows.append(("all seeds", str(result.summary)))
    rows.append(("folder", str(result.folder)))
    if result.interrupted:
        rows.append(("continue", "the same command again; finished seeds are not run twice"))
    show(rows)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command()
@answers_errors
def resume(
    path: RunPath,
    total_timesteps: TotalTimesteps = None,
    output_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue in a new run folder made in here; the old one stays.")
    ] = None,
    allow_entry_points: AllowEntryPoints = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue a run from its newest checkpoint, exactly as if it had never stopped."""
    from rl_training.runtime.trainer import RunOptions
    from rl_training.runtime.trainer import resume as resume_training

    options = RunOptions(show_progress=not quiet, allow_entry_points=allow_entry_points)
    _end_training(resume_training(path, options, total_timesteps=total_timesteps, output_dir=output_dir))


def _end_training(result: "TrainResult") -> None:
    """Show how training ended and what to type next."""
    from rl_training.experiment.run_dir import read_run_config
    from rl_training.runtime.seed_runs import EXIT_INTERRUPTED

    wall = f"{result.wall_s:.1f} s" if result.wall_s < 60 else str(timedelta(seconds=round(result.wall_s)))
    is_offline = read_run_config(result.run_dir).spec.loop == "offline"
    updates = "" if is_offline else f"{result.gradient_step:,} gradient steps; "
    rows = [
        ("gradient steps" if is_offline else "steps", f"{result.step:,} ({updates}{result.stop_reason})"),
        ("wall time", f"{wall} ({result.step / max(result.wall_s, 1e-9):,.0f} steps/s)"),
        ("run folder", str(result.run_dir)),
        ("evaluate it", command_line("evaluate", result.run_dir)),
    ]
    told = {n.removeprefix("held_out_"): value for n, value in result.metrics.items() if n.startswith("held_out_")}
    if told:
        rows.insert(0, ("held out", describe_held_out(told)))
    if result.eval_episodes:
        rows.insert(0, ("evaluation", describe_returns(result.eval_episodes)))
    if result.interrupted:
        rows.append(("resume it", command_line("resume", result.run_dir)))
    else:
        rows.append(("train on", command_line("resume", result.run_dir, "--total-timesteps", 2 * result.step)))
    show(rows)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def describe_returns(episodes: "Sequence[EvalEpisode]") -> str:
    returns = [episode.ret for episode in episodes]
    spread = f"{len(returns)} episodes, min {min(returns):.1f}, max {max(returns):.1f}"
    return f"{fmean(returns):.1f} ± {pstdev(returns):.1f} ({spread})"


@app.command()
@answers_errors
def evaluate(
    path: RunPath,
    episodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Episodes to play; the config's eval_episodes if not given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="S", help="Play other episodes than the run's own evaluations did.")
    ] = None,
    best: Best = False,
    allow_entry_points: AllowEntryPoints = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Play whole episodes with a trained policy, without exploration; without an environment, ask held-out data."""
    from rl_training.core.seeding import Streams
    from rl_training.experiment.checkpointing import find_checkpoint, open_checkpoint
    from rl_training.runtime.evaluation import Evaluator
    from rl_training.runtime.setup import RunOptions, env_factory_of, load_policy

    found = find_checkpoint(path, "best" if best else "latest")
    if not open_checkpoint(found, parts=()).config.env_id:
        _evaluate_on_held_out(
            open_checkpoint(found), RunOptions(allow_entry_points=allow_entry_points), as_json=as_json
        )
        return
    checkpoint, algorithm = load_policy(found)
    config = checkpoint.config
    seeds = Streams(config.seed if seed is None else seed).eval_seeds(episodes or config.eval_episodes)
    evaluator = Evaluator(env_factory_of(config, RunOptions()))
    try:
        played = evaluator.evaluate(algorithm, seeds, step=checkpoint.step, on_episode=_episode_progress(len(seeds)))
    finally:
        evaluator.close()
    if as_json:
        returns = [episode.ret for episode in played]
        record = {
            "checkpoint": str(checkpoint.path),
            "step": checkpoint.step,
            "mean": fmean(returns),
            "std": pstdev(returns),
            "min": min(returns),
            "max": max(returns),
            "episodes": [episode.record() for episode in played],
        }
        typer.echo(json.dumps(record))
    else:
        show([("evaluation", describe_returns(played)), ("checkpoint", str(checkpoint.path))])


def _evaluate_on_held_out(checkpoint: "Checkpoint", options: "RunOptions", *, as_json: bool) -> None:
    from rl_training.runtime.offline_evaluation import evaluate_checkpoint_offline

    told = evaluate_checkpoint_offline(checkpoint, options)
    if as_json:
        typer.echo(json.dumps({"checkpoint": str(checkpoint.path), "step": checkpoint.step, "held_out": told}))
    else:
        show([("held out", describe_held_out(told)), ("checkpoint", str(checkpoint.path))])


def describe_held_out(told: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in told.items())


def _episode_progress(total: int) -> "Callable[[EvalEpisode], None]":
    """Tell now and then how far a long evaluation is; a short one is silent."""
    returns: list[float] = []
    reported_at = time.monotonic()

    def on_episode(episode: "EvalEpisode") -> None:
        nonlocal reported_at
        returns.append(episode.ret)
        if time.monotonic() - reported_at >= _PROGRESS_SECONDS:
            reported_at = time.monotonic()
            log.info("episode %d/%d: return %.1f, mean %.1f", len(returns), total, episode.ret, fmean(returns))

    return on_episode


@app.command()
@answers_errors
def predict(
    path: RunPath,
    obs: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="One observation or a list of them; an object if it has parts. - reads JSON from stdin, one per line.",
        ),
    ],
    best: Best = False,
    debug: Debug = False,
) -> None:
    """Give the greedy action for observations, as JSON."""
    from rl_training.api.algorithms import managed_class
    from rl_training.experiment.checkpointing import find_checkpoint, open_checkpoint

    found = find_checkpoint(path, "best" if best else "latest")
    agent = managed_class(open_checkpoint(found, parts=()).config.algo).load(found)
    for place, text in _observations(obs):
        try:
            actions = agent.predict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{place}: {error}") from error
        typer.echo(json.dumps(actions.tolist()))


def _observations(obs: str) -> Iterator[tuple[str, str]]:
    """Give each observation's place, for messages, and its text."""
    if obs != "-":
        yield "--obs", obs
        return
    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            yield f"line {number} of the input", line


app.command()(record)


@app.command(name="list")
@answers_errors
def list_algorithms(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the algorithms and the configs that come with the package."""
    rows = [_algorithm_row(spec) for spec in registry().values()]
    configs = [f"configs/{name}" for name in packaged_configs()]
    if as_json:
        typer.echo(json.dumps({"algorithms": rows, "configs": configs}))
        return
    titles = ["algo", "class", "summary", "actions"]  # what a terminal has room for; --json tells all
    widths = [max(len(title), *(len(row[title]) for row in rows)) for title in titles]
    for cells in [titles, *([row[title] for title in titles] for row in rows)]:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    typer.echo("\nshipped configs")
    folders: dict[str, list[str]] = {}
    for folder, name in (name.rsplit("/", 1) for name in configs):
        folders.setdefault(f"  {folder}/", []).append(name)
    show([(folder, " ".join(names)) for folder, names in folders.items()])


def _algorithm_row(spec: AlgorithmSpec) -> dict[str, str]:
    return {
        "algo": spec.name,
        "class": spec.class_name,
        "loop": spec.loop,
        "actions": ", ".join(sorted(spec.actions)),
        "observations": ", ".join(sorted(spec.observations)),
        "reference config": f"configs/{spec.reference_config}",
        "summary": spec.summary,
    }


@config_app.command(name="show")
@answers_errors
def configshow(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML file, as for `train --config`.")],
    settings: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show a config with every default filled in and every setting explained; the output is a config itself."""
    from rl_training.experiment.config_text import annotated_yaml

    typer.echo(annotated_yaml(load_config(file, settings or [])), nl=False)


@config_app.command(name="schema")
@answers_errors
def config_schema(
    algo: Annotated[str | None, typer.Argument(help="One algorithm; all of them if not given.")] = None,
    debug: Debug = False,
) -> None:
    """Write the JSON Schema of config files, for completion and checks in an editor."""
    from rl_training.experiment.config_text import json_schema

    typer.echo(json.dumps(json_schema(algo), indent=2))


@app.command()
@answers_errors
def doctor(
    output_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are to be kept.")] = Path("runs"),
    debug: Debug = False,
) -> None:
    """Check this machine: packages, devices, compiler, memory, disk, and a moment of training."""
    from rl_training.commands.doctor import examine

    faults = 0
    for finding in examine(output_dir):
        faults += finding.verdict == "fix"
        typer.echo(f"{finding.verdict:<5} {finding.subject:<12} {finding.text}")
    if faults:
        typer.echo(f"{faults} to mend, marked `fix` above")
        raise typer.Exit(EXIT_BUG)
    typer.echo("all is well: rl-training train --config configs/dqn/cartpole.yaml")
