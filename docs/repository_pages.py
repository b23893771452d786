"""Pages of the site for files of the repository that are no pages themselves: code, settings, results.

A link such as `../src/rl_training/algorithms/dqn.py` then works on the site as it does in the repository.
"""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes

FOLDER = "repository"


def page_name(app: Any, path: Path) -> str:
    return f"{FOLDER}/{path.relative_to(app.srcdir)}"


def link_files(app: Any, document: Any) -> None:
    """Replace links to files and folders that are no pages by links to their pages."""
    docname = app.env.docname
    folder = (Path(app.srcdir) / docname).parent
    for node in list(
        document.findall(lambda each: isinstance(each, addnodes.download_reference | addnodes.pending_xref))
    ):
        path = (folder / node.get("reftarget", "")).resolve()
        if isinstance(node, addnodes.download_reference) or (node.get("reftype") == "myst" and path.is_dir()):
            app.repository_files |= {path, *files_below(path)}
            uri = app.builder.get_relative_uri(docname, page_name(app, path))
            node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))


def files_below(folder: Path) -> list[Path]:
    """Return the files and folders below a folder, at any depth; none for a file."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def lines_of(path: Path) -> str:
    """Return the text of a file as HTML."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return str(highlight(text, PythonLexer(), HtmlFormatter(linenos="inline")))
    return f'<div class="highlight"><pre>{html.escape(text)}</pre></div>'


def entries_of(path: Path) -> str:
    """Return the files of a folder as a list of links, relative to the page of the folder."""
    entries = [each for each in files_below(path) if each.parent == path]
    links = (f'<li><a href="{path.name}/{each.name}.html">{each.name}</a></li>' for each in entries)
    return f"<ul>{''.join(links)}</ul>"


def repository_pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    for path in sorted(app.repository_files):
        body = entries_of(path) if path.is_dir() else lines_of(path)
        title = html.escape(str(path.relative_to(app.srcdir)))
        context = {"title": title, "body": f"<h1>{title}</h1>{body}"}
        yield page_name(app, path), context, "page.html"


def connect(app: Any) -> None:
    app.repository_files = set()
    app.connect("doctree-read", link_files, priority=400)  # before Sphinx collects the files to download
    app.connect("html-collect-pages", repository_pages)
