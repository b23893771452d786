"""QR-DQN of sb3-contrib. One network selects and evaluates the next action: it has no double Q-learning."""

from typing import Any

import torch
from harness import Setting, TrainingEnvs, main
from sb3_contrib import QRDQN
from sb3_interface import ModelLearner, dqn_arguments


class SB3ContribLearner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        hparams = setting.hparams
        policy = {"net_arch": list(hparams["hidden_sizes"]), "n_quantiles": hparams["num_quantiles"]}
        if "adam_eps" in hparams:  # else 0.01 / batch_size
            policy |= {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": hparams["adam_eps"]}}
        self.model = QRDQN(
            "MlpPolicy",
            training.envs[0],
            max_grad_norm=hparams.get("max_grad_norm"),
            policy_kwargs=policy,
            **dqn_arguments(setting),
        )

    def details(self) -> dict[str, Any]:
        return {"parameters": sum(value.numel() for value in self.model.quantile_net.parameters())}


if __name__ == "__main__":
    main(SB3ContribLearner, ["sb3-contrib", "stable-baselines3", "torch", "gymnasium", "numpy"])
