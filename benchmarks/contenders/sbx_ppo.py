"""PPO of sbx-rl (stable-baselines3 in JAX). Actor and critic each have an optimizer, with Adam's epsilon at 1e-5.

Each of them clips its own gradient norm. Only the output layer of the actor is orthogonal.
"""

from harness import Setting, TrainingEnvs, main
from sb3_interface import OnPolicyModelLearner, ppo_arguments
from sbx import PPO
from stable_baselines3.common.vec_env import DummyVecEnv


class SBXLearner(OnPolicyModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        widths = list(setting.hparams["hidden_sizes"])
        self.model = PPO(
            "MlpPolicy",
            DummyVecEnv(training.factories()),
            policy_kwargs={"net_arch": {"pi": widths, "vf": widths}, "ortho_init": True},
            **ppo_arguments(setting),
        )

    def learn(self) -> None:
        # The value of a single observation is first needed at a time limit, late in a run. It is compiled here, so that
        # its compilation is part of the first steps.
        policy = self.model.policy
        obs, _ = policy.prepare_obs(self.model.observation_space.sample())
        policy.vf.apply(policy.vf_state.params, obs).flatten()
        super().learn()


if __name__ == "__main__":
    main(SBXLearner, ["sbx-rl", "stable-baselines3", "jax", "flax", "optax", "gymnasium", "numpy"])
