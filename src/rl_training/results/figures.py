"""Draw curves and intervals as SVG, without any dependency; matplotlib turns the same figure into PNG or PDF.

Figure(title="CartPole-v1", x_label="env steps", y_label="return", lines=[Line("dqn", steps, means)]).save("a.svg")
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np

from rl_training.core.durable_files import make_folder, write_atomic
from rl_training.core.extras import require
from rl_training.errors import ConfigError

WIDTH, HEIGHT = 440, 250  # of the plot area
_LEFT, _TOP, _BOTTOM, _GAP = 76, 46, 56, 88  # around a plot area, and between two
_LEGEND_LINE, _CAPTION_LINE, _MAX_POINTS = 20, 18, 300
_CHARACTERS, _MAX_LABEL = 78, 64  # of a caption line, and of a label

Scale = Callable[[float], float]  # from a value to a place in the picture

# Okabe and Ito's colours, which most colour-blind people can tell apart; dashes tell apart what still looks alike.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a", "#b8a800")
_DARK_COLOURS = ("#58a6ff", "#f0883e", "#3fcf9a", "#e89ac7", "#ffc04d", "#8fd3ff", "#b0b0b0", "#f0e442")
_TICKS = 5  # on an axis, about
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
STYLE = (
    """
  .page { fill: #ffffff } .frame { fill: none; stroke: #b0b7c0 } .grid { stroke: #e4e7eb }
  text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 15px }
  .caption { font-size: 12px; fill: #57606a }
  .line { fill: none; stroke-width: 2.2 } .thin { fill: none; stroke-width: 1; opacity: 0.5 }
  .band { opacity: 0.2; stroke: none } .early { stroke-dasharray: 2 4 }
"""
    + "".join(f"  .c{n} {{ stroke: {colour}; fill: {colour} }}\n" for n, colour in enumerate(COLOURS))
    + "  .line, .thin { fill: none }\n  @media (prefers-color-scheme: dark) {\n"
    + "    .page { fill: #15191f } .frame { stroke: #5b6570 } .grid { stroke: #2a3038 } text { fill: #e6e9ec }\n"
    + "    .caption { fill: #9aa4ae }\n"
    + "".join(f"    .c{n} {{ stroke: {colour}; fill: {colour} }}\n" for n, colour in enumerate(_DARK_COLOURS))
    + "    .line, .thin { fill: none }\n  }\n"
)


@dataclass(frozen=True)
class Line:
    """A curve, with a band if `low` and `high` are given. Beyond `solid` points it is dotted: a seed has ended.

    A line of one point is a dot, and its band a bar.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    solid: int | None = None
    thin: bool = False  # one seed among others: no entry in the legend
    colour: int = 0


@dataclass(frozen=True)
class Mark:
    """A value with its interval, on a line of its own."""

    label: str
    value: float
    low: float
    high: float
    colour: int = 0


@dataclass(frozen=True)
class Figure:
    """One plot: curves, or marks below each other."""

    title: str
    x_label: str
    y_label: str = ""
    lines: Sequence[Line] = ()
    marks: Sequence[Mark] = ()
    caption: str = ""
    bounds: tuple[float, float] | None = None  # of the value axis; by default what is drawn

    def svg(self, *, inline: bool = False) -> str:
        return draw([self], inline=inline)

    def save(self, path: str | Path) -> Path:
        """Write the figure: `.svg`, or with matplotlib `.png` or `.pdf`. A missing folder is made."""
        path = Path(path)
        make_folder(path.parent)
        if path.suffix.lower() == ".svg":
            write_atomic(path, self.svg())
        elif path.suffix.lower() in (".png", ".pdf"):
            _save_with_matplotlib(self, path)
        else:
            raise ConfigError(f"a figure is a .svg, .png or .pdf file, got {str(path)!r}")
        return path


def draw(figures: Sequence[Figure], *, inline: bool = False) -> str:
    """Return figures side by side as one SVG picture; `inline`: for a page that holds `STYLE`."""
    width = _LEFT + len(figures) * (WIDTH + _GAP) - _GAP + 24
    height = _TOP + HEIGHT + _BOTTOM + max(_height_below(figure) for figure in figures)
    title = ", ".join(figure.title for figure in figures)
    parts = [
        f'<svg{_NAMESPACE * (not inline)} viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(' '.join(_description(figure) for figure in figures))}</desc>",
        *([] if inline else [f"<style>{STYLE}</style>"]),
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
    ]
    for place, figure in enumerate(figures):
        parts.append(f'<g transform="translate({_LEFT + place * (WIDTH + _GAP)} {_TOP})">')
        parts += _marks(figure) if figure.marks else _curves(figure)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers, multiples of 1, 2 or 5 times a power of ten, that lie between two values."""
    if not high > low:
        high, low = low + max(abs(low), 1.0) * 0.5, low - max(abs(low), 1.0) * 0.5
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Return a number as an axis shows it: 50k, 1.5M, 0.02."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _curves(figure: Figure) -> list[str]:
    lines = [_thinned(line) for line in figure.lines]
    ends = [edge for line in lines for edge in (line.low, line.high, line.y) if edge is not None]
    values = np.concatenate([edge[np.isfinite(edge)] for edge in ends])
    low, high = figure.bounds or _with_room(values)
    first = min(float(line.x[0]) for line in lines)
    last = max(float(line.x[-1]) for line in lines)
    first = 0.0 if 0.0 <= first < 0.3 * last or 0.0 < first == last else first
    last = last if last > first else first + 1.0

    def x(position: float) -> float:
        return WIDTH * (position - first) / (last - first)

    def y(value: float) -> float:
        return HEIGHT * (1.0 - (min(max(value, low), high) - low) / (high - low))

    parts = _frame(figure)
    for value in ticks(low, high):
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="-8" y="{y(value) + 4.5:.1f}" text-anchor="end">{tick_text(value)}</text>')
    for position in ticks(first, last):
        parts.append(f'<text x="{x(position):.1f}" y="{HEIGHT + 20}" text-anchor="middle">{tick_text(position)}</text>')
    place = f"translate(-58 {HEIGHT / 2:g}) rotate(-90)"
    parts.append(f'<text transform="{place}" text-anchor="middle">{escape(figure.y_label)}</text>')
    for line in lines:
        colour = f"c{line.colour % len(COLOURS)}"
        if line.low is not None and line.high is not None:
            upper, lower = _points(line.x, line.high, x, y), _points(line.x, line.low, x, y)
            shape = "polygon" if len(line.x) > 1 else "polyline"
            kind = "band" if len(line.x) > 1 else "thin"
            parts.append(f'<{shape} class="{kind} {colour}" points="{" ".join([*upper, *reversed(lower)])}"/>')
        solid = len(line.x) if line.solid is None else line.solid
        points, kind = _points(line.x, line.y, x, y), "thin" if line.thin else "line"
        dashes = _dashes(line.colour)
        parts.append(f'<polyline class="{kind} {colour}"{dashes} points="{" ".join(points[: max(solid, 1)])}"/>')
        if len(points) == 1:
            place_x, place_y = points[0].split(",")
            parts.append(f'<circle class="{colour}" cx="{place_x}" cy="{place_y}" r="4"/>')
        if solid < len(points):
            parts.append(f'<polyline class="{kind} early {colour}" points="{" ".join(points[max(solid - 1, 0) :])}"/>')
    return [*parts, *_legend(_labelled(figure))]


def _points(xs: np.ndarray, ys: np.ndarray, x: Scale, y: Scale) -> list[str]:
    return [f"{x(float(a)):.1f},{y(float(b)):.1f}" for a, b in zip(xs, ys, strict=True) if math.isfinite(float(b))]


def _marks(figure: Figure) -> list[str]:
    low, high = figure.bounds or _with_room(np.array([edge for mark in figure.marks for edge in (mark.low, mark.high)]))

    def x(value: float) -> float:
        return WIDTH * (value - low) / (high - low)

    parts = _frame(figure)
    for value in ticks(low, high):
        parts.append(f'<line class="grid" y1="0" y2="{HEIGHT}" x1="{x(value):.1f}" x2="{x(value):.1f}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT + 20}" text-anchor="middle">{tick_text(value)}</text>')
    for number, mark in enumerate(figure.marks):
        y = HEIGHT * (number + 0.6) / len(figure.marks)
        colour = f"c{mark.colour % len(COLOURS)}"
        parts.append(f'<text x="6" y="{y - 9:.1f}">{escape(_shortened(mark.label))}</text>')
        parts.append(
            f'<line class="line {colour}" x1="{x(mark.low):.1f}" x2="{x(mark.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<circle class="{colour}" cx="{x(mark.value):.1f}" cy="{y:.1f}" r="4.5"/>')
    return parts


def _frame(figure: Figure) -> list[str]:
    parts = [
        f'<text class="title" x="{WIDTH / 2:g}" y="-18" text-anchor="middle">{escape(figure.title)}</text>',
        f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{WIDTH / 2:g}" y="{HEIGHT + 42}" text-anchor="middle">{escape(figure.x_label)}</text>',
    ]
    top = HEIGHT + 62 + _LEGEND_LINE * len(_labelled(figure))
    for number, text in enumerate(_wrapped(figure.caption)):
        parts.append(f'<text class="caption" x="0" y="{top + _CAPTION_LINE * number}">{escape(text)}</text>')
    return parts


def _labelled(figure: Figure) -> list[Line]:
    return [line for line in figure.lines if not line.thin]


def _height_below(figure: Figure) -> int:
    """Return the height of legend and caption."""
    return _LEGEND_LINE * len(_labelled(figure)) + _CAPTION_LINE * len(_wrapped(figure.caption))


def _legend(lines: Sequence[Line]) -> list[str]:
    """Return the legend, below the plot: there it covers no curve."""
    parts = []
    for number, line in enumerate(lines):
        y = HEIGHT + 58 + _LEGEND_LINE * number
        colour = f"c{line.colour % len(COLOURS)}"
        if len(line.x) == 1:
            parts.append(f'<circle class="{colour}" cx="13" cy="{y}" r="4"/>')
        else:
            parts.append(f'<line class="line {colour}"{_dashes(line.colour)} x1="0" x2="26" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="34" y="{y + 4.5}">{escape(_shortened(line.label))}</text>')
    return parts


def _dashes(colour: int) -> str:
    dashes = _DASHES[colour // len(COLOURS) % len(_DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _with_room(values: np.ndarray) -> tuple[float, float]:
    """Return bounds a little wider than the values."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    room = 0.04 * (high - low) or 0.5 * max(abs(high), 1.0)
    return low - room, high + room


def _shortened(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 1] + "…"


def _thinned(line: Line) -> Line:
    """Return the line with at most `_MAX_POINTS` points: the first and the last, and the extremes between."""
    if len(line.x) <= _MAX_POINTS:
        return line
    edges = np.linspace(0, len(line.x), _MAX_POINTS // 2, dtype=int)
    kept = {0, len(line.x) - 1}
    for start, end in pairwise(edges):
        kept |= {start + int(np.argmin(line.y[start:end])), start + int(np.argmax(line.y[start:end]))}
    places = sorted(kept)
    solid = None if line.solid is None else sum(place < line.solid for place in places)
    low, high = (None if edge is None else edge[places] for edge in (line.low, line.high))
    return replace(line, x=line.x[places], y=line.y[places], low=low, high=high, solid=solid)


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) < _CHARACTERS:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _description(figure: Figure) -> str:
    """Return what the figure shows in words, for readers who cannot see it."""
    ends = [f"{line.label} ends at {tick_text(float(line.y[-1]))}" for line in _labelled(figure)]
    marks = [f"{mark.label}: {mark.value:.4g} ({mark.low:.4g} to {mark.high:.4g})" for mark in figure.marks]
    return f"{figure.y_label or figure.x_label}: {'; '.join([*ends, *marks])}. {figure.caption}"


def _save_with_matplotlib(figure: Figure, path: Path) -> None:
    matplotlib = require("matplotlib.figure", extra="plot", what=f"a {path.suffix} figure")
    canvas = matplotlib.Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = canvas.subplots()
    for line in figure.lines:
        colour, width = COLOURS[line.colour % len(COLOURS)], 0.7 if line.thin else 1.8
        solid = len(line.x) if line.solid is None else line.solid
        axes.plot(line.x[:solid], line.y[:solid], color=colour, lw=width, label=None if line.thin else line.label)
        axes.plot(line.x[max(solid - 1, 0) :], line.y[max(solid - 1, 0) :], ":", color=colour, lw=width)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, lw=0)
    for number, mark in enumerate(figure.marks):
        colour = COLOURS[mark.colour % len(COLOURS)]
        axes.plot([mark.low, mark.high], [-number, -number], color=colour)
        axes.plot(mark.value, -number, "o", color=colour)
    if figure.marks:
        axes.set_yticks([-n for n in range(len(figure.marks))], [mark.label for mark in figure.marks])
    else:
        axes.legend()
    axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    canvas.supxlabel("\n".join(_wrapped(figure.caption)), fontsize="small")
    canvas.savefig(path)
