"""Builders of small runs with tensor environments, and what compares their updates with those of the host."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.types import Batch
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.device_loop import DeviceLoop
from rl_training.runtime.setup import PreparedRun, make_collector, prepare_run, resolve
from rl_training.runtime.trainer import RunOptions

QUIET = RunOptions(show_progress=False)


def config(tmp_path: Path, **changes: Any) -> TrainConfig:
    algo_kwargs = {"num_steps": 16, "minibatch_size": 32, "update_epochs": 2, "hidden_sizes": [8]}
    settings = {
        "algo": "ppo",
        "env_id": "tensor/CartPole-v1",
        "execution_backend": "tensor",
        "num_envs": 8,
        "total_timesteps": 512,
        "log_interval": 128,
        "eval_episodes": 1,
        "device": "cpu",
        "acceleration": "eager",
        "tensorboard": False,
        "output_dir": tmp_path,
    }
    algo_kwargs |= changes.pop("algo_kwargs", {})
    return TrainConfig(**{**settings, **changes, "algo_kwargs": algo_kwargs})


def prepare(config: TrainConfig) -> tuple[PreparedRun, DeviceCollector]:
    config = resolve(config)
    prepared = prepare_run(config, QUIET, QUIET.factory_for(config))
    collector = make_collector(prepared, replayable=True, crash_dir=config.output_dir)
    assert isinstance(collector, DeviceCollector)
    collector.start()
    return prepared, collector


def device_loop(config: TrainConfig, acceleration: str | None = None) -> tuple[Any, Any, DeviceCollector]:
    prepared, collector = prepare(config)
    algorithm: Any = prepared.algorithm
    memory: Any = prepared.memory
    settings = config.updated(acceleration=acceleration or config.acceleration)
    return DeviceLoop([algorithm], [collector], [memory], settings), algorithm, collector


def as_host_rollout(rows: Batch, num_envs: int) -> Batch:
    """Return the rows with final observations only where the next row does not show them, as `RolloutBuffer` does."""
    is_last = torch.zeros_like(rows["terminated"])
    is_last[-num_envs:] = True
    final = (rows["truncated"] | is_last).nonzero()[:, 0]
    names = ("obs", "actions", "rewards", "terminated", "truncated")
    return {name: rows[name].clone() for name in names} | {"final_rows": final, "final_obs": rows["next_obs"][final]}


class Orders:
    """Stands in for the generator of shuffles: the orders that the device loop uses."""

    def __init__(self, words: Tensor) -> None:
        self._orders = iter(words.argsort(dim=1, stable=True).numpy())

    def permutation(self, rows: int) -> np.ndarray:
        return next(self._orders)
