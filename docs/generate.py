"""Write the tables of settings and algorithms into the pages, between `begin generated` and `end generated` marks.

    python docs/generate.py            write
    python docs/generate.py --check    change nothing; exit code 1 if a page is stale

A mark names its table: `config`, `algorithms`, `hparams <algo>`, or `hparams <algo> from <other>`, which lists only
what differs from the other algorithm's settings. tests/test_docs.py runs the check.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import find_spec, registry
from rl_training.hparams.base import Settings

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- begin generated: (?P<table>[\w ]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def settings_table(model: type[Settings], base: type[Settings] = Settings) -> Iterator[str]:
    """Give a row for each setting that `base` lacks, or has another default for."""
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name in base.model_fields and default_of(field) == default_of(base.model_fields[name]):
            continue
        meaning = (field.description or "").replace("|", "\\|")
        yield f"| `{name}` | {default_of(field)} | {values_of(field)} | {meaning} |"


def hparams_table(algo: str, other: str = "") -> Iterator[str]:
    """Yield every setting of an algorithm, or those that differ from another's page."""
    model = find_spec(algo).hparams
    if not other:
        yield from settings_table(model)
        return
    yield f"What differs from [{other}]({other}.md#settings); all other settings and defaults are those listed there."
    yield ""
    yield from settings_table(model, find_spec(other).hparams)


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value == "":
        return "empty"
    if isinstance(value, Path):
        return f"`{value}`"
    if isinstance(value, bool) or value is None:
        return f"`{ {True: 'true', False: 'false', None: 'null'}[value] }`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def values_of(field: FieldInfo) -> str:
    """Say what a field takes: its choices, or its kind and its bounds."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    bounds = [text for bound in field.metadata if (text := bound_text(bound))]
    return " ".join([kind_of(field.annotation), ", ".join(bounds)]).strip()


def bound_text(bound: Any) -> str:
    signs = ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Le, "≤", "le"), (Lt, "<", "lt"))
    return next((f"{sign} {getattr(bound, name):g}" for kind, sign, name in signs if isinstance(bound, kind)), "")


def kind_of(annotation: Any) -> str:
    names = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text", Path: "path"}
    if annotation in names:
        return names[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return "group of settings"
    if origin is tuple:
        return "list of whole numbers ≥ 1" if Ellipsis in parts else f"list of {len(parts)} whole numbers"
    kinds = [kind_of(part) for part in parts if part is not type(None) and isinstance(part, type)]
    # An annotated number beside None, such as `Real | None`, hides its type one level down.
    inner = [part for part in parts if get_args(part) and get_origin(part) is not Literal]
    kinds += [kind_of(part if get_origin(part) is tuple else get_args(part)[0]) for part in inner]
    kinds += [f"`{choice}`" for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    return " or ".join([*kinds, *(["`null`"] if type(None) in parts else [])])


def algorithms_table() -> Iterator[str]:
    yield "| `algo` | class | what it is | actions | observations | page |"
    yield "|---|---|---|---|---|---|"
    for spec in registry().values():
        page = ROOT / "docs" / "algorithms" / f"{spec.name}.md"
        link = f"[{spec.name}]({page.relative_to(ROOT)})" if page.is_file() else ""
        kinds = (", ".join(sorted(spec.actions)), ", ".join(sorted(spec.observations)))
        cells = (f"`{spec.name}`", f"`{spec.class_name}`", spec.summary, *kinds, link)
        yield f"| {' | '.join(cells)} |"


def table(name: str) -> str:
    kind, _, algo = name.partition(" ")
    if kind == "config":
        lines = settings_table(TrainConfig)
    elif kind == "algorithms":
        lines = algorithms_table()
    elif kind == "hparams":
        lines = hparams_table(*algo.split(" from "))
    else:
        raise ValueError(f"unknown table {name!r}; known: config, algorithms, hparams <algo> [from <other>]")
    return "\n".join(lines) + "\n"


def regenerated(text: str) -> str:
    return MARKED.sub(lambda match: match[1] + table(match["table"]) + match[3], text)


def stale_pages() -> list[Path]:
    return [page for page in pages() if regenerated(page.read_text("utf-8")) != page.read_text("utf-8")]


def main() -> int:
    stale = stale_pages()
    check_only = "--check" in sys.argv[1:]
    for page in stale:
        print(f"{'stale' if check_only else 'written'}: {page.relative_to(ROOT)}")
        if not check_only:
            page.write_text(regenerated(page.read_text("utf-8")), "utf-8")
    return 1 if stale and check_only else 0


if __name__ == "__main__":
    sys.exit(main())
