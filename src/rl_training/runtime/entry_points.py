"""`train_<algo>` for every row of the registry: `train`, for the configs of one algorithm or of its family."""

from functools import cache
from typing import Any, Protocol

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, check_config
from rl_training.experiment.registry import AlgorithmSpec, registry
from rl_training.runtime.trainer import RunOptions, TrainResult, train

_MAX_NAMED = 3  # a longer list of members hides what the message says


class EntryPoint(Protocol):
    """Train from a config; `options` hold what a config file cannot, such as callbacks."""

    def __call__(self, config: TrainConfig, options: RunOptions | None = None) -> TrainResult: ...


@cache
def entry_point(algo: str) -> EntryPoint:
    """Return the function `train_<algo>`; it raises `ConfigError` for the config of another algorithm."""
    spec = registry()[algo]

    def train_algo(config: TrainConfig, options: RunOptions | None = None) -> TrainResult:
        check_config(config, spec.entry_point)
        if not spec.trains(config.spec):
            raise ConfigError(f"{spec.entry_point} trains {_members_text(spec)}, but algo is {config.algo!r}")
        return train(config, options)

    train_algo.__name__ = train_algo.__qualname__ = spec.entry_point
    train_algo.__doc__ = spec.entry_point_doc
    return train_algo


def _members_text(spec: AlgorithmSpec) -> str:
    names = [row.class_name for row in registry().values() if spec.trains(row)]
    if len(names) > _MAX_NAMED:
        return f"the {spec.class_name} family"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def __getattr__(name: str) -> Any:
    for spec in registry().values() if name.startswith("train_") else ():
        if spec.entry_point == name:
            return entry_point(spec.name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
