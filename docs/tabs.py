"""Tabs of the site, from marks that leave a page readable without it.

<!-- tabs -->

**With pip**

...

**From a clone**

...

<!-- end tabs -->
"""

import re

MARKED = re.compile(r"<!-- tabs -->\n(.*?)<!-- end tabs -->\n", re.DOTALL)
LABEL = re.compile(r"^\*\*(.+)\*\*\n", re.MULTILINE)


def as_tab_sets(text: str) -> str:
    """Replace marked alternatives by tab sets of sphinx-design; a line in bold begins each."""
    return MARKED.sub(lambda match: tab_set(match[1]), text)


def tab_set(body: str) -> str:
    before, *parts = LABEL.split(body)
    if before.strip() or not parts:
        raise ValueError(f"tabs begin with a line in bold, got {body.strip()[:60]!r}")
    items = "".join(
        f":::{{tab-item}} {label}\n{content}:::\n" for label, content in zip(parts[::2], parts[1::2], strict=True)
    )
    return f"::::{{tab-set}}\n{items}::::\n"
