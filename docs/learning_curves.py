"""Learning curves as SVG: the interquartile mean over seeds, with its 95 % bootstrap interval as a band."""

from collections.abc import Mapping, Sequence

import numpy as np
from result_tables import RESULTS, library, read_lines

from rl_training.results.figures import Figure, Line, draw
from rl_training.results.statistics import iqm_band


def read_curve(row: str, contender: str, colour: int) -> Line:
    """Return the returns of the evaluations during training, over the seeds of a contender."""
    lines = read_lines(RESULTS / "scores" / f"{row}.jsonl")
    # The last run of a seed counts, as in the summary.
    runs = {line["seed"]: line for line in lines if line["contender"] == contender and "failed" not in line}
    curves = [run["curve"] for run in runs.values()]
    shortest: Sequence[float] = min((curve["steps"] for curve in curves), key=len)
    middle, low, high = iqm_band(np.array([curve["returns"][: len(shortest)] for curve in curves]))
    name = "rl-training" if contender == "ours" else library(contender)
    return Line(f"{name}, {len(runs)} seeds", np.array(shortest), middle, low, high, colour=colour)


def contenders(row: str) -> list[str]:
    """Return ours, then the peers."""
    names = dict.fromkeys(line["contender"] for line in read_lines(RESULTS / "scores" / f"{row}.jsonl"))
    return sorted(names, key=lambda name: name != "ours")


def draw_curves(panels: Mapping[str, str]) -> str:
    """Draw one panel per row of the score table; `panels` maps titles to rows."""
    return draw(
        [
            Figure(
                title,
                "env steps",
                "return",
                lines=[read_curve(row, contender, colour) for colour, contender in enumerate(contenders(row))],
            )
            for title, row in panels.items()
        ]
    )
