"""Parts of a page that needs no network and no JavaScript. Text is escaped here, and only here."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np

from rl_training.results.figures import STYLE, Figure

BASE64 = 4 / 3  # characters per byte
_MAX_ROWS = 100  # of the table of a chart
# Nothing is loaded and no code runs, for any names and settings of runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; media-src data:; base-uri 'none'; form-action 'none'"
_PAGE_STYLE = """
  :root { color-scheme: light dark;
          --text: #24292f; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --head: #f3f5f7 }
  @media (prefers-color-scheme: dark) {
    :root { --text: #e6e9ec; --soft: #9aa4ae; --line: #38414b; --back: #15191f; --head: #1f252d }
  }
  body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
         max-width: 1120px; padding: 1rem 1.2rem 3rem; overflow-wrap: anywhere }
  h1 { font-size: 1.6rem; margin: 0.5rem 0 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem }
  h3 { font-size: 1rem; margin: 1.2rem 0 0.4rem } p { margin: 0.4rem 0 } .soft { color: var(--soft) }
  .verdict { font-size: 1.1rem; font-weight: 600 }
  .scroll { overflow-x: auto; margin: 0.4rem 0 } table { border-collapse: collapse; font-size: 0.87rem }
  caption { text-align: left; font-weight: 600; padding: 0.2rem 0 }
  th, td { border-bottom: 1px solid var(--line); padding: 0.25rem 0.8rem 0.25rem 0.4rem; text-align: left;
           vertical-align: top; font-variant-numeric: tabular-nums; white-space: nowrap }
  .wrap td, .wrap th { white-space: normal; min-width: 5rem }
  caption ~ tbody td:last-child { white-space: normal; min-width: 10rem }
  thead th { background: var(--head) } tbody th { font-weight: 500 }
  details { margin: 0.4rem 0 } summary { cursor: pointer; color: var(--soft) }
  .charts { display: flex; flex-wrap: wrap; gap: 1rem } .chart { margin: 0; max-width: 100% }
  .chart svg { max-width: 100%; height: auto } video { max-width: min(100%, 480px); border: 1px solid var(--line) }
  code { font: 0.85rem ui-monospace, monospace }
  @media print { body { max-width: none; padding: 0 } .chart, tr { break-inside: avoid } h2, h3 { break-after: avoid } }
"""


def page(title: str, body: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_PAGE_STYLE}{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    return f"<p><code>{escape(text)}</code></p>"


def folded(summary: str, *parts: str) -> str:
    """Return parts that are shown after a click on the summary."""
    return "\n".join([f"<details><summary>{escape(summary)}</summary>", *parts, "</details>"])


def table(
    name: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, caption: bool = False, wrap: bool = False
) -> str:
    """Return a table; the first cell of a row is its head.

    `name` is for screen readers; with `caption` it is also shown. `wrap`: the cells hold sentences.
    """
    head = "".join(f'<th scope="col">{escape(text)}</th>' if text else "<td></td>" for text in heads)
    lines = [
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in others)}</tr>'
        for first, *others in rows
    ]
    return "\n".join(
        [
            f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">',
            '<table class="wrap">' if wrap else "<table>",
            *([f"<caption>{escape(name)}</caption>"] if caption else []),
            f"<thead><tr>{head}</tr></thead>\n<tbody>",
            *lines,
            "</tbody></table></div>",
        ]
    )


def link(file: Path) -> str:
    """Return a link to a file beside the page."""
    return f'<p><a href="{quote(file.as_posix())}">{escape(file.as_posix())}</a></p>'


def video(data: bytes, name: str) -> str:
    """Return a .mp4 film inside the page; `name` is for screen readers."""
    source = _data_url("video/mp4", data)
    return f'<video controls muted loop playsinline aria-label="{escape(name)}" src="{source}"></video>'


def image(svg: str, name: str) -> str:
    """Return a picture that shares neither style nor code with the page; `name` is for screen readers."""
    return f'<img alt="{escape(name)}" src="{_data_url("image/svg+xml", svg.encode())}">'


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True, slots=True, repr=False)
class Preview:
    """A .mp4 film that a notebook shows as the value of a cell."""

    data: bytes
    name: str

    def _repr_html_(self) -> str:
        return video(self.data, self.name)

    def __repr__(self) -> str:
        return f"<a film of {self.name}; a notebook shows it>"


def chart(figure: Figure, *below: str) -> str:
    """Return a figure with its numbers as a folded table."""
    parts = [f'<div class="chart">{figure.svg(inline=True)}', *below]
    return "\n".join([*parts, folded("Numbers of this chart", _numbers(figure)), "</div>"])


def _numbers(figure: Figure) -> str:
    """Return the table of a figure: at most `_MAX_ROWS` places of the horizontal axis, evenly spread."""
    name = f"Numbers: {figure.title} {figure.y_label}".strip()
    if figure.marks:
        rows = [(mark.label, f"{mark.value:.4g}", f"{mark.low:.4g} to {mark.high:.4g}") for mark in figure.marks]
        return table(name, ("", figure.x_label, "95 % interval"), rows)
    places = np.unique(np.concatenate([line.x for line in figure.lines]))
    places = places[np.unique(np.linspace(0, len(places) - 1, min(len(places), _MAX_ROWS)).round().astype(int))]
    columns = []
    for line in figure.lines:
        edges = zip(line.low, line.high, strict=True) if line.low is not None and line.high is not None else None
        texts = [f"{value:.4g}" for value in line.y]
        if edges is not None:
            texts = [f"{text} ({low:.4g} to {high:.4g})" for text, (low, high) in zip(texts, edges, strict=True)]
        columns.append(dict(zip(line.x.tolist(), texts, strict=True)))
    rows = [(f"{place:,.6g}", *(column.get(place, "") for column in columns)) for place in places.tolist()]
    return table(name, (figure.x_label, *(line.label for line in figure.lines)), rows)
