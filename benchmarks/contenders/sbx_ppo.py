"""PPO of sbx-rl (stable-baselines3 in JAX). Actor and critic have an optimizer each, with Adam's epsilon at 1e-5."""

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
        # The value of a single observation is needed at the first time limit, late in a run: its compiling belongs to
        # the first steps like all the other.
        policy = self.model.policy
        obs, _ = policy.prepare_obs(self.model.observation_space.sample())
        policy.vf.apply(policy.vf_state.params, obs).flatten()
        super().learn()


if __name__ == "__main__":
    main(SBXLearner, ["sbx-rl", "stable-baselines3", "jax", "flax", "optax", "gymnasium", "numpy"])
