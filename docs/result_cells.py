"""Results, read from `benchmarks/results`, and their figures as the cells of a table."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
LIBRARIES = {
    "sb3": "SB3",
    "sb3_contrib": "sb3-contrib",
    "tianshou": "Tianshou",
    "sbx": "sbx",
    "torchrl": "TorchRL",
    "dopamine": "Dopamine",
    "cleanrl": "CleanRL",
    "zoo": "rl-zoo3",
    "minatar": "MinAtar's paper",
    "pgx": "Pgx's paper",
    "bbf": "BBF's paper",
    "bbf_8": "BBF's paper (8 updates per step)",
    "dreamerv3": "DreamerV3's paper",
    "redq": "the paper",
    "sac": "SAC",
    "mbpo": "the paper",
    "paper": "the paper",
}
Entry = Mapping[str, Any]


@cache
def summary() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / "summary.json").read_text("utf-8"))
    return loaded


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rows(*cells: Sequence[str]) -> Iterator[str]:
    """Format a table, its header first."""
    header, *body = cells
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for each in body:
        yield f"| {' | '.join(each)} |"


def file_link(path: Path, folder: Path) -> str:
    return f"[`{path.stem}`]({os.path.relpath(path, folder)})"


def number(value: float, like: float | None = None) -> str:
    """Format a figure with digits that fit its size, or the size of `like`."""
    size = abs(value if like is None else like)
    if size >= 1_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size > 2 else f"{value:.3f}"


def rate(value: float) -> str:
    """Format a rate or a duration with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def steps_text(steps: float | None) -> str:
    if steps is None:
        return "never"
    return f"{steps / 1e6:g}M" if steps >= 1e6 else f"{steps / 1e3:g}k"


def seeds_text(count: int) -> str:
    return f"{count} seeds" if count > 1 else "1 seed"


def mean_text(each: Entry) -> str:
    mean = number(each["mean"])
    return f"{mean} ± {number(each['std'], each['mean'])}" if len(each["scores"]) > 1 else mean


def overview_text(each: Entry) -> str:
    return f"{mean_text(each)} ({seeds_text(len(each['scores']))})"


def mean_of(scores: Sequence[float]) -> str:
    mean = fmean(scores)
    return f"{number(mean)} ± {number(stdev(scores), mean)}" if len(scores) > 1 else number(mean)


def spread_text(spread: Entry) -> str:
    return f"{rate(spread['median'])} ({rate(spread['min'])} to {rate(spread['max'])})"


def task_text(name: str, entry: Entry) -> str:
    """Return the environment and what distinguishes the row: a dataset, a budget, the defaults."""
    rest = name.split("-")[2:]
    detail = f", {'-'.join(rest)}" if rest and not entry["env_id"].startswith(("MinAtar", "Inverted")) else ""
    return f"{entry['env_id']}{detail}"


def library(contender: str) -> str:
    return LIBRARIES.get(contender.partition("-")[0], contender)
