"""Figures: valid SVG whose points lie where the numbers say, with harmless text."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.results.figures import HEIGHT, WIDTH, Figure, Line, Mark, draw, tick_text, ticks

NAMESPACE = "{http://www.w3.org/2000/svg}"


def points(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    """The points of all lines of a class."""
    lines = [e for e in ET.fromstring(svg).iter(f"{NAMESPACE}polyline") if kind in e.attrib["class"].split()]
    return [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in lines]  # type: ignore[misc]


def figure(*lines: Line) -> Figure:
    return Figure("A title", "env steps", "return", lines=lines, caption="What is shown.")


def test_a_line_goes_from_corner_to_corner() -> None:
    svg = Figure(
        "t", "x", "y", lines=[Line("a", np.array([0.0, 50.0, 100.0]), np.array([0.0, 1.0, 2.0]))], bounds=(0.0, 2.0)
    ).svg()
    assert points(svg, "line") == [[(0.0, HEIGHT), (WIDTH / 2, HEIGHT / 2), (WIDTH, 0.0)]]


def test_a_band_surrounds_its_line() -> None:
    x, y = np.arange(4.0), np.array([1.0, 2.0, 3.0, 2.0])
    svg = figure(Line("a", x, y, y - 0.5, y + 0.5)).svg()
    (band,) = (e for e in ET.fromstring(svg).iter(f"{NAMESPACE}polygon") if "band" in e.attrib["class"])
    corners = [tuple(map(float, point.split(","))) for point in band.attrib["points"].split()]
    assert len(corners) == 8
    (line,) = points(svg, "line")
    assert all(high[1] < at[1] < low[1] for high, at, low in zip(corners[:4], line, corners[:3:-1], strict=True))


def test_a_seed_that_ended_is_dotted_from_there() -> None:
    svg = figure(Line("a", np.arange(5.0), np.arange(5.0), solid=3)).svg()
    solid, dotted = points(svg, "line")
    assert (len(solid), len(dotted)) == (3, 3)  # they share the point where the seed ended
    assert solid[-1] == dotted[0]
    assert len(points(svg, "early")) == 1


def test_text_of_others_is_shown_and_never_interpreted() -> None:
    name = '<script>alert(1)</script> & "quotes"'
    svg = Figure(name, name, name, lines=[Line(name, np.arange(2.0), np.arange(2.0))], caption=name).svg()
    assert "<script" not in svg
    texts = [element.text for element in ET.fromstring(svg).iter(f"{NAMESPACE}text")]
    assert texts.count(name) >= 3
    marks = Figure("t", "x", marks=[Mark(name, 0.5, 0.4, 0.6)]).svg()
    assert name in [element.text for element in ET.fromstring(marks).iter(f"{NAMESPACE}text")]


def test_a_long_line_keeps_its_extremes() -> None:
    y = np.zeros(10_000)
    y[1234], y[7777] = 5.0, -3.0
    (line,) = points(figure(Line("a", np.arange(10_000.0), y)).svg(), "line")
    assert len(line) <= 301
    heights = [place for _, place in line]
    assert min(heights) < HEIGHT * 0.1
    assert max(heights) > HEIGHT * 0.9
    assert (line[0][0], line[-1][0]) == (0.0, WIDTH)


def test_equal_and_missing_values_can_be_drawn() -> None:
    for y in (np.zeros(3), np.full(3, 7.0)):
        assert points(figure(Line("a", np.arange(3.0), y)).svg(), "line")
    ((first, last),) = points(figure(Line("a", np.arange(3.0), np.array([1.0, np.nan, 2.0]))).svg(), "line")
    assert (first[0], last[0]) == (0.0, WIDTH)


def test_one_point_is_a_dot_at_the_end_of_an_axis_from_zero() -> None:
    root = ET.fromstring(figure(Line("a", np.array([50_000.0]), np.array([1.0]))).svg())
    dot, legend = root.iter(f"{NAMESPACE}circle")
    assert float(dot.attrib["cx"]) == WIDTH
    assert float(legend.attrib["cy"]) > HEIGHT
    assert {"0", "20k", "50k"} <= {text.text for text in root.iter(f"{NAMESPACE}text")}


def test_the_band_of_one_point_is_a_bar() -> None:
    curve = Line("a", np.array([0.0, 100.0]), np.array([0.0, 4.0]))
    dot = Line("b", np.array([50.0]), np.array([2.0]), np.array([1.0]), np.array([3.0]), colour=1)
    svg = Figure("t", "x", "y", lines=[curve, dot], bounds=(0.0, 4.0)).svg()
    assert points(svg, "thin") == [[(WIDTH / 2, HEIGHT / 4), (WIDTH / 2, HEIGHT * 3 / 4)]]


def test_figures_stand_side_by_side_and_describe_themselves() -> None:
    one = figure(Line("a", np.arange(2.0), np.array([1.0, 3.0])))
    root = ET.fromstring(draw([one, one]))
    assert len(root.findall(f"{NAMESPACE}g")) == 2
    description = root.findtext(f"{NAMESPACE}desc") or ""
    assert "a ends at 3" in description
    assert "What is shown." in description


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_and_inside(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in found)
    steps = {f"{b - a:.6g}" for a, b in pairwise(found)}
    assert len({float(step) for step in steps if float(step) > 0}) >= 1
    digit = f"{found[1] - found[0]:.6e}"[0]
    assert digit in "125" or re.match(r"[149]\.9", f"{found[1] - found[0]:.6e}")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (50_000, "50k"), (1_500_000, "1.5M"), (2e9, "2G"), (0.02, "0.02"), (-300, "-300")]
)
def test_numbers_on_an_axis_are_short(value: float, text: str) -> None:
    assert tick_text(value) == text


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_matplotlib_draws_the_same_figure(tmp_path: Path, suffix: str) -> None:
    line = Line("a", np.arange(5.0), np.arange(5.0), np.arange(5.0) - 1, np.arange(5.0) + 1, solid=3)
    for name, drawn in (("lines", figure(line)), ("marks", Figure("t", "x", marks=[Mark("a", 0.5, 0.4, 0.6)]))):
        path = drawn.save(tmp_path / f"{name}.{suffix}")
        assert path.read_bytes()[1:4] in (b"PNG", b"PDF")


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a figure is a .svg, .png or .pdf file, got '.*a.jpg'"):
        figure(Line("a", np.arange(2.0), np.arange(2.0))).save(tmp_path / "a.jpg")
