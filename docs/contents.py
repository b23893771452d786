"""Read the table of contents from docs/index.md: its headings are the sections, its links the pages, in this order."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "index.md"


def sections(text: str) -> dict[str, list[Path]]:
    """Return the pages that the text of the index links to, by the heading above the link."""
    found: dict[str, list[Path]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        for link in re.findall(r"\]\(([^)\s#]+\.md)\)", line):
            found.setdefault(heading, []).append((INDEX.parent / link).resolve())
    return found
