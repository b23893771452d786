"""Settings of the site: Sphinx, MyST and Furo on the Markdown of the repository. `make docs` builds it.

The source folder is the root of the repository, so that links between README, docs/ and benchmarks/ need no change. The
pages stay readable without Sphinx; what only the site has is added here:

* the sidebar, from the headings and links of docs/index.md (contents.py);
* the docstrings of the public names that docs/api.md lists;
* tabs, where a page marks alternatives (tabs.py);
* a page for each file of the repository that a page links to (repository_pages.py);
* formulas as MathML, which browsers draw without a script from the network.
"""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "src")]

import contents  # noqa: E402
import repository_pages  # noqa: E402
import tabs  # noqa: E402

import rl_training  # noqa: E402

project = "rl-training"
version = release = rl_training.__version__
project_copyright = "the authors of rl-training"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]

root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/algorithms/*.md", "benchmarks/README.md"]
exclude_patterns = [".*", "build", "runs", "src", "tests"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

default_role = "literal"  # docstrings write `name` for code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "exclude-members": "model_config, model_post_init"}
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"rl-training {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["results.js"]
html_show_sourcelink = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"  # the prompt and the output of a console block


FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def plain_if_unnamed(block: re.Match[str]) -> str:
    """Show a code block that names no language as it is; by default it would be coloured as Python."""
    return f"```{block[1] or 'text'}\n{block[2]}```"


def hidden_toctree(caption: str, pages: list[Path]) -> str:
    names = "\n".join(f"/{page.relative_to(ROOT).with_suffix('')}" for page in pages)
    option = f":caption: {caption}\n" if caption else ""
    return f"\n\n```{{toctree}}\n:hidden:\n{option}\n{names}\n```\n"


def add_contents(app: Any, docname: str, source: list[str]) -> None:
    """Add the sidebar to the front page, the docstrings to the page of the API, and tabs where they are marked."""
    if docname == root_doc:
        source[0] += hidden_toctree("", [contents.INDEX])
        for caption, pages in contents.sections(contents.INDEX.read_text("utf-8")).items():
            source[0] += hidden_toctree(caption, pages)
    source[0] = tabs.as_tab_sets(FENCE.sub(plain_if_unnamed, source[0]))
    if docname == "docs/api":
        source[0] = re.sub(r"^\* `(\w+)`$", docstring, source[0], flags=re.MULTILINE)


def docstring(item: re.Match[str]) -> str:
    """Return the directive that shows a public name in full."""
    kind = "class" if isinstance(getattr(rl_training, item[1]), type) else "function"
    return f"```{{eval-rst}}\n.. auto{kind}:: rl_training.{item[1]}\n```\n"


def shorten_signature(app: Any, what: str, name: str, obj: Any, *rest: Any) -> tuple[str, str] | None:
    """Hide the arguments of the algorithms: all have those of `ManagedAlgorithm`."""
    same = isinstance(obj, type) and issubclass(obj, rl_training.ManagedAlgorithm)
    return ("", "") if same and obj is not rl_training.ManagedAlgorithm else None


def mark_examples(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show the indented lines below `Example:` as code."""
    for number, line in enumerate(lines[:-2]):
        if line.endswith(":") and not lines[number + 1] and lines[number + 2].startswith("    "):
            lines[number] = f"{line}:"


def mathml(latex: str, display: str) -> str:
    formula: str = convert(latex, display=display)
    for left_over, text in ((r"\arg", "arg"), (r"\{", "{"), (r"\}", "}"), (r"\_", "_")):
        formula = formula.replace(left_over, text)
    if "\\" in formula:
        raise ValueError(f"latex2mathml does not know a command of the formula {latex}")
    return formula


def write_inline(writer: Any, node: Any) -> None:
    writer.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def write_block(writer: Any, node: Any) -> None:
    writer.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def write_redirect(app: Any, error: Exception | None) -> None:
    """Lead from the top of the site to its front page."""
    if not error:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, "utf-8")


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", mark_examples, priority=400)  # before napoleon sees the word
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("build-finished", write_redirect)
    repository_pages.connect(app)
