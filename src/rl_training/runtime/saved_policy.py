"""Load the trained policy of a run, to act with it on this machine."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces
from rl_training.core.state_checks import load_algorithm, loading
from rl_training.core.types import Algorithm
from rl_training.datasets.metadata import metadata_from_text
from rl_training.envs.factory import EnvFactory
from rl_training.envs.hang_watch import hangs_end
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import POLICY
from rl_training.experiment.saved_checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from rl_training.runtime.setup import RunOptions, make_setup
from rl_training.runtime.torch_settings import torch_defaults


def config_for_acting(config: TrainConfig) -> TrainConfig:
    """Return the config of a saved run for acting on this machine: an available device, no compilation."""
    return config.updated(device=config.device if torch.cuda.is_available() else "cpu", acceleration="eager")


@torch_defaults()
def load_policy(
    path: str | Path, options: RunOptions | None = None, *, pointer: str = "latest", streams: Streams | None = None
) -> tuple[Checkpoint, Algorithm]:
    """Build the algorithm of a checkpoint and load the trained policy; the memory is not read.

    `streams`: for its random numbers when it acts, in place of those of the run.
    """
    checkpoint = open_checkpoint(find_checkpoint(path, pointer), parts=(POLICY,))
    algorithm = build_policy(checkpoint.config, checkpoint, options or RunOptions(), streams=streams)
    policy = checkpoint.load(POLICY)
    with loading(checkpoint.path):
        load_algorithm(algorithm, policy)
    return checkpoint, algorithm


@torch_defaults()
def build_policy(
    config: TrainConfig, checkpoint: Checkpoint, options: RunOptions, *, streams: Streams | None = None
) -> Algorithm:
    """Build the algorithm of a config for the environment or the spaces of a checkpoint, which is not loaded."""
    here = config_for_acting(config)
    with hangs_end(here.worker_timeout):
        factory = options.factory_for(here)
        spaces = None if factory is not None else saved_spaces(checkpoint)
        setup = make_setup(here, factory, options.network, spaces=spaces)
    return here.spec.build_algorithm(replace(setup, streams=streams) if streams is not None else setup)


@torch_defaults()
def rebuild_policy(config: TrainConfig, options: RunOptions, spaces: Spaces, policy: Mapping[str, Any]) -> Algorithm:
    """Build the algorithm of a run again, with its policy and in memory of its own."""
    here = config_for_acting(config)
    network = copy.deepcopy(options.network)  # an algorithm takes its parameters over
    setup = make_setup(here, options.factory_for(here, check=False), network, spaces=spaces)
    algorithm = here.spec.build_algorithm(setup)
    load_algorithm(algorithm, policy)
    return algorithm


def saved_spaces(checkpoint: Checkpoint) -> Spaces:
    """Return the spaces of a run without an environment, which its checkpoints hold."""
    text = checkpoint.manifest["counters"].get("spaces")
    spaces, _ = metadata_from_text(text, str(checkpoint.path), allow_entry_points=False) if text else (None, "")
    if spaces is None:
        raise CheckpointError(
            f"{checkpoint.path} holds neither the spaces of its observations and actions nor an env_id"
        )
    return spaces


def env_factory_of(config: TrainConfig, options: RunOptions) -> EnvFactory:
    """Return the function that builds the environments for an evaluation; raise `ConfigError` if there is none."""
    factory = options.factory_for(config)
    if factory is None:
        raise ConfigError(
            "env_id is empty: there is no environment to evaluate in; eval.jsonl in the run folder holds the "
            "evaluations on held-out data"
        )
    return factory
