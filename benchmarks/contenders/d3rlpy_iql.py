"""IQL of d3rlpy, from a dataset file.

Our settings are translated to its own means: rewards, observations and actions go through its scalers, and its
`MDPDataset` separates terminations from time limits. It drops the last row of a truncated episode, because it does not
look up its successor. Its weights are initialised as PyTorch's layers are.
"""

import math
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.algos import IQLConfig
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import AdamFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import (
    MinMaxActionScaler,
    MultiplyRewardScaler,
    ReturnBasedRewardScaler,
    RewardScaler,
    StandardObservationScaler,
)
from harness import Learner, Setting, TrainingEnvs, box, main, make_env

EPOCH = 1_000  # updates over which d3rlpy averages its losses; it repeats the average at every tenth


def reward_scaler(hparams: dict[str, Any]) -> RewardScaler | None:
    if hparams["reward_shift"]:
        raise ValueError(f"d3rlpy cannot both scale and shift rewards, but reward_shift is {hparams['reward_shift']}")
    scale = hparams["reward_scale"]
    if scale == "return":
        return ReturnBasedRewardScaler(multiplier=1_000.0)
    return None if scale == "none" else MultiplyRewardScaler(scale)


def iql_config(setting: Setting) -> IQLConfig:
    hparams = setting.hparams
    if hparams["network"] != "mlp":
        raise ValueError(f"d3rlpy has no network {hparams['network']!r}")
    space = box(make_env(setting.env_id).action_space)
    cosine = CosineAnnealingLRFactory(T_max=setting.steps) if hparams["learning_rate_schedule"] == "cosine" else None
    adam = {"eps": hparams["adam_eps"], "clip_grad_norm": hparams["max_grad_norm"]}
    hidden = list(hparams["hidden_sizes"])
    critic = VectorEncoderFactory(hidden, use_layer_norm=hparams["layer_norm"])
    return IQLConfig(
        observation_scaler=StandardObservationScaler() if hparams["normalize_observations"] else None,
        action_scaler=MinMaxActionScaler(minimum=space.low, maximum=space.high),
        reward_scaler=reward_scaler(hparams),
        actor_learning_rate=hparams["learning_rate"],
        critic_learning_rate=hparams["learning_rate"],
        actor_optim_factory=AdamFactory(**adam, lr_scheduler_factory=cosine),
        critic_optim_factory=AdamFactory(**adam),
        actor_encoder_factory=VectorEncoderFactory(hidden),
        critic_encoder_factory=critic,
        value_encoder_factory=critic,
        batch_size=hparams["batch_size"],
        gamma=hparams["gamma"],
        tau=hparams["tau"],
        expectile=hparams["expectile"],
        weight_temp=hparams["beta"],
        max_weight=hparams["max_advantage_weight"],
    )


def mdp_dataset(setting: Setting) -> MDPDataset:
    with np.load(setting.dataset_path) as columns:
        terminals = columns["terminations"].astype(np.float32)
        timeouts = columns["truncations"].astype(np.float32)
        return MDPDataset(
            observations=columns["observations"].astype(np.float32),
            actions=columns["actions"].astype(np.float32),
            rewards=columns["rewards"].astype(np.float32),
            terminals=terminals,
            timeouts=timeouts * (1.0 - terminals),  # for d3rlpy a row is at most one of both
        )


class D3RLPyLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        d3rlpy.seed(setting.seed)
        self.setting, self.counter, self.updates = setting, training.counter, 0
        self.dataset = mdp_dataset(setting)
        self.model = iql_config(setting).create(device="cuda:0" if setting.device == "cuda" else setting.device)

    def learn(self) -> None:
        self.model.fit(
            self.dataset,
            n_steps=self.setting.steps,
            n_steps_per_epoch=math.gcd(self.setting.steps, EPOCH),  # it only makes whole epochs
            logger_adapter=NoopAdapterFactory(),
            show_progress=False,
            callback=self._count_update,
        )

    def update(self) -> None:
        """Make one update as `fit` does, to time it alone."""
        if self.model.impl is None:
            self.model.build_with_dataset(self.dataset)
        self.model.update(self.dataset.sample_transition_batch(self.setting.hparams["batch_size"]))
        self.updates += 1

    def act(self, obs: np.ndarray) -> np.ndarray:
        actions: np.ndarray = self.model.predict(obs.astype(np.float32))
        return actions

    def num_updates(self) -> int:
        return self.updates

    def details(self) -> dict[str, Any]:
        modules = (self.model.impl.policy, self.model.impl.q_function, self.model.impl.modules.value_func)
        return {
            "parameters": sum(value.numel() for module in modules for value in module.parameters()),
            "device": str(next(modules[0].parameters()).device),
        }

    def _count_update(self, *_: object) -> None:
        self.updates += 1
        self.counter.advance()


if __name__ == "__main__":
    main(D3RLPyLearner, ["d3rlpy", "torch", "gymnasium", "mujoco", "numpy"])
