"""Learning curves as SVG: the interquartile mean over seeds, with its 95 % bootstrap interval as a band."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from result_tables import RESULTS, library, read_lines, steps_text

from rl_training.experiment.manager import interquartile_mean

WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_TOP, GAP = 400, 230, 54, 46, 84  # of a panel's plot area, and around it
RESAMPLES = 500
# The picture has its own background, so it is readable on a page of either kind.
STYLE = """
  .page { fill: #ffffff } .frame { fill: none; stroke: #b0b7c0 } .grid { stroke: #e4e7eb }
  text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 15px }
  .line { fill: none; stroke-width: 2.2 } .band { opacity: 0.22; stroke: none }
  .ours { stroke: #0b62c4; fill: #0b62c4 } .peer { stroke: #d9720f; fill: #d9720f } .line { fill: none }
  @media (prefers-color-scheme: dark) {
    .page { fill: #15191f } .frame { stroke: #5b6570 } .grid { stroke: #2a3038 } text { fill: #e6e9ec }
    .ours { stroke: #58a6ff; fill: #58a6ff } .peer { stroke: #f0a04b; fill: #f0a04b } .line { fill: none }
  }
"""


@dataclass(frozen=True)
class Curve:
    """Returns over seeds at each evaluation during training."""

    name: str
    num_seeds: int
    steps: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def read_curve(row: str, contender: str) -> Curve:
    lines = read_lines(RESULTS / "scores" / f"{row}.jsonl")
    # The last run of a seed counts, as in the summary.
    runs = {line["seed"]: line for line in lines if line["contender"] == contender and "failed" not in line}
    curves: list[Mapping[str, Any]] = [run["curve"] for run in runs.values()]
    shortest = min((curve["steps"] for curve in curves), key=len)
    generator = random.Random(0)
    middle, low, high = [], [], []
    for index in range(len(shortest)):
        returns = [curve["returns"][index] for curve in curves]
        means = sorted(interquartile_mean(generator.choices(returns, k=len(returns))) for _ in range(RESAMPLES))
        middle.append(interquartile_mean(returns))
        low.append(means[int(0.025 * RESAMPLES)])
        high.append(means[-1 - int(0.025 * RESAMPLES)])
    return Curve(contender, len(runs), shortest, middle, low, high)


def contenders(row: str) -> list[str]:
    """Return ours, then the peers."""
    names = dict.fromkeys(line["contender"] for line in read_lines(RESULTS / "scores" / f"{row}.jsonl"))
    return sorted(names, key=lambda name: name != "ours")


def draw_curves(panels: Mapping[str, str]) -> str:
    """Draw one panel per row of the score table; `panels` maps titles to rows."""
    width = MARGIN_LEFT + len(panels) * (WIDTH + GAP)
    height = MARGIN_TOP + HEIGHT + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
    ]
    for place, (title, row) in enumerate(panels.items()):
        x = MARGIN_LEFT + 14 + place * (WIDTH + GAP)
        parts.append(f'<g transform="translate({x} {MARGIN_TOP})">')
        parts += draw_panel(title, [read_curve(row, name) for name in contenders(row)])
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def draw_panel(title: str, curves: Sequence[Curve]) -> list[str]:
    last = max(curve.steps[-1] for curve in curves)
    bottom, top, ticks = value_axis(min(min(curve.low) for curve in curves), max(max(curve.high) for curve in curves))

    def x(step: float) -> float:
        return WIDTH * step / last

    def y(value: float) -> float:
        return HEIGHT * (top - value) / (top - bottom)

    parts = [f'<text class="title" x="{WIDTH / 2:g}" y="-18" text-anchor="middle">{title}</text>']
    for value in ticks:
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="-8" y="{y(value) + 4.5:.1f}" text-anchor="end">{value:g}</text>')
    for part in range(6):
        step = last * part / 5
        parts.append(f'<text x="{x(step):g}" y="{HEIGHT + 20}" text-anchor="middle">{tick_text(step)}</text>')
    parts.append(f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>')
    parts.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT + 42}" text-anchor="middle">env steps</text>')
    parts.append(f'<text transform="translate(-48 {HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">return</text>')
    for curve in curves:
        kind = kind_of(curve)
        upper = [f"{x(step):.1f},{y(value):.1f}" for step, value in zip(curve.steps, curve.high, strict=True)]
        lower = [f"{x(step):.1f},{y(value):.1f}" for step, value in zip(curve.steps, curve.low, strict=True)]
        middle = [f"{x(step):.1f},{y(value):.1f}" for step, value in zip(curve.steps, curve.middle, strict=True)]
        parts.append(f'<polygon class="band {kind}" points="{" ".join([*upper, *reversed(lower)])}"/>')
        parts.append(f'<polyline class="line {kind}" points="{" ".join(middle)}"/>')
    return [*parts, *draw_legend(curves)]


def draw_legend(curves: Sequence[Curve]) -> list[str]:
    x, y = WIDTH - 178, HEIGHT - 10 - 20 * len(curves)
    parts = [f'<rect class="page" x="{x - 8}" y="{y - 6}" width="178" height="{20 * len(curves) + 8}" opacity="0.85"/>']
    for number, curve in enumerate(curves):
        name = "rl-training" if curve.name == "ours" else library(curve.name)
        middle = y + 8 + 20 * number
        parts.append(f'<line class="line {kind_of(curve)}" x1="{x}" x2="{x + 26}" y1="{middle}" y2="{middle}"/>')
        parts.append(f'<text x="{x + 34}" y="{middle + 4.5}">{name}, {curve.num_seeds} seeds</text>')
    return parts


def kind_of(curve: Curve) -> str:
    return "ours" if curve.name == "ours" else "peer"


def value_axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Return the ends of an axis and its ticks, at multiples of 100 or 200."""
    unit = 100 if high - low <= 700 else 200
    first, last = int(low // unit), -int(-high // unit)
    ticks = [float(unit * each) for each in range(first, last + 1)]
    room = 0.04 * (ticks[-1] - ticks[0])
    return ticks[0] - room, ticks[-1] + room, ticks


def tick_text(step: float) -> str:
    return "0" if step == 0 else steps_text(step)
