"""`TrainConfig`: the settings of one run, checked at construction; config_files.py reads them from YAML.

Nothing here imports torch, so that a mistake in a config is reported at once.
"""

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError, field_serializer, field_validator, model_validator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from rl_training.errors import ConfigError, check_argument
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
)

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

    @field_validator("wrappers", mode="before")
    @classmethod
    def _holds_text_or_groups(cls, entries: Any) -> Any:
        if isinstance(entries, list) and not all(isinstance(entry, str | dict) for entry in entries):
            raise ValueError("must hold text, such as 'gymnasium.wrappers:FlattenObservation', or groups with `class`")
        return entries

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
        self._check_storable()
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

    def _check_storable(self) -> None:
        """Raise for arguments of an environment or wrapper that the config of the run cannot hold as text."""
        groups: dict[str, Any] = {"env_kwargs": self.env_kwargs}
        groups |= {f"wrappers.{number}": entry for number, entry in enumerate(self.wrappers) if isinstance(entry, dict)}
        for group, arguments in groups.items():
            for name, value in arguments.items():
                try:
                    to_jsonable_python(value)
                except PydanticSerializationError:
                    raise ConfigError(
                        f"{group}.{name}: config.yaml cannot hold an object of type {type(value).__name__}; leave it "
                        "out, and give a function that makes the environment with it"
                    ) from None

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


def check_config(value: object, function: str) -> None:
    """Raise `TypeError` if the argument of a function is not a config."""
    check_argument(value, TrainConfig, function, path="load_config({})", other="TrainConfig(**settings)")


def _settings_of(algo: Any) -> list[str]:
    """Return the settings of an algorithm as `--set` names them; none if it is unknown."""
    spec = registry().get(algo) if isinstance(algo, str) else None
    return [f"algo_kwargs.{name}" for name in spec.hparams.model_fields] if spec else []
