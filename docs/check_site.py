"""Check a built site: every link leads to a file and an anchor of the site, and nothing is loaded from elsewhere.

    python docs/check_site.py build/site       exit code 1 and one line per fault

Links to other sites are not followed: the check works without a network.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "video": "src", "iframe": "src"}


class Page(HTMLParser):
    """The anchors of a page, what it links to and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADED.get(tag, "") in values:
            self.loads.append(values[LOADED[tag]])


def faults(site: Path) -> list[str]:
    """Return one line per dead link and per file that is loaded from another site."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} loads {uri}" for uri in page.loads if urlsplit(uri).netloc]
        for uri in {*page.links, *page.loads}:
            parts = urlsplit(uri)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            missing = not target.is_file()
            if missing or (parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors):
                found.append(f"{name} links to {uri}, which does not exist")
    return sorted(found)


def main(site: str) -> int:
    found = faults(Path(site))
    print("\n".join(found) or f"{site}: every link leads somewhere, nothing is loaded from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
