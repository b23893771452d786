"""Build everything that a config describes, and check it, before anything is written."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_training.acceleration.determinism import resolve_deterministic
from rl_training.acceleration.steps import resolve_acceleration
from rl_training.core.counted import counted
from rl_training.core.import_path import search_current_folder
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces, observation_kind
from rl_training.core.types import Algorithm, Memory
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.device_replay import build_device_replay
from rl_training.data.device_rollout import build_device_rollout
from rl_training.data.mixed_source import MixedSource, with_model_memory
from rl_training.datasets.transitions import Transitions
from rl_training.envs.factory import (
    EnvFactory,
    GivenFactory,
    LimitedEnv,
    RegisteredEnv,
    check_backend,
    make_env_factory,
    make_envs,
    make_vector_factory,
    with_env_kwargs,
)
from rl_training.envs.seen_values import largest_values
from rl_training.envs.tensor_env import TensorEnvs, tensor_env_of
from rl_training.envs.vector_factory import VectorFactory
from rl_training.envs.wrapping import with_wrappers
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.named_code import check_consent, import_reference, reference_to
from rl_training.experiment.space_checks import check_spaces
from rl_training.hparams.datasets import dataset_choice
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.dataset_loading import GivenDataset, find_arrays, load_transition_dataset
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.run_size import check_run_size
from rl_training.runtime.run_spaces import fill_in_obs_max, largest_in, network_spaces, spaces_of
from rl_training.tracking.trackers import check_choices

# Multiply-adds of the hidden layers for one batch. DQN with 120x84 units and batches of 128 has 1.3 million; SAC with
# 256x256 units and batches of 256 has 17 million, and a GPU makes ten times the updates of a CPU core.
MAX_SMALL_UPDATE = 2**22

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What Python users may pass that a config file cannot hold."""

    env_factory: GivenFactory | None = None  # in place of gym.make(env_id); called with the config's env_kwargs
    network: nn.Module | None = None  # in place of the algorithm's own
    dataset: GivenDataset | None = None  # in place of the one that the config names
    callbacks: Sequence[Callback] = ()
    track: Sequence[str] = ()  # trackers, such as "mlflow" or "wandb:project=rl", for this and later starts of the run
    show_progress: bool = True
    allow_entry_points: bool = False  # read a dataset although its metadata name code that is not known here
    allow_code: bool = False  # import code that the files of a run name, although another user may have written them

    def __post_init__(self) -> None:
        if not isinstance(self.callbacks, Sequence) or not all(isinstance(one, Callback) for one in self.callbacks):
            raise TypeError(f"callbacks must be a list of Callback objects, got {self.callbacks!r}")
        if isinstance(self.track, str):
            raise TypeError(f"track must be a list of trackers, such as [{self.track!r}], got {self.track!r}")
        check_choices(self.track)

    def factory_for(self, config: TrainConfig, *, check: bool = True) -> EnvFactory | None:
        """Return the function that builds the environments of the run; None if it has none (offline only).

        `check`: build one by its id first, and raise if it cannot be reset and stepped.
        """
        if self.env_factory is None or config.wrappers:
            check_consent(config, allowed=self.allow_code)
            for reference in (config.env_factory or config.env_id, *map(str, config.wrappers)):
                search_current_folder(reference)
        if config.execution_backend == "vector" and config.env_id:
            return self._vector_factory_for(config, check=check)
        limit = config.max_episode_steps
        if self.env_factory is not None or config.env_factory:
            function = with_env_kwargs(self.env_factory or import_reference(config), config.env_kwargs)
            return with_wrappers(function if limit is None else LimitedEnv(function, limit), config.wrappers)
        env_kwargs = config.env_kwargs if limit is None else {**config.env_kwargs, "max_episode_steps": limit}
        if config.env_id and not check:
            return with_wrappers(RegisteredEnv(config.env_id, env_kwargs), config.wrappers)
        return make_env_factory(config.env_id, env_kwargs, config.wrappers) if config.env_id else None

    def _vector_factory_for(self, config: TrainConfig, *, check: bool) -> EnvFactory:
        """Return what builds the vector environments of the run."""
        has_function = self.env_factory is not None or bool(config.env_factory)
        if has_function and config.max_episode_steps is not None:
            raise ConfigError(
                "max_episode_steps cannot be set for a function that makes vector environments: set the limit in it"
            )
        limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
        function = (self.env_factory or import_reference(config)) if has_function else None
        return make_vector_factory(config.env_id, {**config.env_kwargs, **limit}, function, check=check)

    def remembered_in(self, config: TrainConfig) -> TrainConfig:
        """Return the config with a reference to the user's env function, so that its run is used without it later."""
        return config if self.env_factory is None else config.updated(env_factory=reference_to(self.env_factory))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """The algorithm, its memory, and the settings that both were built with."""

    config: TrainConfig
    env_factory: EnvFactory | None
    spaces: Spaces  # of the environment or the dataset; those in `setup` are as the networks see them
    setup: Setup[Any]
    algorithm: Algorithm
    memory: Memory
    arrays: Transitions | None  # the rows of `dataset_kind: arrays`, which the run folder keeps


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in everything that "auto" and defaults leave open, so that the result can repeat the run."""
    config = config.resolved()
    if config.device == "auto" and torch.cuda.is_available() and has_small_updates(config):
        return config  # decided when the observations are known
    return _on_device(config, resolve_device(config.device))


def has_small_updates(config: TrainConfig) -> bool:
    """Return whether an update of vector observations takes a CPU core no longer than a GPU and its transfers."""
    hparams: Any = config.hparams
    sizes, rows = (getattr(hparams, name, None) for name in ("hidden_sizes", "batch_size"))
    rows = rows or getattr(hparams, "minibatch_size", None)
    if sizes is None or rows is None or config.execution_backend == "tensor":
        return False
    weights = sum(before * after for before, after in pairwise(sizes))
    return bool(rows * getattr(hparams, "num_tau_samples", 1) * weights <= MAX_SMALL_UPDATE)


def decide_device(config: TrainConfig, spaces: Spaces, network: nn.Module | None = None) -> TrainConfig:
    """Replace a `device: auto` that `resolve` left open."""
    if config.device != "auto":
        return config
    is_small = network is None and observation_kind(spaces.observation) in ("vector", "discrete")
    if is_small:
        log.info("device: cpu, which is as fast for updates of this size; device: cuda uses the GPU")
    return _on_device(config, torch.device("cpu") if is_small else resolve_device("auto"))


def _on_device(config: TrainConfig, device: torch.device) -> TrainConfig:
    worth_compiling = config.total_updates >= config.spec.min_updates_to_compile
    mode = resolve_acceleration(config.acceleration, device_type=device.type, worth_compiling=worth_compiling)
    return config.updated(device=str(device), acceleration=mode)


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = counted(torch.cuda.device_count(), "CUDA device")
        raise ConfigError(f"device is {name!r}, but PyTorch sees {found} here; device: auto takes what there is")
    return device


def prepare_run(
    config: TrainConfig,
    options: RunOptions,
    factory: EnvFactory | None,
    *,
    folder: Path | None = None,
    sharing: PreparedRun | None = None,
) -> PreparedRun:
    """Build algorithm and memory; raise for spaces, a dataset, a network or a buffer that cannot be used.

    `folder`: of a run that is continued; it may hold the dataset. `sharing`: a run with the same dataset, which is not
    loaded again.
    """
    if sharing is not None:
        return _prepare_like(sharing, config, options)
    if factory is not None:
        check_backend(factory, config.execution_backend, config.num_envs)
        spaces = spaces_of(factory, config)
        config = decide_device(config, spaces, options.network)
        setup = make_setup(config, factory, options.network, spaces=spaces)  # first, so that no dataset is read in vain
        config, setup = fill_in_obs_max(config, setup, functools.partial(largest_values, factory))
    choice, arrays = dataset_choice(config.hparams, has_env=bool(config.env_id)), None
    if choice is not None:
        choice.check_given(config.algo)
        allow = options.allow_entry_points
        if choice.dataset_kind == "arrays":
            arrays = find_arrays(options.dataset, folder, allow_entry_points=allow)
        dataset = load_transition_dataset(
            choice, env_factory=factory, allow_entry_points=allow, prefix=choice.prefix, arrays=arrays
        )
        held_out = None
        if choice.held_out:
            dataset, held_out = dataset.split(choice.held_out, choice.dataset_seed)
        if factory is None:
            spaces = dataset.spaces
            config = decide_device(config, spaces, options.network)
            setup = make_setup(config, None, options.network, spaces=spaces)
            config, setup = fill_in_obs_max(config, setup, functools.partial(largest_in, dataset))
        setup = replace(setup, dataset=dataset, held_out=held_out)
    is_vector = observation_kind(setup.spaces.observation) in ("vector", "discrete")
    deterministic = resolve_deterministic(config.deterministic, device=setup.device, is_vector=is_vector)
    config = config.updated(deterministic=deterministic)
    check_run_size(config, setup.spaces)
    algorithm = config.spec.build_algorithm(setup)
    memory = _device_memory(config, setup) if setup.device_loop else config.spec.build_memory(setup)
    return PreparedRun(
        config=config,
        env_factory=factory,
        spaces=spaces,
        setup=setup,
        algorithm=algorithm,
        memory=memory,
        arrays=arrays,
    )


def _device_memory(config: TrainConfig, setup: Setup[Any]) -> Memory:
    return build_device_rollout(setup) if config.spec.loop == "on_policy" else build_device_replay(setup)


def _prepare_like(other: PreparedRun, config: TrainConfig, options: RunOptions) -> PreparedRun:
    """Build algorithm and memory for the spaces and the rows of another run."""
    config = config.updated(obs_max=other.config.obs_max, deterministic=other.config.deterministic)
    setup = make_setup(config, other.env_factory, options.network, spaces=other.spaces)
    setup = replace(setup, dataset=other.setup.dataset, held_out=other.setup.held_out)
    algorithm = config.spec.build_algorithm(setup)
    memory: Memory
    if setup.device_loop:
        memory = _device_memory(config, setup)
    elif isinstance(other.memory, DatasetMemory):
        memory = other.memory.sharing_rows(setup.streams.numpy("buffer"))
    elif isinstance(other.memory, MixedSource) and isinstance(other.memory.real, DatasetMemory):
        memory = with_model_memory(other.memory.real.sharing_rows(setup.streams.numpy("buffer")), setup)
    else:
        memory = config.spec.build_memory(setup)
    return replace(other, config=config, setup=setup, algorithm=algorithm, memory=memory)


def make_setup(
    config: TrainConfig,
    factory: EnvFactory | None,
    network: nn.Module | None = None,
    *,
    spaces: Spaces | None = None,
) -> Setup[Any]:
    """Collect what building an algorithm needs; raise for an environment that it cannot handle.

    `spaces`: those of the environment, if they are known, or of a dataset.
    """
    if spaces is None:
        assert factory is not None
        spaces = spaces_of(factory, config)
    check_spaces(config.spec, spaces, config.env_id or "the dataset")
    if spaces.action_mask and not config.spec.action_masks:
        log.warning(
            "%s has action masks, but %s does not use them: it may choose any action", config.env_id, config.algo
        )
    on_device = config.execution_backend == "tensor"
    return Setup(
        spaces=network_spaces(spaces, config),
        hparams=config.hparams,
        total_timesteps=config.total_timesteps,
        total_updates=config.total_updates,
        streams=Streams(config.seed),
        num_envs=config.num_envs,
        device=resolve_device(config.device),
        # The device loop captures whole iterations, and therefore no part of them.
        acceleration="compile" if on_device and config.acceleration == "cuda_graph" else config.acceleration,
        device_loop=on_device,
        network=network,
        env_id=factory.env_id if isinstance(factory, RegisteredEnv | VectorFactory) else "",
        env_kwargs=config.env_kwargs,
        make_env=factory,
    )


def make_collector(
    prepared: PreparedRun, *, replayable: bool, crash_dir: Path
) -> Collector | DeviceCollector | NoCollector:
    """Build the collector with the environments of the run, if it takes any env steps."""
    config, setup = prepared.config, prepared.setup
    if prepared.env_factory is None or config.spec.loop == "offline":
        return NoCollector()
    if setup.device_loop:
        env = tensor_env_of(prepared.env_factory)
        return DeviceCollector(TensorEnvs(env, config.num_envs, setup.streams.integer("env"), device=setup.device))
    envs = make_envs(
        prepared.env_factory,
        config.num_envs,
        backend=config.execution_backend,
        worker_timeout=config.worker_timeout,
        worker_start=config.worker_start,
        crash_dir=crash_dir,
    )
    return Collector(
        envs,
        prepared.setup.streams,
        replayable=replayable,
        clip_rewards=config.clip_rewards,
        action_masks=prepared.setup.spaces.action_mask,
    )
