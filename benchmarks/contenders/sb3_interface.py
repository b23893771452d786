"""What contenders with stable-baselines3's interface share: its own and those of sbx-rl."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from harness import Learner, Setting, box
from stable_baselines3.common.noise import NormalActionNoise


class ModelLearner(Learner):
    """A learner whose `model`, of stable-baselines3 or sbx, is built by the script."""

    model: Any

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.threads)  # sbx uses stable-baselines3's buffers
        self.setting = setting

    def learn(self) -> None:
        self.model.learn(self.setting.steps)

    def act(self, obs: np.ndarray) -> np.ndarray:
        actions: np.ndarray = self.model.predict(obs, deterministic=True)[0]
        return actions

    def num_updates(self) -> int:
        return int(self.model._n_updates)


class OnPolicyModelLearner(ModelLearner):
    def num_updates(self) -> int:
        # These models count passes over the rollout.
        return int(self.model._n_updates * self.setting.rollout // self.setting.hparams["minibatch_size"])


def off_policy_arguments(setting: Setting) -> dict[str, Any]:
    """Translate the hyperparameters of all algorithms with a replay memory."""
    hparams = setting.hparams
    return {
        "learning_rate": hparams["learning_rate"],
        "buffer_size": hparams["buffer_capacity"],
        "learning_starts": hparams["learning_starts"],
        "batch_size": hparams["batch_size"],
        "gamma": hparams["gamma"],
        "train_freq": hparams["train_frequency"],
        "seed": setting.seed,
        "device": "cpu",
    }


def dqn_arguments(setting: Setting) -> dict[str, Any]:
    """Translate the hyperparameters of DQN and QR-DQN, except for those of the network and the clipping."""
    hparams = setting.hparams
    return {
        **off_policy_arguments(setting),
        "gradient_steps": hparams["gradient_steps"],
        "target_update_interval": hparams["target_update_interval"],  # counted in env steps here
        "exploration_initial_eps": hparams["epsilon_start"],
        "exploration_final_eps": hparams["epsilon_end"],
        "exploration_fraction": hparams["exploration_fraction"],
    }


def actor_critic_arguments(setting: Setting, action_space: gym.Space[Any]) -> dict[str, Any]:
    """Translate the hyperparameters of SAC, TD3, TQC and CrossQ, except for those of the network."""
    hparams = setting.hparams
    gradient_steps = round(hparams["gradient_updates_per_step"] * hparams["train_frequency"])
    arguments = {**off_policy_arguments(setting), "gradient_steps": gradient_steps}
    if setting.algo == "crossq":  # it has no target networks
        return {**arguments, "policy_delay": hparams["policy_delay"]}
    own = {"td3": td3_arguments, "tqc": tqc_arguments}.get(setting.algo_name)
    return {**arguments, "tau": hparams["tau"], **(own(hparams, action_space) if own else {})}


def tqc_arguments(hparams: Mapping[str, Any], action_space: gym.Space[Any]) -> dict[str, Any]:
    """Translate what only TQC has; `use_sde` is sb3-contrib's own."""
    return {
        "top_quantiles_to_drop_per_net": hparams["dropped_quantiles"],
        "use_sde": hparams.get("use_sde", False),
    }


def td3_arguments(hparams: Mapping[str, Any], action_space: gym.Space[Any]) -> dict[str, Any]:
    noise = np.full(box(action_space).shape, hparams["exploration_noise"])  # added to actions in [-1, 1], as ours is
    return {
        "policy_delay": hparams["policy_delay"],
        "target_policy_noise": hparams["target_noise"],
        "target_noise_clip": hparams["target_noise_clip"],
        "action_noise": NormalActionNoise(np.zeros_like(noise), noise),
    }


def ppo_arguments(setting: Setting) -> dict[str, Any]:
    """Translate the hyperparameters of PPO; `use_sde` and `sde_sample_freq` are these libraries' own."""
    hparams = setting.hparams
    arguments = {
        "n_steps": hparams["num_steps"],
        "batch_size": hparams["minibatch_size"],
        "n_epochs": hparams["update_epochs"],
        "learning_rate": schedule(hparams["learning_rate"], hparams["learning_rate_schedule"]),
        "clip_range": schedule(hparams["clip_coef"], hparams["clip_schedule"]),
        "gamma": hparams["gamma"],
        "gae_lambda": hparams["gae_lambda"],
        "ent_coef": hparams["ent_coef"],
        "vf_coef": hparams["vf_coef"],
        "max_grad_norm": hparams["max_grad_norm"],
        "seed": setting.seed,
        "device": "cpu",
    }
    return arguments | {name: hparams[name] for name in ("use_sde", "sde_sample_freq") if name in hparams}


def schedule(value: float, kind: str) -> float | Callable[[float], float]:
    """Return a constant as it is, and `linear` as a function of the remaining share of the run."""
    return value if kind == "constant" else lambda remaining: remaining * value
