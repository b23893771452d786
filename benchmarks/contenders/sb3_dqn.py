"""DQN of stable-baselines3."""

import numpy as np
import torch
from harness import CountedSteps, Learner, Setting, main
from stable_baselines3 import DQN


class SB3Learner(Learner):
    def __init__(self, setting: Setting, env: CountedSteps) -> None:
        torch.set_num_threads(setting.threads)
        hparams = setting.hparams
        self.steps = setting.steps
        self.model = DQN(
            "MlpPolicy",
            env,
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

    def learn(self) -> None:
        self.model.learn(self.steps)

    def act(self, obs: np.ndarray) -> np.ndarray:
        return self.model.predict(obs, deterministic=True)[0]

    def num_updates(self) -> int:
        return self.model._n_updates


if __name__ == "__main__":
    main(SB3Learner, ["stable-baselines3", "torch", "gymnasium", "numpy"])
