"""PPO, DQN and SAC of stable-baselines3 with its own defaults; `Setting.algo` names one."""

from harness import Setting, TrainingEnvs, main
from sb3_interface import ModelLearner
from stable_baselines3 import DQN, PPO, SAC

ALGORITHMS = {"ppo": PPO, "dqn": DQN, "sac": SAC}


class SB3Learner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        self.model = ALGORITHMS[setting.algo_name]("MlpPolicy", training.envs[0], seed=setting.seed, device="cpu")


if __name__ == "__main__":
    main(SB3Learner, ["stable-baselines3", "torch", "gymnasium", "numpy"])
