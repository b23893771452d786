"""`load_transition_dataset`: from the settings of an algorithm to its dataset."""

import logging
from pathlib import Path
from typing import Protocol, cast

from rl_training.core.spaces import Spaces
from rl_training.datasets.files import FORMATS, FileKind, read_transitions
from rl_training.datasets.minari_format import find_local_dataset
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, DatasetError
from rl_training.runtime.recording import random_transitions

log = logging.getLogger("rl_training")

RANDOM_SIZE = 10_000  # rows of a random dataset without dataset_size


class DatasetSettings(Protocol):
    """The part of an algorithm's settings that names its dataset."""

    @property
    def dataset_kind(self) -> str: ...
    @property
    def dataset_path(self) -> Path | None: ...
    @property
    def dataset_id(self) -> str | None: ...
    @property
    def dataset_size(self) -> int | None: ...
    @property
    def dataset_seed(self) -> int: ...


def load_transition_dataset(
    settings: DatasetSettings,
    *,
    env_factory: EnvFactory | None = None,
    allow_entry_points: bool = False,
    prefix: str = "",
) -> TransitionDataset:
    """Generate or read the dataset that the settings name, and check it.

    `env_factory`: of the environment of the run, if it has one; the dataset must then fit its spaces. A random dataset
    is generated there; `dataset_seed` and `dataset_size` determine it completely. `allow_entry_points`: read a file
    although its metadata name code that is not known here; the code is not run. `prefix`: the prefix of the settings as
    the user wrote them, for messages.
    """
    kind, size = settings.dataset_kind, settings.dataset_size
    if kind == "random":
        if env_factory is None:
            raise ConfigError(f"{prefix}dataset_kind: random needs an environment to act in: give env_id")
        with SyncEnvs(env_factory) as envs:
            generated = random_transitions(envs, size or RANDOM_SIZE, seed=settings.dataset_seed)
            dataset = TransitionDataset.from_transitions(generated, Spaces(envs.observation_space, envs.action_space))
    else:
        path = _path(settings, prefix)
        found = read_transitions(path, cast(FileKind, kind), allow_entry_points=allow_entry_points)
        dataset = TransitionDataset.from_transitions(found, _spaces(env_factory))
        if size is not None:
            dataset = dataset.first(size)
    log.info("%s: %s transitions, %s episodes", dataset.source, f"{len(dataset):,}", f"{len(dataset.episode_ends):,}")
    return dataset


def _spaces(env_factory: EnvFactory | None) -> Spaces | None:
    if env_factory is None:
        return None
    with SyncEnvs(env_factory) as envs:
        return Spaces(envs.observation_space, envs.action_space)


def _path(settings: DatasetSettings, prefix: str) -> Path:
    """Return the path of the dataset; raise if it is not on this disk."""
    kind, path = settings.dataset_kind, settings.dataset_path
    if kind not in FORMATS:
        raise ConfigError(f"{prefix}dataset_kind must be random, {', '.join(FORMATS)}, got {kind!r}")
    if kind == "minari" and settings.dataset_id:
        if path is not None:
            raise ConfigError(f"give {prefix}dataset_path or {prefix}dataset_id, not both")
        return find_local_dataset(settings.dataset_id, f"{prefix}dataset_id")
    if path is None or not str(path):
        what = f"{prefix}dataset_path or {prefix}dataset_id" if kind == "minari" else f"{prefix}dataset_path"
        raise ConfigError(f"{prefix}dataset_kind: {kind} needs {what}")
    if not path.exists():
        raise DatasetError(f"{prefix}dataset_path: there is no dataset {path}; `rl-training record` makes one")
    return path
