"""DQN of Tianshou."""

from typing import Any

import numpy as np
import torch
from harness import Learner, Setting, TrainingEnvs, main
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, OptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net


class ClippedDQN(DQN):
    """DQN with gradient clipping, which Tianshou's optimizer knows but its DQN does not pass on."""

    def __init__(self, max_grad_norm: float, **kwargs: Any) -> None:
        self.max_grad_norm = max_grad_norm
        super().__init__(**kwargs)

    def _create_policy_optimizer(self, optim: OptimizerFactory) -> DQN.Optimizer:
        return self._create_optimizer(self.policy, optim, max_grad_norm=self.max_grad_norm)


class TianshouLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        np.random.seed(setting.seed)
        torch.manual_seed(setting.seed)
        self.setting = setting
        hparams, env = setting.hparams, training.envs[0]
        self.policy = DiscreteQLearningPolicy(
            model=Net(
                state_shape=env.observation_space.shape,
                action_shape=int(env.action_space.n),
                hidden_sizes=hparams["hidden_sizes"],
            ),
            action_space=env.action_space,
            observation_space=env.observation_space,
        )
        self.algorithm = ClippedDQN(
            hparams["max_grad_norm"],
            policy=self.policy,
            optim=AdamOptimizerFactory(lr=hparams["learning_rate"]),
            gamma=hparams["gamma"],
            target_update_freq=hparams["target_update_interval"],  # counted in updates here
            is_double=False,
            huber_loss_delta=1.0,
        )
        envs = DummyVectorEnv(training.factories())
        envs.seed(setting.seed)
        buffer = VectorReplayBuffer(hparams["buffer_capacity"], 1)
        self.collector = Collector(self.policy, envs, buffer, exploration_noise=True)

    def learn(self) -> None:
        hparams, steps = self.setting.hparams, self.setting.steps
        self.collector.reset()
        self.collector.collect(n_step=hparams["learning_starts"], random=True)
        self.algorithm.run_training(
            OffPolicyTrainerParams(
                max_epochs=1,
                epoch_num_steps=steps - hparams["learning_starts"],
                training_collector=self.collector,
                collection_step_num_env_steps=hparams["train_frequency"],
                update_step_num_gradient_steps_per_sample=hparams["gradient_steps"] / hparams["train_frequency"],
                batch_size=hparams["batch_size"],
                training_fn=self._set_epsilon,
                show_progress=False,
                verbose=False,
            )
        )

    def _set_epsilon(self, epoch: int, step_after_random_phase: int) -> None:
        hparams = self.setting.hparams
        step = step_after_random_phase + hparams["learning_starts"]
        progress = min(1.0, step / (hparams["exploration_fraction"] * self.setting.steps))
        start, end = hparams["epsilon_start"], hparams["epsilon_end"]
        self.policy.set_eps_training(start + progress * (end - start))

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.policy(Batch(obs=obs, info=Batch())).act

    def num_updates(self) -> int:
        return self.algorithm._iter


if __name__ == "__main__":
    main(TianshouLearner, ["tianshou", "torch", "gymnasium", "numpy"])
