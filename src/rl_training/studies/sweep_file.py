"""The file of a sweep: which settings are combined, and the configs that come of it.

configs: [dqn/cartpole, ppo/cartpole]
set: {total_timesteps: 50_000}
grid:
  algo_kwargs.learning_rate: [1e-3, 3e-4]
  "num_envs,algo_kwargs.batch_size": [[1, 32], [4, 128]]
seeds: 0-4
exclude: [{algo: ppo, algo_kwargs.learning_rate: 1e-3}]

Nothing here imports torch, so that a mistake in the file is reported at once.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rl_training.core.seeding import parse_seeds
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import (
    build_config,
    find_config_file,
    parse_settings,
    read_config_text,
    set_value,
)
from rl_training.hparams.base import Settings, explain, unknown_setting
from rl_training.hparams.datasets import dataset_choice

_GROUPS = ("algo_kwargs", "env_kwargs")  # written as a group, they change single settings in it, as dotted names do
_MAX_COMBINATIONS = 10_000
_MAX_NAME = 80  # characters of a folder's name without the digest
_SHOWN = 3  # combinations that are named with a reason


class SweepSettings(Settings):
    """What a sweep file may hold."""

    configs: list[str] = Field(default_factory=list, description="config files, as for `train`; each is combined")
    set: dict[str, Any] = Field(default_factory=dict, description="settings of all runs")
    grid: dict[str, Any] = Field(default_factory=dict, description="settings with the lists of their values")
    seeds: Any = Field("0", description='seeds of each combination, such as "0-4"')
    exclude: list[dict[str, Any]] = Field(default_factory=list, description="combinations to leave out")


@dataclass(frozen=True, eq=False)
class Combination:
    """One config of a sweep; it is run with every seed."""

    label: str
    config: TrainConfig
    chosen: Mapping[str, Any]  # its values of the grid

    @cached_property
    def digest(self) -> str:
        return self.config.digest()

    @property
    def folder_name(self) -> str:
        short = re.sub(r"[^A-Za-z0-9._=-]+", "-", self.label)[:_MAX_NAME].strip("-.")
        return f"{short}__{self.digest}"


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read and checked."""

    text: str
    folder: Path
    combinations: Sequence[Combination]
    seeds: Sequence[int]


@dataclass(frozen=True)
class _Candidate:
    """Settings that are not checked yet, or were refused."""

    source: str  # the config file
    chosen: Mapping[str, Any]
    settings: Mapping[str, Any]
    config: TrainConfig | None
    refusal: str

    @property
    def label(self) -> str:
        values = [f"{name.removeprefix('algo_kwargs.')}={_text(value)}" for name, value in self.chosen.items()]
        main = [str(self.settings.get(name, "")) for name in ("algo", "env_id")]
        return " ".join([*filter(None, main), *(word for word in values if not word.startswith(("algo=", "env_id=")))])

    @property
    def all_settings(self) -> Mapping[str, Any]:
        """The settings with the defaults, unless they were refused."""
        return self.settings if self.config is None else self.config.resolved().model_dump(mode="json")


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file and build every config of it; raise `ConfigError` if one is refused."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: the name of a sweep file must end in .yaml: its runs lie in a folder named without")
    text = read_config_text(path)
    try:
        return _parse(text, path)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _parse(text: str, path: Path) -> Sweep:
    try:
        file = SweepSettings(**parse_settings(text, str(path)))
    except ValidationError as error:
        raise explain(error, SweepSettings, "") from None
    seeds = file.seeds if isinstance(file.seeds, list) else [file.seeds]
    candidates = _without_excluded(list(_candidates(file)), [_flat("exclude", group) for group in file.exclude])
    counts = Counter(candidate.label for candidate in candidates)
    labels = [
        f"{each.label} ({each.source})" if counts[each.label] > 1 and len(file.configs) > 1 else each.label
        for each in candidates
    ]
    named = list(zip(labels, candidates, strict=True))
    refuse({label: each.refusal for label, each in named if each.refusal}, len(candidates))
    combinations = [Combination(label, each.config, each.chosen) for label, each in named if each.config is not None]
    _check_different(combinations)
    return Sweep(text, path.absolute().with_suffix(""), combinations, parse_seeds(",".join(map(str, seeds))))


def _candidates(file: SweepSettings) -> Iterator[_Candidate]:
    """Yield each config with each row of the grid."""
    common = _flat("set", file.set)
    grid = _grid(file.grid)
    if both := sorted(common.keys() & {name for names, _ in grid for name in names}):
        raise ConfigError(f"{both[0]} is given in set and in grid")
    count = max(1, len(file.configs)) * math.prod(len(rows) for _, rows in grid)
    if count > _MAX_COMBINATIONS:
        raise ConfigError(f"the grid has {count:,} combinations, more than {_MAX_COMBINATIONS:,}")
    bases = {name: _base(name) for name in file.configs} or {"": {}}
    for source, base in bases.items():
        base = dict(base)
        for name, value in common.items():
            _set(base, name, value, "set")
        for rows in itertools.product(*(rows for _, rows in grid)):
            chosen = {
                name: value
                for (names, _), row in zip(grid, rows, strict=True)
                for name, value in zip(names, row, strict=True)
            }
            settings = dict(base)
            for name, value in chosen.items():
                _set(settings, name, value, "grid")
            yield _checked(source, chosen, settings)


def _base(name: str) -> dict[str, Any]:
    path = find_config_file(name)
    return parse_settings(read_config_text(path), str(path))


def _set(settings: dict[str, Any], name: str, value: Any, where: str) -> None:
    try:
        set_value(settings, name, value)
    except ConfigError as error:
        raise ConfigError(f"{where}.{name}: {error}") from None


def _checked(source: str, chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> _Candidate:
    try:
        config = build_config(settings)
        if not config.env_id:
            raise ConfigError("env_id is empty: runs are compared by the returns of their evaluations in it")
        if choice := dataset_choice(config.hparams):
            choice.check_given(config.algo)
    except ConfigError as error:
        return _Candidate(source, chosen, settings, None, str(error))
    return _Candidate(source, chosen, settings, config, "")


def _grid(grid: Mapping[str, Any]) -> list[tuple[list[str], list[list[Any]]]]:
    """Return the names of each entry of the grid with its rows: one value for each name."""
    found = []
    seen: list[str] = []
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid.{key} must be a list of values, got {values!r}")
        names = [name.strip() for name in key.split(",")]
        for name in names:
            _check_name("grid", name)
            if name in seen:
                raise ConfigError(f"{name} is given twice in grid")
            seen.append(name)
        rows = [[value] for value in values] if len(names) == 1 else values
        for row in rows:
            if not isinstance(row, list) or len(row) != len(names):
                raise ConfigError(f"grid.{key} must be a list of lists with {len(names)} values each, got {row!r}")
        found.append((names, rows))
    return found


def _flat(where: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names that `--set` takes."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        _check_name(where, name)
        if name in _GROUPS and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flat[name] = value
    return flat


def _check_name(where: str, name: str) -> None:
    if name == "seed":
        raise ConfigError(f"{where}: seed is not swept here: list them under seeds, such as `seeds: 0-4`")
    if name == "output_dir":
        raise ConfigError(f"{where}: output_dir cannot be set: the runs lie in the folder beside the sweep file")


def _without_excluded(candidates: Sequence[_Candidate], exclude: Sequence[Mapping[str, Any]]) -> Sequence[_Candidate]:
    if not exclude:
        return candidates
    settings = [candidate.all_settings for candidate in candidates]
    left = list(range(len(candidates)))
    for group in exclude:
        if not group:
            raise ConfigError("exclude: an empty group would exclude everything")
        for name in group:
            if not any(_has(each, name) for each in settings):
                known = {name for each in settings for name in [*each, *_flat("exclude", _groups_of(each))]}
                raise ConfigError(unknown_setting("exclude", name, known))
        matching = [number for number, each in enumerate(settings) if _matches(each, group)]
        if not matching:
            shown = " ".join(f"{name}={_text(value)}" for name, value in group.items())
            raise ConfigError(f"exclude: no combination has {shown}")
        left = [number for number in left if number not in matching]
    if not left:
        raise ConfigError("every combination is excluded")
    return [candidates[number] for number in left]


def _groups_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _GROUPS if name in settings}


_MISSING = object()


def _get(settings: Mapping[str, Any], name: str) -> Any:
    place: Any = settings
    for part in name.split("."):
        place = place.get(part, _MISSING) if isinstance(place, Mapping) else _MISSING
    return place


def _has(settings: Mapping[str, Any], name: str) -> bool:
    return _get(settings, name) is not _MISSING


def _matches(settings: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    return all(_get(settings, name) == value for name, value in group.items())


def refuse(reasons: Mapping[str, str], total: int) -> None:
    """Raise `ConfigError` if combinations are refused; `reasons`: by their labels. Equal reasons are shown once."""
    labels: dict[str, list[str]] = defaultdict(list)
    for label, reason in reasons.items():
        labels[reason].append(label)
    if len(reasons) == total and len(labels) == 1:
        raise ConfigError(next(iter(labels)))
    if reasons:
        lines = [f"{len(reasons)} of {total} combinations are refused, and nothing was run:"]
        for reason, those in labels.items():
            more = f" and {len(those) - _SHOWN} more" if len(those) > _SHOWN else ""
            lines.append(f"  {reason}\n    in: {'; '.join(those[:_SHOWN])}{more}")
        lines.append("correct the values, or list these combinations under exclude")
        raise ConfigError("\n".join(lines))


def _check_different(combinations: Sequence[Combination]) -> None:
    seen: dict[str, Combination] = {}
    for combination in combinations:
        other = seen.setdefault(combination.digest, combination)
        if other is not combination:
            raise ConfigError(f"{other.label!r} and {combination.label!r} are the same experiment: remove one of them")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
