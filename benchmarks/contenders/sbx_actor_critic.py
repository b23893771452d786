"""SAC and TD3 of sbx-rl (stable-baselines3 in JAX); `Setting.algo` names one.

It has no REDQ. SAC with the same number of critics, updates and actor updates takes its place; both the target and the
actor then use the minimum of all critics.
"""

from harness import Setting, TrainingEnvs, main
from sb3_interface import ModelLearner, actor_critic_arguments
from sbx import SAC, TD3

ALGORITHMS = {"sac": SAC, "td3": TD3, "redq": SAC}


class SBXLearner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        env, hparams = training.envs[0], setting.hparams
        network = {"net_arch": list(hparams["hidden_sizes"]), "n_critics": hparams.get("num_critics", 2)}
        arguments = actor_critic_arguments(setting, env.action_space)
        if setting.algo == "redq":
            arguments["policy_delay"] = hparams["policy_delay"]
        self.model = ALGORITHMS[setting.algo_name]("MlpPolicy", env, policy_kwargs=network, **arguments)


if __name__ == "__main__":
    main(SBXLearner, ["sbx-rl", "stable-baselines3", "jax", "flax", "optax", "gymnasium", "mujoco", "numpy"])
