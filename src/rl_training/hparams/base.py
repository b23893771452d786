"""What every settings class has: frozen values, refusal of unknown keys, checks, and errors a user can act on."""

import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, cast, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from rl_training.errors import ConfigError
from rl_training.hparams.checks import Check, run_checks
from rl_training.hparams.fields import Search


class Settings(BaseModel):
    """Frozen values; unknown keys are refused; NaN and infinity are not numbers here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")


class HParams(Settings):
    """Base of every `<Algo>HParams`: what an algorithm's `algo_kwargs` may say.

    Each class lists all its fields itself, in the order data, network, optimizer, algorithm. Classes share field types
    (fields.py) and checks (checks.py), never a parent.
    """

    checks: ClassVar[tuple[Check, ...]] = ()
    run_checks: ClassVar[tuple[Check, ...]] = ()  # those that also look at the run: num_envs, has_env, clip_rewards

    @model_validator(mode="after")
    def _run_checks(self) -> "HParams":
        run_checks(self.checks, dict(self))
        return self

    def check_run(self, num_envs: int, *, has_env: bool = True, clip_rewards: bool = False) -> None:
        """Raise ValueError for settings that do not fit the run."""
        run = {"num_envs": num_envs, "has_env": has_env, "clip_rewards": clip_rewards}
        run_checks(self.run_checks, {**dict(self), **run})


_CHANCE = ("sampled_evaluation", "evaluation_epsilon")


def chance_settings(hparams: HParams) -> dict[str, Any]:
    """Return the settings by which evaluations do not always choose the best action; empty: they do."""
    return {name: value for name in _CHANCE if (value := getattr(hparams, name, None))}


HParamsT = TypeVar("HParamsT", bound=HParams)


def variant(name: str, of: type[HParamsT], doc: str, **defaults: Any) -> type[HParamsT]:
    """Return settings with the fields and checks of another class, but other defaults.

    A setting whose new default lies outside of its search is not searched.

    The new class has `HParams` as its only parent. A type checker takes it for `of`, whose fields it has; `isinstance`
    does not.
    """
    unknown = sorted(defaults.keys() - of.model_fields.keys())
    if unknown:
        raise TypeError(unknown_setting(name, unknown[0], of.model_fields))
    fields: dict[str, Any] = {
        field: (_annotation(info, default), Field(default, description=info.description))
        for field, info in of.model_fields.items()
        for default in [defaults.get(field, info.default)]
    }
    checks: dict[str, Any] = {kind: (ClassVar, getattr(of, kind)) for kind in ("checks", "run_checks")}
    made = create_model(name, __base__=HParams, __module__=of.__module__, __doc__=doc, **checks, **fields)
    return cast(type[HParamsT], made)


def _annotation(info: FieldInfo, default: Any) -> Any:
    """Return the annotated type of a field, without a search that does not hold the default."""
    kept = [mark for mark in info.metadata if not isinstance(mark, Search) or mark.holds(default)]
    if len(kept) == len(info.metadata):
        return info.rebuild_annotation()
    annotated: Any = info.annotation
    for mark in kept:
        annotated = Annotated[annotated, mark]
    return annotated


def explain(
    error: ValidationError, model: type[Settings], prefix: str, *, elsewhere: Iterable[str] = ()
) -> ConfigError:
    """Turn pydantic's report into lines such as `dqn.algo_kwargs.gamma must be in [0, 1], got 1.3`.

    `elsewhere`: settings of another group, such as `algo_kwargs.gamma`, that an unknown one may mean.
    """
    details = _one_per_setting([dict(detail) for detail in error.errors()], model)
    return ConfigError("\n".join(_explain_one(detail, model, prefix, elsewhere) for detail in details))


def _one_per_setting(details: list[dict[str, Any]], model: type[Settings]) -> list[dict[str, Any]]:
    """Merge the reports about the kinds that one setting may have, such as a number or `auto`."""
    merged: dict[object, dict[str, Any]] = {}
    for number, detail in enumerate(details):
        location = detail["loc"]
        field = model.model_fields.get(str(location[0])) if len(location) == 2 else None
        if field is None or get_origin(field.annotation) not in (Union, UnionType):
            merged[number] = detail
            continue
        wanted = _rule(detail).removeprefix("must be ")
        if location[0] in merged:
            merged[location[0]]["msg"] += f" or {wanted}"
        else:
            merged[location[0]] = detail | {"loc": location[:1], "msg": f"must be {wanted}", "type": "kind"}
    return list(merged.values())


def _explain_one(detail: Mapping[str, Any], model: type[Settings], prefix: str, elsewhere: Iterable[str]) -> str:
    location = [str(part) for part in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        return unknown_setting(prefix, location[-1], model.model_fields, elsewhere)
    name = ".".join([prefix, *location]).lstrip(".")
    if detail["type"] == "missing":
        return f"{name} is missing: {model.model_fields[location[0]].description}"
    message = _rule(detail)
    if not location:  # a check over several settings names them itself
        return f"{prefix}: {message}".lstrip(": ")
    field = model.model_fields.get(location[0])
    interval = _interval(field.metadata) if field is not None and len(location) == 1 else None
    if detail["type"] in _RANGE_ERRORS and interval:
        message = f"must be {interval}"
    return f"{name} {message}, got {detail['input']!r}"


def _rule(detail: Mapping[str, Any]) -> str:
    """Return what a value must be, in the words of a config file."""
    message: str = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "path_type":
        return "must be a path"
    if detail["type"] in _SIGNS:
        (bound,) = detail["ctx"].values()
        return f"must be {_SIGNS[detail['type']]} {bound:g}"
    if not message.startswith("Input should be "):
        return message if message.startswith("must") or not detail["loc"] else f"must be {message}"
    rule = message.removeprefix("Input should be ")
    return f"must be {_KINDS.get(rule, rule)}"


_KINDS = {
    "a valid string": "a text",
    "a valid number": "a number",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "a group of settings",
}
_SIGNS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
_RANGE_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}


def _interval(metadata: Iterable[Any]) -> str | None:
    """Write a field's bounds as an interval: `in (0, 1]`, `>= 1`."""
    low: tuple[str, str, Any] | None = None
    high: tuple[str, str, Any] | None = None
    for bound in metadata:
        if isinstance(bound, Ge):
            low = ("[", ">=", bound.ge)
        elif isinstance(bound, Gt):
            low = ("(", ">", bound.gt)
        elif isinstance(bound, Le):
            high = ("]", "<=", bound.le)
        elif isinstance(bound, Lt):
            high = (")", "<", bound.lt)
    if low and high:
        return f"in {low[0]}{low[2]:g}, {high[2]:g}{high[0]}"
    one = low or high
    return f"{one[1]} {one[2]:g}" if one else None


def unknown_setting(where: str, found: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return a message that a key is unknown, with the known one that was probably meant."""
    return f"{where}: unknown setting {found!r}; {closest(found, known, elsewhere)}".removeprefix(": ")


def closest(found: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return a hint for an unknown name: the known one that was probably meant, or all of them."""
    known = list(known)
    by_last_name = {name.rpartition(".")[2]: name for name in (*elsewhere, *known)}
    close = difflib.get_close_matches(found, by_last_name, n=1, cutoff=0.6)
    return f"did you mean {by_last_name[close[0]]!r}?" if close else f"known: {', '.join(sorted(known))}"
