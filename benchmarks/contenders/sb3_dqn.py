"""DQN of stable-baselines3."""

from harness import Setting, TrainingEnvs, main
from sb3_interface import ModelLearner, dqn_arguments
from stable_baselines3 import DQN


class SB3Learner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        self.model = DQN(
            "MlpPolicy",
            training.envs[0],
            max_grad_norm=setting.hparams["max_grad_norm"],
            policy_kwargs={"net_arch": list(setting.hparams["hidden_sizes"])},
            **dqn_arguments(setting),
        )


if __name__ == "__main__":
    main(SB3Learner, ["stable-baselines3", "torch", "gymnasium", "numpy"])
