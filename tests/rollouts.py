"""Builders of small PPO setups and random rollouts."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces, mask_size, observation_field
from rl_training.core.types import Batch
from rl_training.data.rollout_buffer import RolloutBuffer, build_rollout_buffer
from rl_training.hparams.ppo import PPOHParams


def make_ppo_setup(
    *,
    observation: gym.Space[Any] | None = None,
    action: gym.Space[Any] | None = None,
    action_mask: bool = False,
    num_envs: int = 2,
    seed: int = 0,
    total_timesteps: int = 1_000,
    acceleration: str = "eager",
    network: torch.nn.Module | None = None,
    **hparams: Any,
) -> Setup[PPOHParams]:
    """Return a setup for a small PPO: three observed numbers, rollouts of 6 steps in 2 envs, minibatches of 4 rows.

    Rewards are learned from as they are, and the learning rate falls, unless `hparams` says otherwise.
    """
    small = {"hidden_sizes": (16,), "num_steps": 6, "minibatch_size": 4, "update_epochs": 2}
    plain = {"normalize": "none", "learning_rate_schedule": "linear"}
    return Setup(
        spaces=Spaces(observation or Box(-1.0, 1.0, (3,), np.float32), action or Discrete(2), action_mask),
        hparams=PPOHParams(**{**small, **plain, **hparams}),
        total_timesteps=total_timesteps,
        total_updates=total_timesteps,
        streams=Streams(seed),
        num_envs=num_envs,
        acceleration=acceleration,
        network=network,
    )


def fill_rollout(buffer: RolloutBuffer, spaces: Spaces, seed: int = 0, *, ends: float = 0.2) -> None:
    """Add random steps until the rollout is full; a fraction `ends` terminates, the same fraction is truncated."""
    rng = np.random.default_rng(seed)
    spaces.observation.seed(seed)
    spaces.action.seed(seed)
    stored = observation_field(spaces.observation).dtype
    while not buffer.full:
        envs = range(buffer.num_envs)
        step = {
            "obs": np.stack([spaces.observation.sample() for _ in envs]).astype(stored),
            "next_obs": np.stack([spaces.observation.sample() for _ in envs]).astype(stored),
            "actions": np.stack([spaces.action.sample() for _ in envs]),
            "rewards": rng.normal(size=buffer.num_envs),
            "terminated": rng.random(buffer.num_envs) < ends,
            "truncated": rng.random(buffer.num_envs) < ends,
        }
        if spaces.action_mask:
            step["action_mask"] = np.ones((buffer.num_envs, mask_size(spaces.action)), np.bool_)
        buffer.add(step)


def make_rollout(setup: Setup[Any], seed: int = 0, *, ends: float = 0.2) -> Batch:
    """Return a random rollout as the loop passes it to PPO."""
    buffer = build_rollout_buffer(setup)
    fill_rollout(buffer, setup.spaces, seed, ends=ends)
    return buffer.rollout()
