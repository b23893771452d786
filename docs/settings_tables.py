"""Tables of algorithms and settings, from the registry and the settings classes."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from rl_training.core.kinds import ActionKind
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import AlgorithmSpec, find_spec, registry
from rl_training.hparams.base import Settings

DOCS = Path(__file__).resolve().parent
ACTION_SPACES = {
    "discrete": "`Discrete`",
    "box": "`Box` of floats with finite bounds",
    "multidiscrete": "`MultiDiscrete`",
    "multibinary": "`MultiBinary`",
}


def config_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    yield from settings_table(TrainConfig)


def hparams_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Describe the settings of an algorithm: `hparams redq`, or `hparams redq from sac` for what differs from SAC."""
    algo, base = (arguments[0], arguments[2]) if arguments[1:2] == ["from"] else (arguments[0], None)
    model = find_spec(algo).hparams
    if base is None:
        yield from settings_table(model)
        return
    base_model = find_spec(base).hparams
    missing = [name for name in base_model.model_fields if name not in model.model_fields]
    without = f" It has no {', '.join(f'`{name}`' for name in missing)}." if missing else ""
    line = f"Only what differs from [{base}]({base}.md#settings).{without}"
    yield from textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield from settings_table(model, base_model)


def settings_table(model: type[Settings], base: type[Settings] | None = None) -> Iterator[str]:
    """Describe each setting that `base` lacks, or has another default for."""
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    known = base.model_fields if base else {}
    for name, field in model.model_fields.items():
        if name in known and default_of(field) == default_of(known[name]):
            continue
        meaning = (field.description or "").replace("|", "\\|")
        yield f"| `{name}` | {default_of(field)} | {values_of(field)} | {meaning} |"


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
    """Describe what a field takes: its choices, or its kind and its bounds."""
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
    # An annotated number with an alternative, such as `Real | None`, hides its type one level down.
    inner = [part for part in parts if get_args(part) and get_origin(part) is not Literal]
    kinds += [kind_of(part if get_origin(part) is tuple else get_args(part)[0]) for part in inner]
    kinds += [f"`{choice}`" for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    return " or ".join([*kinds, *(["`null`"] if type(None) in parts else [])])


def algorithms_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    yield "| `algo` | class | what it is | actions | observations |"
    yield "|---|---|---|---|---|"
    for spec in registry().values():
        kinds = (", ".join(sorted(spec.actions)), ", ".join(sorted(spec.observations)))
        yield f"| {' | '.join((page_link(spec, folder), f'`{spec.class_name}`', spec.summary, *kinds))} |"


def setting_links(folder: Path, arguments: list[str]) -> Iterator[str]:
    links = ", ".join(page_link(spec, folder, "#settings") for spec in registry().values())
    yield from textwrap.wrap(f"{links}.", 100, break_long_words=False, break_on_hyphens=False)


def action_spaces_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    yield "| action space | algorithms |"
    yield "|---|---|"
    for kind in get_args(ActionKind):
        names = [page_link(spec, folder) for spec in registry().values() if kind in spec.actions]
        yield f"| {ACTION_SPACES[kind]} | {', '.join(names)} |"
    yield "| others | none |"


def page_link(spec: AlgorithmSpec, folder: Path, anchor: str = "") -> str:
    page = DOCS / "algorithms" / f"{spec.name}.md"
    return f"[`{spec.name}`]({os.path.relpath(page, folder)}{anchor})" if page.is_file() else f"`{spec.name}`"
