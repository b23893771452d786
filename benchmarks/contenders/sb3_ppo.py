"""PPO of stable-baselines3. Its Adam epsilon is 1e-5 already, its weights orthogonal, its hidden layers tanh."""

from harness import Setting, TrainingEnvs, main
from sb3_interface import OnPolicyModelLearner, ppo_arguments
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv


class SB3Learner(OnPolicyModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        widths = list(setting.hparams["hidden_sizes"])
        self.model = PPO(
            "MlpPolicy",
            DummyVecEnv(training.factories()),
            policy_kwargs={"net_arch": {"pi": widths, "vf": widths}},
            **ppo_arguments(setting),
        )


if __name__ == "__main__":
    main(SB3Learner, ["stable-baselines3", "torch", "gymnasium", "numpy"])
