"""`rl-training dataset inspect | convert`: inspect datasets and convert them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import AllowEntryPoints, AsJson, Debug
from rl_training.core.counted import counted
from rl_training.core.import_path import search_current_folder
from rl_training.errors import ConfigError
from rl_training.hparams.fields import expand_home

if TYPE_CHECKING:
    import numpy as np

    from rl_training.datasets.transition_dataset import TransitionDataset
    from rl_training.datasets.transitions import Transitions

dataset_app = typer.Typer(help="Inspect datasets and convert them.", no_args_is_help=True)

_BARS = 12  # of the histogram
_CHOICES = 20  # the number of choices whose shares are shown

DatasetPath = Annotated[
    Path,
    typer.Argument(
        parser=expand_home,
        metavar="DATASET",
        help="A .npz, .hdf5 or .parquet file, or the folder of a Minari dataset.",
    ),
]
EnvOfDataset = Annotated[
    str | None,
    typer.Option(
        "--env", metavar="ID", help="Environment whose spaces the dataset must fit, if it does not declare its own."
    ),
]


@dataset_app.command()
@reports_errors
def inspect(
    path: DatasetPath,
    png: Annotated[
        Path | None, typer.Option(parser=expand_home, metavar="FILE", help="Also draw returns, lengths and actions.")
    ] = None,
    env: EnvOfDataset = None,
    allow_entry_points: AllowEntryPoints = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a dataset and show its contents: rows, episodes, returns, lengths, flags, actions."""
    from rl_training.datasets.files import file_kind

    _, dataset = _read(path, env, allow_entry_points=allow_entry_points)
    facts = _facts(dataset) | {"format": file_kind(path)}
    if png is not None:
        _draw(dataset, png)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    _show_facts(path, dataset, facts)
    if png is not None:
        typer.echo(f"\ndrawn in {png}")


@dataset_app.command()
@reports_errors
def convert(
    source: DatasetPath,
    target: Annotated[
        Path, typer.Argument(parser=expand_home, metavar="OUT", help="The new dataset; its name determines the format.")
    ],
    env: EnvOfDataset = None,
    allow_entry_points: AllowEntryPoints = False,
    debug: Debug = False,
) -> None:
    """Check a dataset and write it in another format: npz, hdf5 (D4RL), parquet or a Minari folder."""
    from rl_training.datasets.files import check_new, write_transitions

    check_new(target)
    found, checked = _read(source, env, allow_entry_points=allow_entry_points)
    write_transitions(replace(found, spaces=checked.spaces, env_id=env or found.env_id), target)
    show([("dataset", str(target)), ("rows", f"{len(checked):,} in {counted(len(checked.episode_ends), 'episode')}")])


def _read(path: Path, env: str | None, *, allow_entry_points: bool) -> "tuple[Transitions, TransitionDataset]":
    """Read a dataset and check it, against the spaces of the environment if one is named."""
    from rl_training.datasets.files import read_transitions
    from rl_training.datasets.transition_dataset import TransitionDataset
    from rl_training.envs.factory import make_env_factory
    from rl_training.runtime.run_spaces import spaces_of

    search_current_folder(env or "")
    spaces = None if env is None else spaces_of(make_env_factory(env, {}))
    found = read_transitions(path, allow_entry_points=allow_entry_points)
    return found, TransitionDataset.from_transitions(found, spaces)


def _show_facts(path: Path, dataset: "TransitionDataset", facts: dict[str, Any]) -> None:
    returns, lengths = facts["returns"], facts["lengths"]
    open_end = [f"{facts['open']} without an end"] if facts["open"] else []
    ends = [f"{facts['terminated']:,} terminated", f"{facts['truncated']:,} cut", *open_end]
    show(
        [
            ("dataset", f"{path} ({facts['format']})"),
            ("environment", dataset.env_id or "not named"),
            ("observations", str(dataset.spaces.observation)),
            ("actions", str(dataset.spaces.action)),
            ("rows", f"{facts['rows']:,}"),
            ("episodes", f"{facts['episodes']:,} ({', '.join(ends)})"),
            ("lengths", f"mean {lengths['mean']:.1f}, min {lengths['min']:.0f}, max {lengths['max']:.0f}"),
            ("returns", f"mean {returns['mean']:.1f}, min {returns['min']:.1f}, max {returns['max']:.1f}"),
        ]
    )
    typer.echo("\nreturns of episodes")
    _show_histogram(dataset.episode_returns())
    typer.echo("\nshares of each choice" if facts["choices"] else "\nactions per dimension, spread to [-1, 1]")
    for row in facts["coverage"]:
        typer.echo("  " + row["text"])


def _facts(dataset: "TransitionDataset") -> dict[str, Any]:
    def spread(values: "np.ndarray") -> dict[str, float]:
        return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}

    terminated = int(dataset.terminated[dataset.episode_ends].sum())
    is_open = int(not (dataset.terminated[-1] or dataset.truncated[-1]))
    choices = dataset.actions.dtype.kind != "f"
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
        "coverage": _choice_coverage(dataset) if choices else _range_coverage(dataset),
    }


def _choice_coverage(dataset: "TransitionDataset") -> list[dict[str, Any]]:
    """Compute, per dimension of the actions, the share of each choice."""
    import numpy as np
    from gymnasium.spaces import Discrete

    columns, space = dataset.actions.reshape(len(dataset), -1), dataset.spaces.action
    sizes = np.ravel(getattr(space, "nvec", space.n if isinstance(space, Discrete) else 2))
    rows = []
    for index, column in enumerate(columns.T):
        counts = np.bincount(column, minlength=sizes[index % len(sizes)])
        shares = (counts / len(column)).round(4).tolist()
        text = "  ".join(f"{choice}: {100 * share:.1f} %" for choice, share in enumerate(shares[:_CHOICES]))
        more = f"  and {len(shares) - _CHOICES} more" if len(shares) > _CHOICES else ""
        tried = f"{np.count_nonzero(counts)} of {len(counts)} tried"
        rows.append({"dimension": index, "shares": shares, "text": f"{index}  {tried}  {text}{more}"})
    return rows


def _range_coverage(dataset: "TransitionDataset") -> list[dict[str, Any]]:
    """Compute, per dimension of the actions, their spread and which share of 20 parts of [-1, 1] was tried."""
    import numpy as np

    rows = []
    for index, column in enumerate(dataset.actions.reshape(len(dataset), -1).T):
        tried = np.count_nonzero(np.histogram(column, 20, (-1.0, 1.0))[0]) / 20
        at_bounds = float((np.abs(column) > 0.999).mean())
        spread = f"mean {column.mean():+.2f} ± {column.std():.2f}, from {column.min():+.2f} to {column.max():+.2f}"
        text = f"{index}  {spread}, {100 * tried:.0f} % of the range tried, {100 * at_bounds:.1f} % at the bounds"
        values = {"mean": float(column.mean()), "std": float(column.std()), "tried": tried, "at_bounds": at_bounds}
        rows.append({"dimension": index, **values, "text": text})
    return rows


def _show_histogram(values: "np.ndarray") -> None:
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


def _bins(values: "np.ndarray", max_bins: int) -> int:
    """Return the number of bins: at most one per value, and one if the values differ only by rounding."""
    import numpy as np

    nearly_equal = np.ptp(values) <= 1e-6 * np.abs(values).max()
    return 1 if nearly_equal else min(max_bins, len(np.unique(values)))


def _draw(dataset: "TransitionDataset", png: Path) -> None:
    from rl_training.core.extras import require

    if png.suffix.lower() != ".png":
        raise ConfigError(f"--png must name a file ending in .png, got {png}")
    matplotlib = require("matplotlib.figure", extra="offline", what="--png")
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
