"""YAML files of settings: found, read and changed by "key=value" strings, before `TrainConfig` checks them.

Values from files are plain: numbers, texts, lists and groups, of bounded size.
"""

import json
import re
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from rl_training.core.durable_files import read_text
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.fields import expand_home

PACKAGED_CONFIGS = Path(__file__).parent.parent / "assets" / "configs"
SHIPPED_SCORES = PACKAGED_CONFIGS.parent / "scores.json"
_MAX_CONFIG_BYTES = 2**20
_MAX_VALUES, _MAX_DEPTH = 100_000, 50  # in one config
_MAX_NAME, _MAX_TEXT = 1_000, 2**24  # characters: of one name, and of all names and texts together
_MAX_DIGITS = 10_000  # of one number, which Python may read in quadratic time
_GROUPS = ("algo_kwargs", "env_kwargs", "wrappers")  # whose lines may all be commented out
_MAX_CLOSE_CONFIGS = 6  # a message with more suggestions does not help


class _StrictLoader(yaml.SafeLoader):
    """YAML without its traps: `3e-4` is a number, duplicate keys are errors, and so is what would take minutes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._left = 2 * _MAX_VALUES + 1  # values and their names

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._left -= 1
        if self._left < 0:
            raise _too_many()
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: dict[Any, Any]) -> yaml.ScalarNode:
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(node.value) > _MAX_DIGITS:
            line = node.start_mark.line + 1
            raise ConfigError(f"line {line} has a number of {len(node.value):,} characters")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":  # a few of them can stand for more keys than memory holds
                raise ConfigError(f"`<<` (line {line}) is not supported: write its settings out")
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                break  # rejected below, with its name
            if key in seen:
                raise ConfigError(f"setting {key!r} is given twice (line {line})")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)
# A date is a text here: no setting is a date, and JSON has none.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _StrictLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, source: str) -> Any:
    try:
        values = yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: it builds plain values only
        check_plain(values)
        return values
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValueError as error:  # from Python, such as for an integer of 5,000 digits
        raise ConfigError(f"{source} holds a value that cannot be read: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # such as for `!!bool maybe`
        raise ConfigError(f"{source} holds a value that cannot be read: {type(error).__name__}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None


def check_plain(settings: object) -> None:
    """Raise `ConfigError` for what no setting can be: other types than those of JSON, and huge numbers or structures.

    Values from files are checked before any use. YAML may repeat a part by its name, so that a short text stands for
    a structure that fills the memory.
    """
    left, text = _MAX_VALUES, _MAX_TEXT
    waiting: list[tuple[tuple[Any, ...], object, int]] = [((), settings, 0)]  # names on the way, value, depth
    while waiting:
        names, value, depth = waiting.pop()
        left -= 1
        if isinstance(value, Mapping):
            lengths = [len(str(key)) for key in value]
            if lengths and max(lengths) > _MAX_NAME:
                raise ConfigError(f"there is a name of {max(lengths):,} characters")
            text -= sum(lengths)
        elif isinstance(value, str):
            text -= len(value)
        if text < 0:
            raise ConfigError(f"there are more than {_MAX_TEXT:,} characters")
        if left < (len(value) if isinstance(value, Mapping | list) else 0) or depth > _MAX_DEPTH:
            raise _too_many()
        if isinstance(value, Mapping):
            waiting += [((*names, key), inner, depth + 1) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(names, inner, depth + 1) for inner in value]
        elif isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{_dotted(names)} is an integer of {value.bit_length():,} bits; at most 63 are possible")
        elif not (value is None or isinstance(value, str | int | float)):
            found = type(value).__name__
            raise ConfigError(f"{_dotted(names)} must be a number, a text, a list or a group, got a {found}")


def _dotted(names: Sequence[Any]) -> str:
    return ".".join(map(str, names))


def _too_many() -> ConfigError:
    return ConfigError(f"there are more than {_MAX_VALUES:,} values, or they are nested over {_MAX_DEPTH} deep")


def find_config_file(path: str | Path) -> Path:
    """Return the path of a config on disk, or else of one in the package, so that any working folder can be used."""
    path = expand_home(path)
    if path.is_file():
        return path
    parts = path.parts[1:] if path.parts[:1] == ("configs",) else path.parts
    packaged = PACKAGED_CONFIGS.joinpath(*parts)
    for candidate in (packaged, packaged.with_suffix(".yaml")):
        if not path.is_absolute() and candidate.is_file() and candidate.is_relative_to(PACKAGED_CONFIGS):
            return candidate
    shipped, requested = packaged_configs(), "/".join(parts)
    close = [name for name in shipped if requested and name.startswith(requested)] or get_close_matches(
        requested, shipped
    )
    hint = "`rl-training list` shows those that come with the package"
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{str(path)!r} is a pipe or a device, not a file; `-` reads a config from stdin")
    if 0 < len(close) <= _MAX_CLOSE_CONFIGS:
        hint = f"did you mean {' or '.join(f'configs/{name}' for name in close)}?"
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder, not a config file; {hint}")
    raise ConfigError(f"there is no config file {str(path)!r}; {hint}")


def packaged_configs() -> list[str]:
    return sorted(path.relative_to(PACKAGED_CONFIGS).as_posix() for path in PACKAGED_CONFIGS.rglob("*.yaml"))


def shipped_scores() -> dict[str, list[dict[str, Any]]]:
    """Return what the final policies of each shipped config reached, one entry per task."""
    scores: dict[str, list[dict[str, Any]]] = json.loads(SHIPPED_SCORES.read_text("utf-8"))
    return scores


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """Load a YAML config, or that of stdin (`-`); `overrides` are "key=value" strings: "algo_kwargs.gamma=0.98"."""
    if str(path) == "-":
        return parse_config(_read_stdin(), "stdin", overrides)
    path = find_config_file(path)
    return parse_config(read_config_text(path), str(path), overrides)


def _read_stdin() -> str:
    content = sys.stdin.buffer.read(_MAX_CONFIG_BYTES + 1)
    if len(content) > _MAX_CONFIG_BYTES:
        raise ConfigError(f"stdin has more than {_MAX_CONFIG_BYTES:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin cannot be read: {error}") from None


def read_config_text(path: Path, max_bytes: int = _MAX_CONFIG_BYTES) -> str:
    try:
        return read_text(path, max_bytes)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def parse_config(text: str, path: str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the settings of a YAML text; `path` names it in messages."""
    return build_config(parse_settings(text, path), overrides)


def parse_settings(text: str, path: str) -> dict[str, Any]:
    """Return what a YAML text says, not yet checked; `path` names it in messages."""
    values = parse_yaml(text, path)
    if values is None:
        raise ConfigError(f"{path} is empty: it must hold settings as `key: value` lines")
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} must hold settings as `key: value` lines, found {type(values).__name__}")
    return {str(key): value for key, value in values.items() if value is not None or key not in _GROUPS}


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Return the settings that "key=value" strings change, nested as in a config file."""
    settings: dict[str, Any] = {}
    for override in overrides:
        _apply_override(settings, override)
    return settings


def build_config(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> TrainConfig:
    """Build a config from settings; `overrides` as in `load_config`."""
    settings = dict(values)
    for override in overrides:
        _apply_override(settings, override)
    return TrainConfig(**settings)


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"a setting is given as key=value, such as algo_kwargs.gamma=0.98, got {override!r}")
    value = parse_yaml(text, override)
    try:
        set_value(values, key, value)
    except ConfigError as error:
        raise ConfigError(f"{override}: {error}") from None


def set_value(values: dict[str, Any], name: str, value: Any) -> None:
    """Set the value of a dotted name such as algo_kwargs.gamma; the groups on the way to it are copied."""
    *parents, last = name.split(".")
    place = values
    for parent in parents:
        child = place.get(parent)
        if child is not None and not isinstance(child, Mapping):
            raise ConfigError(f"{parent!r} is a single value, not a group of settings")
        place[parent] = place = dict(child or {})
    place[last] = value
