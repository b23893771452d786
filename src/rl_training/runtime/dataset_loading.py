"""`load_transition_dataset`: from the settings of an algorithm, or from what is given in Python, to its dataset."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from rl_training.core.counted import counted
from rl_training.core.spaces import Spaces
from rl_training.datasets.files import FORMATS, FileKind, read_transitions, write_transitions
from rl_training.datasets.minari_format import find_local_dataset
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.datasets.transitions import Transitions, build_transitions, match_columns
from rl_training.envs.factory import EnvFactory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, DatasetError, check_argument
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.datasets import dataset_choice
from rl_training.runtime.recording import random_transitions

log = logging.getLogger("rl_training")

RANDOM_SIZE = 10_000  # rows of a random dataset without dataset_size
ARRAYS_FILE = "dataset.npz"  # in the run folder: the arrays that were given in Python

Arrays: TypeAlias = Mapping[str, Any] | TransitionDataset  # columns by their names in files, or a dataset
GivenDataset: TypeAlias = str | Path | Arrays  # what Python users may pass


@runtime_checkable
class DatasetSettings(Protocol):
    """The part of an algorithm's settings that names its dataset."""

    @property
    def dataset_kind(self) -> str | None: ...
    @property
    def dataset_path(self) -> Path | None: ...
    @property
    def dataset_id(self) -> str | None: ...
    @property
    def dataset_size(self) -> int | None: ...
    @property
    def dataset_seed(self) -> int: ...


def with_dataset(config: TrainConfig, dataset: GivenDataset | None) -> TrainConfig:
    """Return the config with settings that name the dataset given in Python, if one is, in place of its own."""
    if dataset is None:
        return config
    choice = dataset_choice(config.hparams)
    if choice is None:
        raise ConfigError(f"{config.algo} learns in an environment, not from a dataset: leave dataset out")
    if not isinstance(dataset, str | Path | Mapping | TransitionDataset):
        raise TypeError(
            f"dataset must be a path, a dict of arrays or a TransitionDataset, got {type(dataset).__name__}"
        )
    path = str(dataset) if isinstance(dataset, str | Path) else None
    values = {"dataset_kind": "arrays" if path is None else None, "dataset_path": path, "dataset_id": None}
    if choice.dataset_kind == "random":
        values["dataset_size"] = None  # the number of rows to generate; now there are others
    changes = {choice.prefix + name: value for name, value in values.items()}
    return config.updated(algo_kwargs={**config.algo_kwargs, **changes})


def find_arrays(given: GivenDataset | None, folder: Path | None, *, allow_entry_points: bool = False) -> Transitions:
    """Return the rows of a run with `dataset_kind: arrays`: those given now, or else those in its folder."""
    if isinstance(given, TransitionDataset):
        return given.to_transitions()
    if isinstance(given, Mapping):
        names = match_columns(given, "dataset")
        return build_transitions({column: given[name] for column, name in names.items()}, source="dataset")
    if folder is None or not (folder / ARRAYS_FILE).is_file():
        raise ConfigError(
            f"dataset_kind: arrays means data given in Python, which a run folder keeps in {ARRAYS_FILE}, but "
            f"{folder or 'this run'} has no such file: pass the data as dataset=, to load() if the run continues"
        )
    return read_transitions(folder / ARRAYS_FILE, allow_entry_points=allow_entry_points)


def keep_arrays(arrays: Transitions | None, spaces: Spaces, folder: Path, *, replace_existing: bool) -> None:
    """Write the arrays of a run to its folder, if it has any, so that it can be resumed."""
    file = folder / ARRAYS_FILE
    if arrays is None or (file.exists() and not replace_existing):
        return
    file.unlink(missing_ok=True)
    write_transitions(replace(arrays, spaces=Spaces(spaces.observation, spaces.action)), file)


def load_transition_dataset(
    settings: DatasetSettings,
    *,
    env_factory: EnvFactory | None = None,
    allow_entry_points: bool = False,
    prefix: str = "",
    arrays: Transitions | None = None,
) -> TransitionDataset:
    """Generate or read the dataset that the settings name, and check it.

    `env_factory`: of the environment of the run, if it has one; the dataset must then fit its spaces. A random dataset
    is generated there; `dataset_seed` and `dataset_size` determine it completely. `allow_entry_points`: read a file
    although its metadata name code that is not known here; the code is not run. `prefix`: the prefix of the settings as
    the user wrote them, for messages. `arrays`: the rows of `dataset_kind: arrays`.
    """
    check_argument(
        settings,
        DatasetSettings,
        "load_transition_dataset",
        path="rl_training.hparams.iql.IQLHParams(dataset_path={})",
        other="config.hparams",
    )
    kind, size = settings.dataset_kind, settings.dataset_size
    if kind == "random":
        if env_factory is None:
            raise ConfigError(f"{prefix}dataset_kind: random needs an environment to act in: give env_id")
        with SyncEnvs(env_factory) as envs:
            generated = random_transitions(envs, size or RANDOM_SIZE, seed=settings.dataset_seed)
            dataset = TransitionDataset.from_transitions(generated, Spaces(envs.observation_space, envs.action_space))
    else:
        found = _read(settings, prefix, allow_entry_points=allow_entry_points) if arrays is None else arrays
        dataset = TransitionDataset.from_transitions(found, _spaces(env_factory))
        if size is not None:
            dataset = dataset.first(size)
    episodes = counted(len(dataset.episode_ends), "episode")
    log.info("%s: %s, %s", dataset.source, counted(len(dataset), "transition"), episodes)
    return dataset


def _spaces(env_factory: EnvFactory | None) -> Spaces | None:
    if env_factory is None:
        return None
    with SyncEnvs(env_factory) as envs:
        return Spaces(envs.observation_space, envs.action_space)


def _read(settings: DatasetSettings, prefix: str, *, allow_entry_points: bool) -> Transitions:
    """Read the dataset that the settings name; raise if it is not on this disk."""
    kind, path = settings.dataset_kind, settings.dataset_path
    if kind is not None and kind not in FORMATS:
        raise ConfigError(f"{prefix}dataset_kind must be random, {', '.join(FORMATS)}, got {kind!r}")
    if settings.dataset_id and kind in (None, "minari"):
        if path is not None:
            raise ConfigError(f"give {prefix}dataset_path or {prefix}dataset_id, not both")
        kind, path = "minari", find_local_dataset(settings.dataset_id, f"{prefix}dataset_id")
    if path is None or not str(path):
        what = f"{prefix}dataset_path" + (f" or {prefix}dataset_id" if kind in (None, "minari") else "")
        raise ConfigError(f"{prefix}dataset_kind: {kind} needs {what}" if kind else f"give {what}")
    if not path.exists():
        raise DatasetError(f"{prefix}dataset_path: there is no dataset {path}; `rl-training record` makes one")
    return read_transitions(path, cast(FileKind | None, kind), allow_entry_points=allow_entry_points)
