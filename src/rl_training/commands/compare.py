"""`rl-training compare` and `rl-training plot`: look at runs, also while they train."""

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.messages import reports_errors
from rl_training.commands.options import AsJson, Debug, whole_number
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.results.comparison import Anchors, Row
    from rl_training.results.figures import Figure
    from rl_training.results.runs import Runs

EVAL_RETURN = "eval/return"
_MAX_WIDTH = 60  # of a label in the table


class Kind(str, Enum):
    curve = "curve"
    interval = "interval"
    profile = "profile"
    improvement = "improvement"


class X(str, Enum):
    step = "step"
    gradient_step = "gradient_step"
    wall_s = "wall_s"


Paths = Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Run folders, or folders that hold some.")]
By = Annotated[
    str,
    typer.Option(metavar="SETTINGS", help="Settings that make a group, such as algo,env_id; default: all but seed."),
]
Normalize = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="YAML with the returns that count as 0 and 1, such as CartPole-v1: [20, 500]; human: for Atari games, "
        "those of random actions and of a human tester.",
    ),
]


@reports_errors
def compare_runs(
    paths: Paths, by: By = "", normalize: Normalize = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Compare final scores over seeds: table, settings that differ, probability of improvement."""
    from rl_training.results.comparison import compare
    from rl_training.results.runs import Runs, find_runs

    runs = find_runs(*paths)
    anchors = _anchors(normalize, runs)
    settings = [name for name in by.split(",") if name]
    tables = {env_id: Runs([run for run in runs if run.env_id == env_id]) for env_id in runs.env_ids}
    separate = anchors is None and "env_id" in settings and len(tables) > 1
    found = {
        title: compare(chosen.groups(settings), anchors)
        for title, chosen in (tables if separate else {"": runs}).items()
    }
    if as_json:
        typer.echo(json.dumps([_record(row) for rows in found.values() for row in rows], indent=1))
        return
    for title, rows in found.items():
        if title:
            typer.echo(f"{title}:")
        show_table(rows)
    _show_differences(runs)


@reports_errors
def plot(
    paths: Paths,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="A .svg file; .png and .pdf need matplotlib.")
    ],
    y: Annotated[str, typer.Option(metavar="NAME", help="What to draw: eval/return, eval/length, train/loss, ...")] = (
        EVAL_RETURN
    ),
    x: Annotated[X, typer.Option(help="The horizontal axis.")] = X.step,
    kind: Annotated[Kind, typer.Option(help="curve: a record over training; the others: final scores.")] = Kind.curve,
    by: By = "",
    normalize: Normalize = None,
    per_seed: Annotated[bool, typer.Option("--per-seed", help="Draw each seed, too.")] = False,
    smooth: Annotated[
        int, typer.Option(parser=whole_number(least=1), metavar="N", help="Mean over the last N points.")
    ] = 1,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title; the environment if not given.")] = "",
    debug: Debug = False,
) -> None:
    """Draw learning curves or final scores of runs, also while they train."""
    from rl_training.results.comparison import (
        FIGURE_REMEDY,
        compare,
        curve_figure,
        improvement_figure,
        interval_figure,
        profile_figure,
    )
    from rl_training.results.runs import find_runs

    if normalize and kind == Kind.curve:
        raise ConfigError("--normalize is for final scores: give --kind interval, profile or improvement, too")
    runs = find_runs(*paths)
    groups = runs.groups([name for name in by.split(",") if name])
    anchors = _anchors(normalize, runs)
    figure: Figure
    if kind == Kind.curve:
        figure = curve_figure(groups, y, x=x.value, per_seed=per_seed, smooth=smooth, title=title)
    elif kind == Kind.profile:
        figure = profile_figure(groups, anchors)
    elif kind == Kind.interval:
        figure = interval_figure(compare(groups, anchors, remedy=FIGURE_REMEDY))
    else:
        figure = improvement_figure(compare(groups, anchors, remedy=FIGURE_REMEDY))
    typer.echo(figure.save(out))


def _anchors(normalize: str | None, runs: "Runs") -> "Anchors | None":
    """Return what `--normalize` asks for: the anchors of a file, or those of Atari games."""
    from rl_training.results.comparison import read_anchors
    from rl_training.results.human_normalized import human_anchors

    if normalize is None:
        return None
    return human_anchors(runs.env_ids) if normalize == "human" else read_anchors(Path(normalize))


def show_table(rows: "Sequence[Row]") -> None:
    """Print the rows without the columns that are empty in all of them."""
    cells = [(_shortened(label), *others) for label, *others in (row.cells.values() for row in rows)]
    columns = [column for column in zip(rows[0].cells, *cells, strict=True) if set(column[1:]) - {"-", ""}]
    widths = [max(map(len, column)) for column in columns]
    for line in zip(*columns, strict=True):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if any(row.improvement for row in rows):
        typer.echo(f"better: probability that a run scores higher than one of {rows[0].label!r}, with its interval")


def _shortened(label: str) -> str:
    return label if len(label) <= _MAX_WIDTH else label[: _MAX_WIDTH - 1] + "…"


def _show_differences(runs: "Runs") -> None:
    differences = runs.differences()
    shared = {name for name in differences if all(name in run.settings for run in runs)}
    if differences:
        typer.echo("settings that differ:")
    for name, values in differences.items():
        if name in shared:
            typer.echo(f"  {name}: {', '.join(values)}")
    if len(shared) < len(differences):  # of different algorithms
        typer.echo(f"  and {len(differences) - len(shared)} that not all of the algorithms have")


def _record(row: "Row") -> Mapping[str, Any]:
    """Return a row as JSON."""
    summary = row.summary
    return {
        "group": row.label,
        "runs": [
            {"path": str(run.path), "seed": run.seed, "status": run.status, "score": run.score} for run in row.runs
        ],
        "mean": summary and summary.mean,
        "std": summary and summary.std,
        "median": row.median,
        "iqm": summary and summary.iqm,
        "interval": summary and list(summary.interval),
        "improvement": row.improvement and {"probability": row.improvement[0], "interval": list(row.improvement[1])},
    }
