"""The settings that a study searches: those marked with `Search`, or those that `--param` names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_yaml
from rl_training.hparams.base import closest
from rl_training.hparams.fields import Search

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RUN_SETTINGS = ("num_envs", "clip_rewards")  # others than the algorithm's own that change how it learns
_GROUP = "algo_kwargs."
_DIGITS = 4  # of a number that the search has found


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched. Its range, or its choices, hold the given value."""

    name: str  # as `--set` names it
    search: Search
    given: Any
    whole: bool  # whether the setting is a whole number

    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        search = self.search
        if search.choices:
            return CategoricalDistribution([_stored_choice(choice) for choice in search.choices])
        if self.whole:
            return IntDistribution(int(search.low), int(search.high), log=search.log)
        return FloatDistribution(search.low, search.high, log=search.log)

    @property
    def stored_given(self) -> Any:
        """The given value as the journal holds it."""
        if self.search.choices:
            return _stored_choice(self.given)
        return 1.0 - self.given if self.search.one_minus else self.given

    def setting(self, stored: Any) -> Any:
        """Return the value of the setting for a value in the journal."""
        if stored == self.stored_given:
            return self.given
        if self.search.choices:
            return next(choice for choice in self.search.choices if _stored_choice(choice) == stored)
        if self.whole:
            return int(stored)
        return float(f"{1.0 - stored if self.search.one_minus else stored:.{_DIGITS}g}")

    def describe(self) -> str:
        """Return the range or the choices as text."""
        if self.search.choices:
            return ", ".join(map(str, self.search.choices))
        ends = [self.search.low, self.search.high]
        if self.search.one_minus:
            ends = [1.0 - end for end in reversed(ends)]
        return f"{ends[0]:g} to {ends[1]:g}{', logarithmic' * self.search.log}"


Space = tuple[Dimension, ...]


def search_space(config: TrainConfig, params: Sequence[str] = ()) -> Space:
    """Return what is searched around a config: the settings that `params` name, or else all that are marked.

    `params`: names such as "gamma", or names with choices such as "num_envs=4,8,16".
    """
    if params:
        space = tuple(_named(config, param) for param in params)
        names = [dimension.name for dimension in space]
        if len(set(names)) < len(names):
            raise ConfigError(f"--param names a setting twice: {', '.join(names)}")
        return space
    found = (_marked(config, name) for name in config.spec.hparams.model_fields)
    return tuple(dimension for dimension in found if dimension is not None)


def config_with(config: TrainConfig, space: Space, params: Mapping[str, Any]) -> TrainConfig:
    """Return the config with the values of a trial; raise `ConfigError` for values that do not fit together."""
    changes: dict[str, Any] = {"algo_kwargs": dict(config.algo_kwargs)}
    for dimension in space:
        group = changes["algo_kwargs"] if dimension.name.startswith(_GROUP) else changes
        group[dimension.name.removeprefix(_GROUP)] = dimension.setting(params[dimension.name])
    return config.updated(**changes)


def as_record(space: Space) -> dict[str, Any]:
    """Return the space as plain values, for a YAML file."""
    return {dimension.name: _record(dimension) for dimension in space}


def from_record(config: TrainConfig, record: Mapping[str, Mapping[str, Any]]) -> Space:
    """Return the space of `as_record`; raise `ValueError`, `TypeError` or `LookupError` for a damaged record."""
    space = []
    for name, values in record.items():
        marks = {**values}
        given = marks.pop("given")
        search = Search(**{**marks, "choices": tuple(marks.get("choices", ()))})
        space.append(Dimension(name, search, given, _is_whole(_field(config, name))))
    return tuple(space)


def _record(dimension: Dimension) -> dict[str, Any]:
    search = dimension.search
    if search.choices:
        return {"choices": list(search.choices), "given": dimension.given}
    switches = {name: True for name in ("log", "one_minus") if getattr(search, name)}
    return {"low": search.low, "high": search.high, **switches, "given": dimension.given}


# --- Dimensions ------------------------------------------------------------------------------------------------------


def _marked(config: TrainConfig, field: str) -> Dimension | None:
    """Return the dimension of a marked setting; None if it is not marked, or its value is not on the marked scale."""
    name = f"{_GROUP}{field}"
    info, search = _field(config, name), _mark(_field(config, name))
    if search is None:
        return None
    given = _given(config, field)
    return _choices(name, info, search.choices, given) if search.choices else _range(name, info, search, given)


def _named(config: TrainConfig, param: str) -> Dimension:
    """Return the dimension that a `--param` names."""
    short, has_choices, text = param.partition("=")
    field = short.removeprefix(_GROUP)
    name = field if field in RUN_SETTINGS else f"{_GROUP}{field}"
    if name not in RUN_SETTINGS and field not in config.spec.hparams.model_fields:
        known = [*config.spec.hparams.model_fields, *RUN_SETTINGS]
        raise ConfigError(f"{config.algo} has no setting {short!r} to tune; {closest(field, known)}")
    info, given = _field(config, name), _given(config, field)
    choices = _read_choices(short, text, info) if has_choices else _own_choices(info)
    if choices:
        return _choices(name, info, choices, given)
    search = _mark(info)
    example = f"give choices, such as --param {short}={json.dumps(given)},..."
    if search is None:
        raise ConfigError(f"{name} has no range to search: {example}")
    dimension = _range(name, info, search, given)
    if dimension is None:
        raise ConfigError(f"{name} is {json.dumps(given)}, which lies on no scale to search: {example}")
    return dimension


def _choices(name: str, info: FieldInfo, choices: Sequence[Any], given: Any) -> Dimension:
    """Return a dimension of choices, the given value among them."""
    plain = [_plain(choice) for choice in choices]
    held = plain if given in plain else [given, *plain]
    return Dimension(name, Search(choices=tuple(held)), given, _is_whole(info))


def _range(name: str, info: FieldInfo, search: Search, given: Any) -> Dimension | None:
    """Return a range that holds the given value; None if that is not on its scale, such as null."""
    if isinstance(given, bool | str | NoneType):
        return None
    stored = 1.0 - given if search.one_minus else given
    if search.log and stored <= 0:
        return None
    held = replace(search, low=min(search.low, stored), high=max(search.high, stored))
    return Dimension(name, held, given, _is_whole(info))


def _own_choices(info: FieldInfo) -> tuple[Any, ...]:
    """Return the choices of a setting that has few values; empty for others."""
    if info.annotation is bool:
        return (False, True)
    if (search := _mark(info)) is not None:
        return search.choices
    return get_args(info.annotation) if get_origin(info.annotation) is Literal else ()


def _read_choices(name: str, text: str, info: FieldInfo) -> list[Any]:
    """Read choices such as "4,8,16" or "[64, 64],[256, 256]", and check each by itself."""
    choices = parse_yaml(f"[{text}]", f"--param {name}")
    if not choices:
        raise ConfigError(f"--param {name}= needs choices, such as --param {name}=1,2")
    adapter: TypeAdapter[Any] = TypeAdapter(info.rebuild_annotation())
    checked: list[Any] = []
    for choice in choices:
        try:
            value = _plain(adapter.validate_python(choice))
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            raise ConfigError(f"--param {name}: {json.dumps(choice)} is rejected: {problem}") from None
        if value not in checked:
            checked.append(value)
    return checked


def _field(config: TrainConfig, name: str) -> FieldInfo:
    """Return the field of a setting, as `Dimension.name` names it."""
    if name in RUN_SETTINGS:
        return TrainConfig.model_fields[name]
    return config.spec.hparams.model_fields[name.removeprefix(_GROUP)]


def _mark(info: FieldInfo) -> Search | None:
    return next((mark for mark in info.metadata if isinstance(mark, Search)), None)


def _is_whole(info: FieldInfo) -> bool:
    return info.annotation is int


def _given(config: TrainConfig, field: str) -> Any:
    """Return the value of a setting as plain JSON."""
    return getattr(config, field) if field in RUN_SETTINGS else json.loads(config.hparams.model_dump_json())[field]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _stored_choice(choice: Any) -> Any:
    """Return a choice as Optuna stores it: lists as text."""
    return json.dumps(choice) if isinstance(choice, list) else choice
