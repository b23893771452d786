"""IQL, TD3+BC, ReBRAC and CQL of d3rlpy, from a dataset file.

Our settings are translated to its own means: rewards, observations and actions go through its scalers, and its
`MDPDataset` separates terminations from time limits. It drops the last row of a truncated episode, because it does not
look up its successor. Its weights are initialised as PyTorch's layers are. Without entropy in the target, its CQL
bootstraps from the mean action of the policy, ours from a sampled one. With D3RLPY_COMPILE=1 it runs its own compiled
CUDA graphs, which it leaves off by default.
"""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.algos import CQLConfig, IQLConfig, ReBRACConfig, TD3PlusBCConfig
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

COMPILES = os.environ.get("D3RLPY_COMPILE") == "1"
EPOCH = 1_000  # updates over which d3rlpy averages its losses; it repeats the average at every tenth


def reward_scaler(hparams: dict[str, Any]) -> RewardScaler | None:
    if hparams["reward_shift"]:
        raise ValueError(f"d3rlpy cannot both scale and shift rewards, but reward_shift is {hparams['reward_shift']}")
    scale = hparams["reward_scale"]
    if scale == "return":
        return ReturnBasedRewardScaler(multiplier=1_000.0)
    return None if scale == "none" else MultiplyRewardScaler(scale)


def common(setting: Setting) -> dict[str, Any]:
    """Return what all configs have: sizes, scalers, optimizers, rates."""
    hparams = setting.hparams
    if hparams["network"] != "mlp":
        raise ValueError(f"d3rlpy has no network {hparams['network']!r}")
    if hparams["learning_rate_schedule"] == "linear":
        raise ValueError("d3rlpy has no linear schedule")
    space = box(make_env(setting).action_space)
    adam = {"eps": hparams["adam_eps"], "clip_grad_norm": hparams["max_grad_norm"]}
    hidden = list(hparams["hidden_sizes"])
    return {
        "observation_scaler": StandardObservationScaler() if hparams["normalize_observations"] else None,
        "action_scaler": MinMaxActionScaler(minimum=space.low, maximum=space.high),
        "reward_scaler": reward_scaler(hparams),
        "actor_learning_rate": hparams.get("actor_learning_rate") or hparams["learning_rate"],
        "critic_learning_rate": hparams["learning_rate"],
        "actor_optim_factory": AdamFactory(**adam),
        "critic_optim_factory": AdamFactory(**adam),
        "actor_encoder_factory": VectorEncoderFactory(hidden),
        "critic_encoder_factory": VectorEncoderFactory(hidden, use_layer_norm=hparams["layer_norm"]),
        "batch_size": hparams["batch_size"],
        "gamma": hparams["gamma"],
        "tau": hparams["tau"],
        "compile_graph": COMPILES and setting.device == "cuda",
    }


def iql(setting: Setting) -> IQLConfig:
    hparams, shared = setting.hparams, common(setting)
    cosine = CosineAnnealingLRFactory(T_max=setting.steps) if hparams["learning_rate_schedule"] == "cosine" else None
    shared["actor_optim_factory"] = replace(shared["actor_optim_factory"], lr_scheduler_factory=cosine)
    return IQLConfig(
        **shared,
        value_encoder_factory=shared["critic_encoder_factory"],
        expectile=hparams["expectile"],
        weight_temp=hparams["beta"],
        max_weight=hparams["max_advantage_weight"],
    )


def delayed(setting: Setting) -> dict[str, Any]:
    """Return what the descendants of TD3 have."""
    hparams = setting.hparams
    return {
        **common(setting),
        "target_smoothing_sigma": hparams["target_noise"],
        "target_smoothing_clip": hparams["target_noise_clip"],
        "update_actor_interval": hparams["policy_delay"],
    }


def td3_bc(setting: Setting) -> TD3PlusBCConfig:
    return TD3PlusBCConfig(**delayed(setting), alpha=setting.hparams["alpha"])


def rebrac(setting: Setting) -> ReBRACConfig:
    hparams = setting.hparams
    return ReBRACConfig(**delayed(setting), actor_beta=hparams["actor_penalty"], critic_beta=hparams["critic_penalty"])


def cql(setting: Setting) -> CQLConfig:
    hparams = setting.hparams
    if (hparams["alpha"], hparams["target_entropy"], hparams["policy_delay"]) != ("auto", "auto", 1):
        raise ValueError("d3rlpy learns its temperature, towards an entropy of its own choice, and its actor each time")
    if hparams["calibrated"]:
        raise ValueError("calibrated is another of d3rlpy's algorithms")
    return CQLConfig(
        **common(setting),
        temp_learning_rate=hparams["alpha_learning_rate"] or hparams["learning_rate"],
        alpha_learning_rate=0.0,  # its factor of the weight: 1, and not learned
        conservative_weight=hparams["conservative_weight"],
        n_action_samples=hparams["num_sampled_actions"],
        soft_q_backup=hparams["entropy_in_target"],
    )


CONFIGS: dict[str, Callable[[Setting], Any]] = {"iql": iql, "td3_bc": td3_bc, "rebrac": rebrac, "cql": cql}


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
        device = "cuda:0" if setting.device == "cuda" else setting.device
        self.model = CONFIGS[setting.algo_name](setting).create(device=device)

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
        policy = self.model.impl.policy
        return {
            "parameters": sum(value.numel() for value in policy.parameters()),
            "device": str(next(policy.parameters()).device),
            "compile_graph": self.model.config.compile_graph,
        }

    def _count_update(self, *_: object) -> None:
        self.updates += 1
        self.counter.advance()


if __name__ == "__main__":
    main(D3RLPyLearner, ["d3rlpy", "torch", "gymnasium", "mujoco", "numpy"])
