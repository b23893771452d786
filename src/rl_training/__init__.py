"""Reinforcement-learning training: one config, one CLI, one API, exact resume.

Names are imported on first use (PEP 562), so that `rl-training --help` does not import torch.
"""

import importlib
from typing import Any

from rl_training.experiment.registry import registry

__version__ = "0.1.0"

_HOMES = {
    "TrainConfig": "rl_training.experiment.config",
    "load_config": "rl_training.experiment.config",
    "ManagedAlgorithm": "rl_training.api.algorithms",
    "Callback": "rl_training.runtime.callbacks",
    "TrainResult": "rl_training.runtime.trainer",
    "ReplayBuffer": "rl_training.data.replay_buffer",
    "RolloutBuffer": "rl_training.data.rollout_buffer",
    "RecurrentReplayBuffer": "rl_training.data.recurrent_replay_buffer",
    "train_dqn": "rl_training.runtime.dqn_trainer",
    "train_ppo": "rl_training.runtime.ppo_trainer",
    "train_sac": "rl_training.runtime.sac_trainer",
    "train_mbpo": "rl_training.runtime.mbpo_trainer",
    "train_mopo": "rl_training.runtime.mopo_trainer",
    "train_gail": "rl_training.runtime.gail_trainer",
    "train_dreamer": "rl_training.runtime.dreamer_trainer",
}


def _algorithm_classes() -> list[str]:
    return [spec.class_name for spec in registry().values()]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if not name.startswith("_") and name in _algorithm_classes():
        return getattr(importlib.import_module("rl_training.api.algorithms"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_algorithm_classes()])
