"""Stacked members with environments on the host, small enough for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from builders import make_config
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.population import PopulationConfig
from rl_training.experiment.registry import registry
from rl_training.launching.populations import PopulationResult, train_population
from rl_training.runtime.trainer import RunOptions
from stacks import QUIET, saved

# Those without models; mbpo: launching/test_stacked_models.py.
HOST = sorted(
    name for name, spec in registry().items() if spec.loop == "off_policy" and spec.stackable and not spec.intervals
)
CONTINUOUS = {name for name in HOST if registry()[name].actions == {"box"}}
# Settings whose part in a stack is its own: delays, running statistics, schedules, colored noise, several updates.
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {"normalize_observations": True, "learning_rate_schedule": "linear", "n_step": 3},
    "td3": {"policy_delay": 3, "noise_color": 1.0},
    "redq": {"gradient_updates_per_step": 3, "policy_delay": 3, "dropout": 0.1},
    "tqc": {"prioritized": True, "policy_delay": 2},
    "simbav2": {"gradient_updates_per_step": 0.5},
    "dqn": {"target_update_interval": 7, "learning_rate_schedule": "linear"},
    # Rounding may decide which of two equal features is the largest, or which row has a priority: neither happens here.
    "bbf": {
        "learning_starts": 20,
        "train_frequency": 8,  # four steps of all environments
        "reset_interval": 10,
        "encoder_width": 1,
        "n_step_start": 5,
        "anneal_updates": 8,
        "augmentation": "shift",
        "prioritized": False,
    },
    "dueling_dqn": {"act_with_target": True, "tau": 0.1, "target_update_interval": 1},
}


def base(folder: Path, algo: str = "sac", **changes: Any) -> TrainConfig:
    """60 steps of two environments each, with updates after the tenth."""
    env_id = "Pendulum-v1" if algo in CONTINUOUS else "rl_training/Catch-v0" if algo == "bbf" else "CartPole-v1"
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": env_id,
        "num_envs": 2,
        "total_timesteps": 120,
        "log_interval": 20,
        "eval_interval": 60,
        "checkpoint_interval": 40,
        "eval_episodes": 1,
        "max_episode_steps": 25,
        "device": "cpu",
        "acceleration": "eager",
        "tensorboard": False,
    }
    own = SETTINGS.get(algo, {}) | changes.pop("algo_kwargs", {})
    return make_config(folder, **{**values, **changes, "algo_kwargs": own})


def train_members(
    folder: Path, algo: str = "sac", seeds: Sequence[int] = (0, 1), *, options: RunOptions = QUIET, **changes: Any
) -> PopulationResult:
    vary = changes.pop("vary", {})
    config = PopulationConfig(base=base(folder, algo, **changes), seeds=tuple(seeds), vary=vary, run="stacked")
    return train_population(config, options)


def assert_close(ours: Path, theirs: Path, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(saved(ours, POLICY), saved(theirs, POLICY), rtol=tolerance, atol=tolerance)


def assert_same_draws(ours: Path, theirs: Path) -> None:
    """Compare where the generators of the algorithm and of the memory are left, and which episodes were played."""
    assert saved(ours, MEMORY)["generator"] == saved(theirs, MEMORY)["generator"]
    found, expected = (saved(folder, TRAINING) for folder in (ours, theirs))
    assert found["algorithm"]["generators"] == expected["algorithm"]["generators"]
    assert found["collector"]["seeds"] == expected["collector"]["seeds"]
