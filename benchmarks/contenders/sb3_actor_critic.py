"""SAC and TD3 of stable-baselines3; `Setting.algo` names one."""

from harness import Setting, TrainingEnvs, main
from sb3_interface import ModelLearner, actor_critic_arguments
from stable_baselines3 import SAC, TD3

ALGORITHMS = {"sac": SAC, "td3": TD3}


class SB3Learner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        env = training.envs[0]
        self.model = ALGORITHMS[setting.algo_name](
            "MlpPolicy",
            env,
            policy_kwargs={"net_arch": list(setting.hparams["hidden_sizes"])},
            **actor_critic_arguments(setting, env.action_space),
        )


if __name__ == "__main__":
    main(SB3Learner, ["stable-baselines3", "torch", "gymnasium", "mujoco", "numpy"])
