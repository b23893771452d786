"""What the test files share: one thread, a compile cache of its own, repeatable hypothesis, small builders."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import settings

from rl_training.algorithms.base import Batch, Setup
from rl_training.data.schema import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.seeding import Streams
from rl_training.hparams.dqn import DQNHParams

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled updates go to a folder of this session: tests neither use nor fill the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(folder))
        yield folder


def make_setup(
    *,
    observation: gym.Space[Any] | None = None,
    num_actions: int = 2,
    seed: int = 0,
    total_timesteps: int = 1_000,
    acceleration: str = "eager",
    network: torch.nn.Module | None = None,
    **hparams: Any,
) -> Setup[DQNHParams]:
    """What a small DQN is built from: three observed numbers, sixteen hidden units, no warm-up."""
    small = {"hidden_sizes": (16,), "batch_size": 8, "buffer_capacity": 100, "learning_starts": 0}
    return Setup(
        spaces=Spaces(observation or Box(-1.0, 1.0, (3,), np.float32), Discrete(num_actions)),
        hparams=DQNHParams(**{**small, **hparams}),
        total_timesteps=total_timesteps,
        streams=Streams(seed),
        acceleration=acceleration,
        network=network,
    )


def make_batch(seed: int = 0, *, size: int = 8, obs_dim: int = 3, num_actions: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, obs_dim, generator=generator),
        "next_obs": torch.randn(size, obs_dim, generator=generator),
        "actions": torch.randint(num_actions, (size,), generator=generator),
        "rewards": torch.randn(size, generator=generator),
        "terminated": torch.rand(size, generator=generator) < 0.3,
    }


def make_config(output_dir: Path, **changes: Any) -> TrainConfig:
    """A run of 60 steps on the chain, which takes well under a second."""
    small = {"hidden_sizes": [16], "batch_size": 8, "buffer_capacity": 200, "learning_starts": 10, "train_frequency": 1}
    values: dict[str, Any] = {
        "algo": "dqn",
        "env_id": "rl_training/Chain-v0",
        "total_timesteps": 60,
        "eval_episodes": 2,
        "tensorboard": False,
        "device": "cpu",
        "acceleration": "eager",
        "output_dir": output_dir,
    }
    return TrainConfig(**{**values, **changes, "algo_kwargs": {**small, **changes.get("algo_kwargs", {})}})
