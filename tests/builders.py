"""Builders of small settings, setups, batches and configs."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry

# With these settings every algorithm steps and updates in milliseconds; `small_hparams` picks those it has.
SMALL: dict[str, Any] = {
    "hidden_sizes": [16],
    # Learning from replay
    "batch_size": 8,
    "buffer_capacity": 200,
    "learning_starts": 10,
    "train_frequency": 1,
    # Heads of the DQN family
    "num_atoms": 11,
    "num_quantiles": 6,
    "num_tau_samples": 4,
    "embedding_dim": 8,
    # Critics of REDQ, TQC, CrossQ and SimBaV2
    "num_critics": 4,
    "critic_hidden_sizes": [16],
    # Models of MBPO and MOPO
    "num_ensembles": 3,
    "num_elites": 2,
    "model_hidden_sizes": [16],
    "model_batch_size": 16,
    "model_max_epochs": 2,
    "model_train_frequency": 10,
    "rollout_batch_size": 20,
    "rollout_refresh_interval": 10,
    # World model of Dreamer
    "sequence_length": 4,
    "train_ratio": 64.0,
    "imagination_horizon": 3,
    "deter_size": 8,
    "num_blocks": 2,
    "num_latents": 3,
    "num_classes": 4,
    "hidden_size": 8,
    "cnn_depth": 2,
    "num_bins": 11,
    "symlog_limit": 3.0,
    "warmup_updates": 2,
    # Learning from a dataset
    "dataset_kind": "random",
    "dataset_size": 60,
    # Learning from an expert
    "expert_dataset_kind": "random",
    "expert_dataset_size": 60,
    "discriminator_updates": 2,
    "discriminator_batch_size": 8,
    "discriminator_hidden_sizes": [16],
    # Learning from rollouts
    "num_steps": 10,
    "minibatch_size": 10,
    "update_epochs": 2,
    "cell_size": 8,
}


def small_hparams(algo: str, **changes: Any) -> dict[str, Any]:
    """Return the small settings of an algorithm; changes to settings that it does not have are left out."""
    fields = registry()[algo].hparams.model_fields.items()
    known = {name for name, field in fields if (name, field.default) != ("critic_hidden_sizes", None)}  # as the actor
    return {name: value for name, value in {**SMALL, **changes}.items() if name in known}


def make_setup(
    *,
    algo: str = "dqn",
    observation: gym.Space[Any] | None = None,
    num_actions: int = 2,
    action: gym.Space[Any] | None = None,
    action_mask: bool = False,
    seed: int = 0,
    total_timesteps: int = 1_000,
    num_envs: int = 1,
    acceleration: str = "eager",
    network: torch.nn.Module | None = None,
    **hparams: Any,
) -> Setup[Any]:
    """Return a setup for a small DQN or another algorithm: observations of three numbers, no warm-up."""
    small = small_hparams(algo, buffer_capacity=100, learning_starts=0, train_frequency=4)
    observation, action = observation or Box(-1.0, 1.0, (3,), np.float32), action or Discrete(num_actions)
    spec = registry()[algo]
    values = spec.hparams(**{**small, **hparams})
    return Setup(
        spaces=Spaces(observation, action, action_mask),
        hparams=values,
        total_timesteps=total_timesteps,
        total_updates=spec.updates_until(values, total_timesteps),
        streams=Streams(seed),
        num_envs=num_envs,
        acceleration=acceleration,
        network=network,
    )


def make_batch(seed: int = 0, *, size: int = 8, obs_dim: int = 3, num_actions: int = 2) -> Batch:
    """Return random transitions with discrete actions; about 30 % terminate."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, obs_dim, generator=generator),
        "next_obs": torch.randn(size, obs_dim, generator=generator),
        "actions": torch.randint(num_actions, (size,), generator=generator),
        "rewards": torch.randn(size, generator=generator),
        "terminated": torch.rand(size, generator=generator) < 0.3,
    }


BOX = Box(-1.0, 1.0, (2,), np.float32)


def make_box_setup(algo: str = "sac", **setup: Any) -> Setup[Any]:
    """Return a setup for a small SAC or another algorithm: observations of three numbers, actions of two."""
    return make_setup(algo=algo, **{"action": BOX, **small_hparams(algo, learning_starts=0), **setup})


def make_box_batch(seed: int = 0, *, size: int = 8) -> Batch:
    """Return random transitions as `make_batch` does, with actions of two numbers."""
    actions = torch.rand(size, 2, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    return make_batch(seed, size=size) | {"actions": actions}


def make_config(output_dir: Path, **changes: Any) -> TrainConfig:
    """Return the config of a run of 60 steps on the chain, which takes well under a second."""
    values: dict[str, Any] = {
        "algo": "dqn",
        "env_id": "rl_training/Chain-v0",
        "total_timesteps": 60,
        "eval_episodes": 2,
        "tensorboard": False,
        "device": "cpu",
        "acceleration": "eager",
        "output_dir": output_dir,
        **changes,
    }
    return TrainConfig(**{**values, "algo_kwargs": {**small_hparams(values["algo"]), **changes.get("algo_kwargs", {})}})
