"""DQN of stable-baselines3."""

from harness import Setting, TrainingEnvs, main
from sb3_interface import ModelLearner
from stable_baselines3 import DQN


class SB3Learner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        hparams = setting.hparams
        self.model = DQN(
            "MlpPolicy",
            training.envs[0],
            learning_rate=hparams["learning_rate"],
            buffer_size=hparams["buffer_capacity"],
            learning_starts=hparams["learning_starts"],
            batch_size=hparams["batch_size"],
            gamma=hparams["gamma"],
            train_freq=hparams["train_frequency"],
            gradient_steps=hparams["gradient_steps"],
            target_update_interval=hparams["target_update_interval"],  # counted in env steps here
            exploration_initial_eps=hparams["epsilon_start"],
            exploration_final_eps=hparams["epsilon_end"],
            exploration_fraction=hparams["exploration_fraction"],
            max_grad_norm=hparams["max_grad_norm"],
            policy_kwargs={"net_arch": list(hparams["hidden_sizes"])},
            seed=setting.seed,
            device="cpu",
        )


if __name__ == "__main__":
    main(SB3Learner, ["stable-baselines3", "torch", "gymnasium", "numpy"])
