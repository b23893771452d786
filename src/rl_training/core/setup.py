"""`Setup`: what an algorithm and its memory are built from."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces

if TYPE_CHECKING:
    from rl_training.datasets.transition_dataset import TransitionDataset

H = TypeVar("H", covariant=True)  # an algorithm's settings, or what a builder reads of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Generic[H]):
    """What an algorithm and its memory are built from."""

    spaces: Spaces
    hparams: H
    total_timesteps: int
    total_updates: int  # that the whole run owes
    streams: Streams
    num_envs: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    acceleration: str = "eager"
    device_loop: bool = False  # whether rollouts are collected on the device, from tensor environments
    network: nn.Module | None = None  # the user's network, in place of the default one
    env_id: str = ""  # of Gymnasium; empty for an environment that a function of the user creates
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    make_env: Callable[[], gym.Env[Any, Any]] | None = None  # builds one more environment of the run, if it has any
    dataset: "TransitionDataset | None" = None  # to learn from, with or without an env; None to act only
    held_out: "TransitionDataset | None" = None  # the held-out set for offline evaluation, if there is one

    @property
    def identity(self) -> str | None:
        """Name everything that the code of an update depends on; None if a user's network is part of it."""
        if self.network is not None:
            return None
        with np.printoptions(threshold=sys.maxsize):  # numpy shortens long arrays, in which spaces may differ
            return f"{self.hparams!r} {self.spaces!r} {self.num_envs}"

    def identity_with(self, recipe: object) -> str | None:
        """Return `identity`; None for a recipe of another package, whose source may change unnoticed."""
        return self.identity if type(recipe).__module__.startswith("rl_training.") else None
