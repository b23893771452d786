"""SAC and TD3 of stable-baselines3, TQC and CrossQ of sb3-contrib; `Setting.algo` names one."""

from harness import Setting, TrainingEnvs, main
from sb3_contrib import TQC, CrossQ
from sb3_interface import ModelLearner, actor_critic_arguments
from stable_baselines3 import SAC, TD3

ALGORITHMS = {"sac": SAC, "td3": TD3, "tqc": TQC, "crossq": CrossQ}
POLICY_ARGUMENTS = {"num_critics": "n_critics", "num_quantiles": "n_quantiles", "log_std_init": "log_std_init"}


class SB3Learner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        env, hparams = training.envs[0], setting.hparams
        actor = list(hparams["hidden_sizes"])
        critics = list(hparams.get("critic_hidden_sizes", actor))
        self.model = ALGORITHMS[setting.algo_name](
            "MlpPolicy",
            env,
            policy_kwargs={
                "net_arch": {"pi": actor, "qf": critics},
                **{theirs: hparams[ours] for ours, theirs in POLICY_ARGUMENTS.items() if ours in hparams},
            },
            **actor_critic_arguments(setting, env.action_space),
        )


if __name__ == "__main__":
    main(SB3Learner, ["sb3-contrib", "stable-baselines3", "torch", "gymnasium", "mujoco", "numpy"])
