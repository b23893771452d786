"""The spaces of a run: as its environments declare them, and as its networks see them."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rl_training.core.action_masks import MaskReader
from rl_training.core.integer_obs import decide_obs_max, integer_parts, undecided_parts, with_obs_max
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.envs.factory import EnvFactory
from rl_training.envs.seen_values import part_values
from rl_training.envs.statistics import refuse_statistics
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import EnvError
from rl_training.experiment.config import TrainConfig

log = logging.getLogger("rl_training")


def spaces_of(factory: EnvFactory, config: TrainConfig | None = None) -> Spaces:
    """Return the spaces of one environment of the factory, and whether it has action masks.

    `config`: of the run, whose algorithm must be able to learn in the environment as it is wrapped.
    """
    with contextlib.closing(SyncEnvs(factory)) as envs:
        if config is not None:
            refuse_statistics(envs.wrappers(), config.algo, config.spec.hparams.model_fields)
        _, (info,) = envs.reset([0], [0])
        has_masks = "action_mask" in info
        if has_masks:
            try:
                MaskReader(envs.action_space).read(info)
            except ValueError as problem:
                raise EnvError(f"env 0 gave {problem} at the reset with seed 0") from None
        return Spaces(envs.observation_space, envs.action_space, has_masks)


def network_spaces(spaces: Spaces, config: TrainConfig) -> Spaces:
    """Return the spaces as the networks see them; nothing changes before `obs_max: auto` is decided."""
    if config.obs_max == "auto":
        return spaces
    return replace(spaces, observation=with_obs_max(spaces.observation, config.obs_max, one_hot=config.one_hot_obs))


def fill_in_obs_max(
    config: TrainConfig, setup: Setup[Any], largest_seen: Callable[[], Mapping[str, int]]
) -> tuple[TrainConfig, Setup[Any]]:
    """Replace `obs_max: auto` by the largest values of the integer observations, if there are any."""
    observation = setup.spaces.observation
    if config.obs_max != "auto" or not integer_parts(observation):
        return config, setup
    obs_max = decide_obs_max(observation, largest_seen() if undecided_parts(observation) else {})
    config = config.updated(obs_max=obs_max)
    treatment = "encoded as one-hot channels up to" if config.one_hot_obs else "divided by"
    log.info("integer observations are %s %s (obs_max)", treatment, obs_max)
    return config, replace(setup, spaces=network_spaces(setup.spaces, config))


def largest_in(dataset: TransitionDataset) -> dict[str, int]:
    """Return the largest values of integer observations whose spaces do not declare them."""
    parts = part_values(dataset.spaces.observation, dataset.obs)
    return {name: int(parts[name].max()) for name in undecided_parts(dataset.spaces.observation)}
