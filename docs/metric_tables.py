"""The glossary of metrics, from the tables of metrics on the pages of the algorithms."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rl_training.experiment.registry import registry

ALGORITHMS = Path(__file__).resolve().parent / "algorithms"


def metrics_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """List the rows of the pages' tables in the order of their metrics."""
    yield "| metric | of | meaning | healthy | problem |"
    yield "|---|---|---|---|---|"
    rows = [row for algo in registry() for row in rows_of(ALGORITHMS / f"{algo}.md", folder)]
    yield from sorted(rows, key=lambda row: row.split("`")[1])


def rows_of(page: Path, folder: Path) -> Iterator[str]:
    """Yield each row of the page's table of metrics; links are relative to `folder`."""
    section = page.read_text("utf-8").partition("\n## Metrics\n")[2].partition("\n## ")[0]
    here = os.path.relpath(page.parent, folder)
    for line in section.splitlines():
        if line.startswith("| `"):
            names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            cells += [""] * (3 - len(cells))  # some tables have no column for problems
            text = re.sub(r"\]\((?=\w+\.md)", f"]({here}/", " | ".join(cells))
            yield f"| {names} | [`{page.stem}`]({here}/{page.name}#metrics) | {text} |"
