"""What the test files share: one thread, a compile cache of its own, repeatable hypothesis, small builders."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rl_training.acceleration.compiled_packages import compiler_available
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces, mask_size, observation_field
from rl_training.core.types import Batch
from rl_training.data.rollout_buffer import RolloutBuffer, build_rollout_buffer
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.registry import registry
from rl_training.hparams.dqn import QLearningHParams
from rl_training.hparams.ppo import PPOHParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import TrainResult

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("repeatable")

needs_compiler = pytest.mark.skipif(not compiler_available(), reason="needs a C++ compiler")


class RecordedGraph(TorchDispatchMode):
    """What `torch.cuda.CUDAGraph` is to its user, on the CPU: records operations, to repeat them on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self.overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}))  # whose shapes stay as they are
        before = args[0].clone() if func._schema.is_mutable else None
        outputs = func(*args, **(kwargs or {}))
        if before is not None and args[0].shape != before.shape:  # as `unsqueeze_`, which changes no number
            return outputs
        if before is not None:
            self.overwritten.append((kept[0][0], before))
        self.operations.append((func, *kept, tree_map_only(torch.Tensor, torch.Tensor.detach, tree_leaves(outputs))))
        return outputs

    def __exit__(self, *error: Any) -> None:
        """Restore what was written: a capture runs nothing."""
        super().__exit__(*error)
        for place, before in reversed(self.overwritten):
            place.copy_(before)

    def replay(self) -> None:
        for func, args, kwargs, places in self.operations:
            for place, value in zip(places, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():  # no view, not in place
                    place.copy_(value)


@pytest.fixture
def recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `acceleration: cuda_graph` work on the CPU, by recorded graphs in place of CUDA's."""
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled updates go to a folder of this session: tests neither use nor fill the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(folder))
        yield folder


# Settings with which every algorithm takes its steps and updates in milliseconds; each takes those that it has.
SMALL: dict[str, Any] = {
    "hidden_sizes": [16],
    # Learning from replay
    "batch_size": 8,
    "buffer_capacity": 200,
    "learning_starts": 10,
    "train_frequency": 1,
    # The heads of the DQN family
    "num_atoms": 11,
    "num_quantiles": 6,
    "num_tau_samples": 4,
    "embedding_dim": 8,
    # The critics of REDQ
    "num_critics": 4,
    # The models of MBPO and MOPO
    "num_ensembles": 3,
    "num_elites": 2,
    "model_hidden_sizes": [16],
    "model_batch_size": 16,
    "model_max_epochs": 2,
    "model_train_frequency": 10,
    "rollout_batch_size": 20,
    "rollout_refresh_interval": 10,
    # The world model of Dreamer
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
    # Learning from a dataset
    "dataset_size": 60,
    # Imitating one
    "expert_dataset_size": 60,
    "discriminator_updates": 2,
    "discriminator_batch_size": 8,
    "discriminator_hidden_sizes": [16],
    # Learning from rollouts
    "num_steps": 10,
    "minibatch_size": 10,
    "update_epochs": 2,
}


def small_hparams(algo: str, **changes: Any) -> dict[str, Any]:
    """Give the small settings of an algorithm; of the changes too only those that it has."""
    known = registry()[algo].hparams.model_fields
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
) -> Setup[QLearningHParams]:
    """What a small DQN, or another of its family, is built from: three observed numbers, no warm-up."""
    small = small_hparams(algo, buffer_capacity=100, learning_starts=0, train_frequency=4)
    observation, action = observation or Box(-1.0, 1.0, (3,), np.float32), action or Discrete(num_actions)
    spec = registry()[algo]
    values = spec.hparams(**{**small, **hparams})
    return Setup(
        spaces=Spaces(observation, action, action_mask),
        hparams=values,  # type: ignore[arg-type]
        total_timesteps=total_timesteps,
        total_updates=spec.updates_until(values, total_timesteps),
        streams=Streams(seed),
        num_envs=num_envs,
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


BOX = Box(-1.0, 1.0, (2,), np.float32)


def make_box_setup(algo: str = "sac", **setup: Any) -> Setup[Any]:
    """What a small SAC, or another of its family, is built from: three observed numbers, actions of two numbers."""
    return make_setup(algo=algo, **{"action": BOX, **small_hparams(algo, learning_starts=0), **setup})


def make_box_batch(seed: int = 0, *, size: int = 8) -> Batch:
    """As `make_batch`, with actions of two numbers."""
    actions = torch.rand(size, 2, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    return make_batch(seed, size=size) | {"actions": actions}


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
    """What a small PPO is built from: three observed numbers, rollouts of 6 steps in 2 envs, minibatches of 4 rows."""
    small = {"hidden_sizes": (16,), "num_steps": 6, "minibatch_size": 4, "update_epochs": 2}
    return Setup(
        spaces=Spaces(observation or Box(-1.0, 1.0, (3,), np.float32), action or Discrete(2), action_mask),
        hparams=PPOHParams(**{**small, **hparams}),
        total_timesteps=total_timesteps,
        total_updates=total_timesteps,
        streams=Streams(seed),
        num_envs=num_envs,
        acceleration=acceleration,
        network=network,
    )


def fill_rollout(buffer: RolloutBuffer, spaces: Spaces, seed: int = 0, *, ends: float = 0.2) -> None:
    """Add random steps until the rollout is full; a share of `ends` terminates, as many are truncated."""
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


def make_rollout(setup: Setup[PPOHParams], seed: int = 0, *, ends: float = 0.2) -> Batch:
    """A random rollout as the loop hands it to PPO."""
    buffer = build_rollout_buffer(setup)
    fill_rollout(buffer, setup.spaces, seed, ends=ends)
    return buffer.rollout()


def make_config(output_dir: Path, **changes: Any) -> TrainConfig:
    """A run of 60 steps on the chain, which takes well under a second."""
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


def assert_identical(ours: Any, theirs: Any, path: str = "") -> None:
    """Compare nested state leaf by leaf, bit for bit."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            assert_identical(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(theirs, torch.Tensor | np.ndarray):
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype, path
        assert np.array_equal(np.asarray(ours), np.asarray(theirs)), path
    else:
        assert ours == theirs, path


def clone(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state.copy() if hasattr(state, "copy") else state


def moved_by(num_bytes: int, values: np.ndarray) -> np.ndarray:
    """Copy an array to memory that begins so many bytes after a multiple of 64, as a checkpoint's arrays may."""
    memory = np.empty(values.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + num_bytes
    moved = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    moved[...] = values
    return moved


class StopAt(Callback):
    """Interrupts a run at a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step >= self.step:
            run.stop_reason, run.interrupted = "stopped", True


def parts_of(result: TrainResult) -> dict[str, Any]:
    """Give all that a run's last checkpoint holds, but for its place in the logs."""
    checkpoint = open_checkpoint(result.checkpoint)
    parts = {part: checkpoint.load(part) for part in (POLICY, TRAINING, MEMORY)}
    parts[TRAINING].pop("log_positions")  # wall times have as many digits as they like
    return parts


def assert_same_run(ours: TrainResult, theirs: TrainResult) -> None:
    """Compare two runs' last checkpoints and logs, bit for bit, but for the time that they took."""
    assert_identical(parts_of(ours), parts_of(theirs))
    for log in ("metrics", "eval"):
        lines = [read_json_lines(result.run_dir / f"{log}.jsonl") for result in (ours, theirs)]
        for line in chain(*lines):
            for time in ("wall_s", "steps_per_s"):
                line.pop(time, None)
        assert lines[0] == lines[1], log


class Images(gym.Env[np.ndarray, np.ndarray]):
    """Shows pictures, which some algorithms cannot learn from."""

    observation_space = Box(0, 255, (8, 8, 3), np.uint8)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((8, 8, 3), np.uint8), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros((8, 8, 3), np.uint8), 0.0, False, False, {}
