"""SAC, TD3 and REDQ of Tianshou; `Setting.algo` names one."""

import math
from functools import partial
from typing import Any

from harness import Setting, TrainingEnvs, box, main
from tianshou.algorithm import REDQ, SAC, TD3, Algorithm
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.redq import REDQPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.exploration import GaussianNoise
from tianshou.utils.net.common import EnsembleLinear, Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou_interface import OffPolicyLearner


class Family:
    """Builds the networks, the policy and the algorithm: a method per `Setting.algo`."""

    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        env, self.hparams = training.envs[0], setting.hparams
        self.spaces = {"action_space": env.action_space, "observation_space": env.observation_space}
        self.obs_shape, self.action_shape = box(env.observation_space).shape, box(env.action_space).shape
        rate = self.hparams["learning_rate"]
        self.shared = {
            "policy_optim": AdamOptimizerFactory(lr=self.hparams.get("actor_learning_rate", rate)),
            "critic_optim": AdamOptimizerFactory(lr=rate),
            "tau": self.hparams["tau"],
            "gamma": self.hparams["gamma"],
        }

    def sac(self) -> Algorithm:
        policy = SACPolicy(actor=self._gaussian_actor(), **self.spaces)
        return SAC(policy=policy, **self._two_critics(), alpha=self._alpha(), **self.shared)

    def td3(self) -> Algorithm:
        actor = ContinuousActorDeterministic(preprocess_net=self._net(), action_shape=self.action_shape)
        noise = GaussianNoise(sigma=self.hparams["exploration_noise"])
        policy = ContinuousDeterministicPolicy(actor=actor, exploration_noise=noise, **self.spaces)
        return TD3(
            policy=policy,
            **self._two_critics(),
            policy_noise=self.hparams["target_noise"],
            noise_clip=self.hparams["target_noise_clip"],
            update_actor_freq=self.hparams["policy_delay"],
            **self.shared,
        )

    def redq(self) -> Algorithm:
        num_critics = self.hparams["num_critics"]
        linear = partial(EnsembleLinear, num_critics)
        return REDQ(
            policy=REDQPolicy(actor=self._gaussian_actor(), **self.spaces),
            critic=self._critic(linear_layer=linear),
            ensemble_size=num_critics,
            subset_size=self.hparams["subset_size"],
            actor_delay=self.hparams["policy_delay"],
            alpha=self._alpha(),
            **self.shared,
        )

    def _net(self, **kwargs: Any) -> Net:
        return Net(state_shape=self.obs_shape, hidden_sizes=self.hparams["hidden_sizes"], **kwargs)

    def _gaussian_actor(self) -> ContinuousActorProbabilistic:
        return ContinuousActorProbabilistic(
            preprocess_net=self._net(), action_shape=self.action_shape, unbounded=True, conditioned_sigma=True
        )

    def _critic(self, **layers: Any) -> ContinuousCritic:
        net = self._net(action_shape=self.action_shape, concat=True, **layers)
        return ContinuousCritic(preprocess_net=net, flatten_input=not layers, **layers)

    def _two_critics(self) -> dict[str, ContinuousCritic]:
        return {"critic": self._critic(), "critic2": self._critic()}

    def _alpha(self) -> float | AutoAlpha:
        alpha = self.hparams.get("alpha", "auto")
        if alpha != "auto":
            return float(alpha)
        optimizer = AdamOptimizerFactory(lr=self.hparams["learning_rate"])
        return AutoAlpha(target_entropy=-float(math.prod(self.action_shape)), log_alpha=0.0, optim=optimizer)


class TianshouLearner(OffPolicyLearner):
    updates = 0

    def build(self, training: TrainingEnvs) -> Algorithm:
        algorithm = getattr(Family(self.setting, training), self.setting.algo_name)()
        algorithm.critic_optim._optim.register_step_post_hook(self._count_update)
        return algorithm

    @property
    def updates_per_step(self) -> float:
        return float(self.setting.hparams["gradient_updates_per_step"])

    def num_updates(self) -> int:
        return self.updates

    def _count_update(self, *_: object) -> None:
        self.updates += 1


if __name__ == "__main__":
    main(TianshouLearner, ["tianshou", "torch", "gymnasium", "mujoco", "numpy"])
