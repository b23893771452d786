"""Recurrent PPO of sb3-contrib, with an LSTM of its own for the critic.

The tasks are those of this library: their file is loaded by its path, because the library is not installed here.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from harness import ROOT, Setting, TrainingEnvs, main
from sb3_contrib import RecurrentPPO
from sb3_interface import OnPolicyModelLearner, ppo_arguments
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

TASKS = ROOT / "src" / "rl_training" / "envs" / "memory_tasks.py"


def register_tasks() -> None:
    spec = importlib.util.spec_from_file_location("memory_tasks", TASKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.register_memory_tasks()


class SB3RecurrentLearner(OnPolicyModelLearner):
    """`normalize`: observations and rewards, as rl-zoo3 does for tasks without velocities."""

    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        register_tasks()
        hparams = setting.hparams
        widths = list(hparams["hidden_sizes"])
        envs: VecEnv = DummyVecEnv(training.factories())
        self.normalized = VecNormalize(envs, gamma=hparams["gamma"]) if hparams["normalize"] else None
        self.state: tuple[np.ndarray, ...] | None = None
        self.starts: np.ndarray | None = None
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            self.normalized or envs,
            policy_kwargs={
                "net_arch": {"pi": widths, "vf": widths},
                "lstm_hidden_size": hparams["cell_size"],
                "enable_critic_lstm": True,
                "activation_fn": torch.nn.ReLU,
                "ortho_init": False,
            },
            **ppo_arguments(setting),
        )

    def begin_episodes(self) -> None:
        self.state = self.starts = None

    def act(self, obs: np.ndarray) -> np.ndarray:
        seen = self.normalized.normalize_obs(obs) if self.normalized else obs
        starts = np.ones(len(obs), np.bool_) if self.starts is None else self.starts
        actions, self.state = self.model.predict(seen, state=self.state, episode_start=starts, deterministic=True)
        self.starts = np.zeros(len(obs), np.bool_)
        return np.asarray(actions)

    def keep(self, rows: Sequence[int]) -> None:
        if self.state is not None:
            self.state = tuple(part[:, list(rows)] for part in self.state)
            self.starts = np.zeros(len(rows), np.bool_)

    def details(self) -> dict[str, Any]:
        return {"parameters": sum(value.numel() for value in self.model.policy.parameters())}


if __name__ == "__main__":
    main(SB3RecurrentLearner, ["sb3-contrib", "stable-baselines3", "torch", "gymnasium", "numpy"])
