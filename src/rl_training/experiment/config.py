"""`TrainConfig`: the settings of one run, checked at construction, and their YAML files.

Nothing here imports torch, so that a mistake in a config is reported at once.
"""

import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError, field_serializer, model_validator

from rl_training.core.durable_files import read_text
from rl_training.errors import ConfigError
from rl_training.experiment.registry import AlgorithmSpec, find_spec, registry
from rl_training.hparams.base import HParams, Settings, explain
from rl_training.hparams.fields import (
    Count,
    CountOrZero,
    Fixed,
    HomePath,
    NonNegative,
    Positive,
    Real,
    Switch,
    expand_home,
)

PACKAGED_CONFIGS = Path(__file__).parent.parent / "assets" / "configs"
SHIPPED_SCORES = PACKAGED_CONFIGS.parent / "scores.json"
_MAX_CONFIG_BYTES = 2**20
_MAX_VALUES, _MAX_DEPTH = 100_000, 50  # in one config
_MAX_CLOSE_CONFIGS = 6  # a message with more suggestions does not help


FIXED_ENV = Fixed("the saved environments and transitions belong to it")
FIXED_SCALE = Fixed("the saved networks have learned from observations of this scale")


class TrainConfig(Settings):
    """The settings of one run: algorithm, environment, length, evaluation, logs and checkpoints."""

    algo: Annotated[str, Fixed("the saved state belongs to this algorithm")] = Field(
        description="algorithm name; `rl-training list` shows them"
    )
    env_id: Annotated[str, FIXED_ENV] = Field(
        "", description="Gymnasium id of the environment; optional for offline algorithms"
    )
    env_factory: Annotated[str, FIXED_ENV] = Field(
        "",
        description="`module:function` that makes the environment, which `env_id` then only names; a run that was "
        "started with a function remembers it here",
    )
    total_timesteps: Count = Field(description="env steps to train for; gradient steps for offline algorithms")
    seed: Annotated[CountOrZero, Fixed("the saved random streams continue")] = Field(
        0, description="the integer from which every random stream is derived"
    )
    num_envs: Annotated[Count, FIXED_ENV] = Field(1, description="environments stepped together")
    device: str = Field("auto", description='"auto", "cpu", "cuda" or "cuda:N"')
    execution_backend: Annotated[
        Literal["local_sync", "local_async", "envpool", "ray", "tensor", "vector"], FIXED_ENV
    ] = Field(
        "local_sync",
        description="envs in this process, one worker process per env, EnvPool's C++ threads, one worker process "
        "per env on the machines of a Ray cluster, tensor environments and the whole training on the device, or one "
        "`gymnasium.vector.VectorEnv`",
    )
    worker_start: Literal["auto", "fork", "spawn"] = Field(
        "auto",
        description="how `local_async` and `ray` start their processes; spawn: for environments that cannot be forked, "
        "such as those that hold an OpenGL context; auto: fork on Linux, else spawn",
    )
    max_episode_steps: Annotated[Count | None, FIXED_ENV] = Field(
        None, description="env steps after which an episode is truncated; unset: the limit of the environment, if any"
    )
    clip_rewards: Annotated[Switch, Fixed("the saved replay buffer holds rewards as it says")] = Field(
        False, description="learn from the sign of rewards, as is usual for Atari; reported returns are not clipped"
    )
    obs_max: Annotated[Literal["auto"] | Count | dict[str, Count], FIXED_SCALE] = Field(
        "auto",
        description="largest value of integer observations, which are divided by it, or by name for the parts of a "
        "Dict; auto: the bound of the space, or, where that is 255, what random episodes show",
    )
    one_hot_obs: Annotated[Switch, FIXED_SCALE] = Field(
        False, description="encode each value of an integer image, from 0 to obs_max, as a channel of 0 and 1"
    )
    worker_timeout: Positive = Field(
        60.0, description="seconds after which a call into an environment, or an env worker, counts as hung"
    )
    threads: Count = Field(
        1, le=1_024, description="CPU threads of PyTorch; small networks are fastest, and repeatable, with 1"
    )
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        "highest",
        description="precision of float32 matrix products; high: TF32 on a GPU, which convolutions use in any case; "
        "medium: bfloat16, also in compiled updates on a CPU that supports it",
    )
    acceleration: Literal["auto", "eager", "compile", "cuda_graph"] = Field(
        "auto", description="how the update step runs; auto chooses by the run's length, the device and the compiler"
    )
    check_compiled_every: CountOrZero = Field(
        0,
        description="calls of a compiled or captured step between comparisons with the eager one; 0 = only when it is "
        "new",
    )
    deterministic: Switch | Literal["auto"] = Field(
        "auto",
        description="kernels that repeat bit for bit on a GPU, which exact resume needs there; auto: for observations "
        "without images; a CPU always repeats",
    )
    output_dir: HomePath = Field(Path("runs"), description="folder in which the run folder is created")
    log_interval: Count = Field(1_000, description="env steps (offline: gradient steps) between records of metrics")
    eval_interval: CountOrZero = Field(
        0, description="env steps (offline: gradient steps) between evaluations; 0 = only at the end"
    )
    eval_episodes: Count = Field(5, description="episodes per evaluation")
    eval_envs: Count = Field(
        1,
        description="evaluation episodes played at the same time, each in a process of its own; returns do not depend "
        "on it unless actions are sampled",
    )
    stop_return: Real | None = Field(None, description="stop once an evaluation's mean return reaches this")
    checkpoint_interval: CountOrZero = Field(
        0,
        description="env steps (offline: gradient steps) between checkpoints; 0 = by time, at the end and on a signal",
    )
    checkpoint_minutes: NonNegative = Field(
        5.0, description="minutes between checkpoints, in addition to those of checkpoint_interval; 0 = none by time"
    )
    keep_checkpoints: Count = Field(3, description="newest checkpoints to keep; the best one is kept too")
    tensorboard: Switch = Field(True, description="also write TensorBoard event files")
    env_kwargs: Annotated[dict[str, Any], FIXED_ENV] = Field(
        default_factory=dict, description="keyword arguments of the environment"
    )
    wrappers: Annotated[list[str | dict[str, Any]], FIXED_ENV] = Field(
        default_factory=list,
        description="Gymnasium wrappers around the environment, innermost first: `module:Class`, or a group with "
        "`class` and its arguments",
    )
    algo_kwargs: dict[str, Any] = Field(default_factory=dict, description="the algorithm's own settings")

    _origin: Path | None = PrivateAttr(None)

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise explain(error, TrainConfig, "", elsewhere=_settings_of(settings.get("algo"))) from None

    @model_validator(mode="after")
    def _check_parts(self) -> "TrainConfig":
        hparams = self.hparams  # its errors name the setting
        if not self.env_id and self.spec.loop != "offline":
            raise ConfigError(f"env_id is missing: {self.algo} learns in an environment")
        if not self.env_id:
            for name in ("stop_return", "max_episode_steps", "env_kwargs", "wrappers"):
                if getattr(self, name) not in (None, {}, []):
                    raise ConfigError(f"{name} needs an environment, but env_id is empty")
        if self.max_episode_steps is not None and "max_episode_steps" in self.env_kwargs:
            raise ConfigError("max_episode_steps is given twice: as a setting of the run and in env_kwargs")
        try:
            hparams.check_run(self.num_envs, has_env=bool(self.env_id), clip_rewards=self.clip_rewards)
        except ValueError as error:
            raise ConfigError(f"{self.algo}.algo_kwargs: {error}") from None
        if self.execution_backend == "tensor":
            self._check_device_loop()
        if self.execution_backend == "vector" and self.wrappers:
            raise ConfigError(
                "wrappers are for single environments, but execution_backend is vector; apply them in a function that "
                "makes the vector environment, or use another backend"
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f'device must be "auto", "cpu", "cuda" or "cuda:N", got {self.device!r}')
        return self

    def _check_device_loop(self) -> None:
        """Raise for what a run on the device with tensor environments cannot do."""
        if not self.spec.device_loop:
            able = ", ".join(name for name, spec in registry().items() if spec.device_loop)
            raise ConfigError(
                f"execution_backend: tensor is not available for {self.algo}, only for {able}; with local_sync, tensor "
                "environments work for every algorithm"
            )
        if getattr(self.hparams, "target_kl", None) is not None:
            raise ConfigError("execution_backend: tensor cannot stop an update early; unset algo_kwargs.target_kl")
        hparams: Any = self.hparams
        plain: dict[str, Any] = {"noise_color": 0.0, "her": "none", "n_step_start": None, "gamma_start": None}
        plain |= {"reset_interval": None, "self_prediction_steps": 0}
        if getattr(hparams, "normalize_observations", "auto") != "auto" or getattr(hparams, "network", "") == "simba":
            plain["normalize_observations"] = False  # SimBa's networks normalise vectors unless told not to
        for name, value in plain.items():
            if getattr(hparams, name, value) != value:
                raise ConfigError(f"execution_backend: tensor needs algo_kwargs.{name}: {json.dumps(value)}")
        if self.clip_rewards:
            raise ConfigError("execution_backend: tensor has no clip_rewards; use another backend")

    @cached_property
    def spec(self) -> AlgorithmSpec:
        return find_spec(self.algo)

    @cached_property
    def hparams(self) -> HParams:
        """The settings of the algorithm, parsed from `algo_kwargs`, with defaults filled in."""
        try:
            return self.spec.hparams(**self.algo_kwargs)
        except ValidationError as error:
            raise explain(error, self.spec.hparams, f"{self.algo}.algo_kwargs") from None

    @property
    def total_updates(self) -> int:
        """The updates that the whole run owes."""
        return self.spec.updates_until(self.hparams, self.total_timesteps)

    @field_serializer("output_dir")
    def _path_as_text(self, path: Path) -> str:
        return str(path)

    @property
    def origin(self) -> Path | None:
        """The file that the settings come from if another user may have written it; None if they are the user's own.

        Code that such settings name is not imported without consent (experiment/named_code.py).
        """
        return self._origin

    def of_unknown_origin(self, file: Path) -> "TrainConfig":
        """Return a copy that is marked as read from a file that another user may have written.

        Its `output_dir` is the default: a file from elsewhere does not decide where this user's files are written.
        """
        marked = self.updated(output_dir=TrainConfig.model_fields["output_dir"].default)
        marked._origin = file
        return marked

    def as_own(self) -> "TrainConfig":
        """Return a copy without the mark: the user has accepted the settings."""
        return TrainConfig(**self.model_dump())

    def updated(self, **changes: Any) -> "TrainConfig":
        """Return a validated copy with some settings changed; it keeps the mark of its origin."""
        changed = TrainConfig(**{**self.model_dump(), **changes})
        changed._origin = self._origin
        return changed

    def resolved(self) -> "TrainConfig":
        """Return a copy whose `algo_kwargs` hold every setting, defaults included: enough to repeat the run."""
        return self.updated(algo_kwargs=json.loads(self.hparams.model_dump_json()))

    def digest(self) -> str:
        """Return a hash of the experiment: equal for runs that differ only in seed, output folder and `eval_envs`."""
        values = self.resolved().model_dump(mode="json", exclude={"seed", "output_dir", "eval_envs"})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _settings_of(algo: Any) -> list[str]:
    """Return the settings of an algorithm as `--set` names them; none if it is unknown."""
    spec = registry().get(algo) if isinstance(algo, str) else None
    return [f"algo_kwargs.{name}" for name in spec.hparams.model_fields] if spec else []


class _StrictLoader(yaml.SafeLoader):
    """YAML without its traps: `3e-4` is a number, and duplicate keys are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                break  # rejected below, with its name
            if key in seen:
                raise ConfigError(f"setting {key!r} is given twice (line {key_node.start_mark.line + 1})")
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
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None


def check_plain(settings: object) -> None:
    """Raise `ConfigError` for what no setting can be: other types than those of JSON, and huge numbers or structures.

    Values from files are checked before any use. YAML may repeat a part by its name, so that a short text stands for
    a structure that fills the memory.
    """
    left = _MAX_VALUES
    waiting: list[tuple[str, object, int]] = [("", settings, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > _MAX_DEPTH:
            raise ConfigError(f"there are more than {_MAX_VALUES:,} values, or they are nested over {_MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{key}" if name else str(key), inner, depth + 1) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(name, inner, depth + 1) for inner in value]
        elif isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{name} is an integer of {value.bit_length():,} bits; at most 63 are possible")
        elif not (value is None or isinstance(value, str | int | float)):
            raise ConfigError(f"{name} must be a number, a text, a list or a group, got a {type(value).__name__}")


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
    if 0 < len(close) <= _MAX_CLOSE_CONFIGS:
        hint = f"did you mean {' or '.join(f'configs/{name}' for name in close)}?"
    raise ConfigError(f"there is no config file {str(path)!r}; {hint}")


def packaged_configs() -> list[str]:
    return sorted(path.relative_to(PACKAGED_CONFIGS).as_posix() for path in PACKAGED_CONFIGS.rglob("*.yaml"))


def shipped_scores() -> dict[str, list[dict[str, Any]]]:
    """Return what the final policies of each shipped config reached, one entry per task."""
    scores: dict[str, list[dict[str, Any]]] = json.loads(SHIPPED_SCORES.read_text("utf-8"))
    return scores


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """Load a YAML config; `overrides` are "key=value" strings such as "algo_kwargs.gamma=0.98"."""
    path = find_config_file(path)
    return parse_config(read_config_text(path), str(path), overrides)


def read_config_text(path: Path) -> str:
    try:
        return read_text(path, _MAX_CONFIG_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def parse_config(text: str, path: str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the settings of a YAML text; `path` names it in messages."""
    return build_config(parse_settings(text, path), overrides)


def parse_settings(text: str, path: str) -> dict[str, Any]:
    """Return what a YAML text says, not yet checked; `path` names it in messages."""
    values = parse_yaml(text, path)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} must hold settings as `key: value` lines, found {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


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
