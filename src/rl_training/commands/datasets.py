"""`rl-training record` and `rl-training dataset inspect | convert`: make, look at and rewrite datasets."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.messages import AsJson, Debug, Quiet, answers_errors, command_line, show
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from rl_training.datasets.transition_dataset import TransitionDataset
    from rl_training.datasets.transitions import Transitions
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.recording import Player, Recorder

log = logging.getLogger("rl_training")

dataset_app = typer.Typer(help="Look at datasets and convert them.", no_args_is_help=True)

_PROGRESS_SECONDS = 2.0
_BARS = 12  # of a histogram
_CHOICES = 20  # whose shares are shown

DatasetPath = Annotated[
    Path, typer.Argument(metavar="DATASET", help="A .npz, .hdf5 or .parquet file, or the folder of a Minari dataset.")
]
AllowEntryPoints = Annotated[
    bool,
    typer.Option(
        "--allow-entry-points", help="Read a dataset whose metadata name code that is not known here; it is not run."
    ),
]

EnvOfDataset = Annotated[
    str | None,
    typer.Option(
        "--env", metavar="ID", help="The environment whose spaces it must fit, if it does not declare its own."
    ),
]


@answers_errors
def record(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DATASET", help="A .npz, .hdf5 or .parquet file, or a Minari folder.")
    ],
    run: Annotated[
        list[Path] | None,
        typer.Option("--run", metavar="PATH", help="A run folder or checkpoint whose policy acts; repeatable."),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(metavar="X", help="Part of each --run, in their order; equal parts if not given."),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Act at random, in --env.")] = False,
    env: Annotated[str | None, typer.Option(metavar="ID", help="With --random: the environment.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Steps to record.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Whole episodes to record.")] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="Determines the episodes.")] = 0,
    noise: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="X", help="Deviation of noise on actions in [-1, 1]; for choices, share of random ones."
        ),
    ] = 0.0,
    explore: Annotated[bool, typer.Option("--explore", help="Explore as in training, not greedily.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Take the runs' best checkpoints, not the newest.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Record a dataset with trained policies or random actions. Interrupted, the same command goes on."""
    if random == bool(run):
        raise ConfigError("give --run, once or more, or --random with --env")
    if random and (env is None or explore or noise or best or share):
        raise ConfigError("--random needs --env, and takes no --explore, --noise, --share or --best")
    if env is not None and not random:
        raise ConfigError("--env goes with --random: a run has its own environment")
    if share is not None and len(share) != len(run or []):
        raise ConfigError(f"give one --share per --run: there are {len(share)} for {len(run or [])}")
    from rl_training.envs.factory import make_env_factory
    from rl_training.envs.vector import SyncEnvs
    from rl_training.runtime.policies import noisy_policy, random_policy
    from rl_training.runtime.recording import Plan, Player, Recorder

    if env is not None:
        env_id, env_kwargs = env, dict[str, Any]()
    else:
        loaded = [_load(path, best=best, explore=explore) for path in run or []]
        env_id, env_kwargs = _common_env([config for config, _ in loaded])
    factory = make_env_factory(env_id, env_kwargs)
    with SyncEnvs(factory) as envs:
        space = envs.action_space
    if env is not None:
        players = [Player("random", random_policy(space))]
    else:
        shares = share or [1.0] * len(loaded)
        players = [
            replace(player, policy=noisy_policy(player.policy, noise, space), share=part)
            for (_, player), part in zip(loaded, shares, strict=True)
        ]
    details = {"env_kwargs": env_kwargs, "noise": noise, "explore": explore}
    plan = Plan(players=players, seed=seed, steps=steps, episodes=episodes, env_id=env_id, details=details)
    _record(Recorder(plan, factory, out))


def _load(path: Path, *, best: bool, explore: bool) -> "tuple[TrainConfig, Player]":
    """Give a run's config and its policy."""
    from rl_training.core.seeding import RepeatableStreams
    from rl_training.runtime.policies import trained_policy
    from rl_training.runtime.recording import Player
    from rl_training.runtime.setup import load_policy

    streams = RepeatableStreams(0)  # each episode has its own seed
    checkpoint, algorithm = load_policy(path, pointer="best" if best else "latest", streams=streams)
    policy = trained_policy(algorithm, streams, step=checkpoint.step, explore=explore)
    return checkpoint.config, Player(str(checkpoint.path.resolve()), policy)


def _common_env(configs: "Sequence[TrainConfig]") -> tuple[str, dict[str, Any]]:
    first = configs[0]
    if not first.env_id:
        raise ConfigError("the run has no environment to record in: its env_id is empty")
    for other in configs[1:]:
        if (other.env_id, other.env_kwargs) != (first.env_id, first.env_kwargs):
            raise ConfigError(
                f"the runs must be of one environment, found {first.env_id} {first.env_kwargs} "
                f"and {other.env_id} {other.env_kwargs}"
            )
    return first.env_id, dict(first.env_kwargs)


def _record(recorder: "Recorder") -> None:
    from rl_training.runtime.seed_runs import EXIT_INTERRUPTED
    from rl_training.runtime.signals import signals_handled

    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    started = time.monotonic()
    with signals_handled(stop):
        complete = recorder.run(should_stop=lambda: bool(received), on_episode=_progress(recorder))
    rows = [("recorded", f"{recorder.rows:,} steps in {recorder.episodes:,} episodes")]
    if recorder.returns:
        spread = f"min {min(recorder.returns):.1f}, max {max(recorder.returns):.1f}"
        rows.append(("returns", f"{fmean(recorder.returns):.1f} ({len(recorder.returns):,} episodes, {spread})"))
    rows.append(("wall time", f"{time.monotonic() - started:.1f} s"))
    if complete:
        rows += [("dataset", str(recorder.out)), ("look at it", command_line("dataset", "inspect", recorder.out))]
    else:
        rows.append(("continue", "the same command again"))
    show(rows)
    if not complete:
        raise typer.Exit(EXIT_INTERRUPTED)


def _progress(recorder: "Recorder") -> Callable[[], None]:
    """Tell now and then how far a long recording is."""
    unit = "steps" if recorder.plan.steps is not None else "episodes"
    reported_at = time.monotonic()

    def on_episode() -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _PROGRESS_SECONDS:
            reported_at = time.monotonic()
            mean = fmean(recorder.returns[-100:])
            log.info("%s/%s %s, mean return %.1f", f"{recorder.amount:,}", f"{recorder.total:,}", unit, mean)

    return on_episode


# --- inspect ---------------------------------------------------------------------------------------------------------


@dataset_app.command()
@answers_errors
def inspect(
    path: DatasetPath,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw returns, lengths and actions.")] = None,
    env: EnvOfDataset = None,
    allow_entry_points: AllowEntryPoints = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a dataset and show what it holds: rows, episodes, returns, lengths, flags, actions."""
    from rl_training.datasets.files import file_kind

    _, dataset = _read(path, env, allow_entry_points=allow_entry_points)
    facts = _facts(dataset) | {"format": file_kind(path)}
    if png is not None:
        _draw(dataset, png)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    returns, lengths = facts["returns"], facts["lengths"]
    show(
        [
            ("dataset", f"{path} ({facts['format']})"),
            ("environment", dataset.env_id or "not named"),
            ("observations", str(dataset.spaces.observation)),
            ("actions", str(dataset.spaces.action)),
            ("rows", f"{facts['rows']:,}"),
            ("episodes", f"{facts['episodes']:,} ({', '.join(_ends(facts))})"),
            ("lengths", f"mean {lengths['mean']:.1f}, min {lengths['min']:.0f}, max {lengths['max']:.0f}"),
            ("returns", f"mean {returns['mean']:.1f}, min {returns['min']:.1f}, max {returns['max']:.1f}"),
        ]
    )
    typer.echo("\nreturns of episodes")
    _histogram(dataset.episode_returns())
    typer.echo("\nshares of each choice" if facts["choices"] else "\nactions per dimension, spread to [-1, 1]")
    for row in facts["coverage"]:
        typer.echo("  " + row["text"])
    if png is not None:
        typer.echo(f"\ndrawn in {png}")


def _read(path: Path, env: str | None, *, allow_entry_points: bool) -> "tuple[Transitions, TransitionDataset]":
    """Read a dataset and check it, by the spaces of the environment if one is named."""
    from rl_training.datasets.files import read_transitions
    from rl_training.datasets.transition_dataset import TransitionDataset
    from rl_training.envs.factory import make_env_factory
    from rl_training.runtime.setup import spaces_of

    spaces = None if env is None else spaces_of(make_env_factory(env, {}))
    found = read_transitions(path, allow_entry_points=allow_entry_points)
    return found, TransitionDataset.from_transitions(found, spaces)


def _ends(facts: dict[str, Any]) -> list[str]:
    open_end = [f"{facts['open']} without an end"] if facts["open"] else []
    return [f"{facts['terminated']:,} terminated", f"{facts['truncated']:,} cut", *open_end]


def _facts(dataset: "TransitionDataset") -> dict[str, Any]:
    def spread(values: "np.ndarray") -> dict[str, float]:
        return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}

    terminated = int(dataset.terminated[dataset.episode_ends].sum())
    is_open = int(not (dataset.terminated[-1] or dataset.truncated[-1]))
    coverage, choices = _coverage(dataset)
    return {
        "rows": len(dataset),
        "episodes": len(dataset.episode_ends),
        "terminated": terminated,
        "truncated": len(dataset.episode_ends) - terminated - is_open,
        "open": is_open,
        "env_id": dataset.env_id,
        "returns": spread(dataset.episode_returns()),
        "lengths": spread(dataset.episode_lengths()),
        "choices": choices,
        "coverage": coverage,
    }


def _coverage(dataset: "TransitionDataset") -> tuple[list[dict[str, Any]], bool]:
    """Say how actions spread: per dimension the share of 20 equal parts that were tried, or of each choice."""
    import numpy as np
    from gymnasium.spaces import Discrete

    columns, space = dataset.actions.reshape(len(dataset), -1), dataset.spaces.action
    rows: list[dict[str, Any]] = []
    if columns.dtype.kind != "f":
        sizes = np.ravel(getattr(space, "nvec", space.n if isinstance(space, Discrete) else 2))
        for index, column in enumerate(columns.T):
            counts = np.bincount(column, minlength=sizes[index % len(sizes)])
            shares = (counts / len(column)).round(4).tolist()
            text = "  ".join(f"{choice}: {100 * share:.1f} %" for choice, share in enumerate(shares[:_CHOICES]))
            more = f"  and {len(shares) - _CHOICES} more" if len(shares) > _CHOICES else ""
            made = f"{np.count_nonzero(counts)} of {len(counts)} tried"
            rows.append({"dimension": index, "shares": shares, "text": f"{index}  {made}  {text}{more}"})
        return rows, True
    for index, column in enumerate(columns.T):
        tried = np.count_nonzero(np.histogram(column, 20, (-1.0, 1.0))[0]) / 20
        at_bounds = float((np.abs(column) > 0.999).mean())
        spread = f"mean {column.mean():+.2f} ± {column.std():.2f}, from {column.min():+.2f} to {column.max():+.2f}"
        text = f"{index}  {spread}, {100 * tried:.0f} % of the range tried, {100 * at_bounds:.1f} % at the bounds"
        values = {"mean": float(column.mean()), "std": float(column.std()), "tried": tried, "at_bounds": at_bounds}
        rows.append({"dimension": index, **values, "text": text})
    return rows, False


def _histogram(values: "np.ndarray") -> None:
    import numpy as np
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    counts, edges = np.histogram(values, _bins(values, _BARS))
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(width=40)
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        table.add_row(f"{low:,.4g} to {high:,.4g}", f"{count:,}", Bar(counts.max(), 0, count))
    Console(highlight=False).print(table)


def _bins(values: "np.ndarray", most: int) -> int:
    """Give no more parts than there are values, and one for values that differ by rounding alone."""
    import numpy as np

    nearly_equal = np.ptp(values) <= 1e-6 * np.abs(values).max()
    return 1 if nearly_equal else min(most, len(np.unique(values)))


def _draw(dataset: "TransitionDataset", png: Path) -> None:
    from rl_training.datasets.formats import import_optional

    if png.suffix.lower() != ".png":
        raise ConfigError(f"--png must name a file ending in .png, got {png}")
    matplotlib = import_optional("matplotlib.figure", "--png")
    figure = matplotlib.Figure(figsize=(12, 3.5), layout="constrained")
    parts = (
        ("returns of episodes", dataset.episode_returns(), 30),
        ("lengths of episodes", dataset.episode_lengths(), 30),
        ("actions", dataset.actions.reshape(len(dataset), -1), 20),
    )
    for axes, (title, values, bins) in zip(figure.subplots(1, len(parts)), parts, strict=True):
        axes.hist(values, bins=_bins(values, bins))
        axes.set_title(title)
    figure.savefig(png)


# --- convert ---------------------------------------------------------------------------------------------------------


@dataset_app.command()
@answers_errors
def convert(
    source: DatasetPath,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The new dataset; its name says the format.")],
    env: EnvOfDataset = None,
    allow_entry_points: AllowEntryPoints = False,
    debug: Debug = False,
) -> None:
    """Check a dataset and write it in another format: npz, hdf5 (D4RL), parquet or a Minari folder."""
    from rl_training.datasets.files import check_new, write_transitions

    check_new(target)
    found, checked = _read(source, env, allow_entry_points=allow_entry_points)
    write_transitions(replace(found, spaces=checked.spaces, env_id=env or found.env_id), target)
    show([("dataset", str(target)), ("rows", f"{len(checked):,} in {len(checked.episode_ends):,} episodes")])
