"""What the contenders with Tianshou's replay memory share."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from harness import Learner, Setting, TrainingEnvs
from tianshou.algorithm import Algorithm
from tianshou.data import Batch, Collector, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode


class OffPolicyLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        np.random.seed(setting.seed)
        torch.manual_seed(setting.seed)
        self.setting = setting
        self.algorithm = self.build(training)
        self.policy = self.algorithm.policy
        envs = DummyVectorEnv(training.factories())
        envs.seed(setting.seed)
        self.buffer = self.make_buffer()
        self.collector = Collector(self.policy, envs, self.buffer, exploration_noise=True)

    @abstractmethod
    def build(self, training: TrainingEnvs) -> Algorithm: ...

    @property
    @abstractmethod
    def updates_per_step(self) -> float: ...

    def make_buffer(self) -> ReplayBuffer:
        return VectorReplayBuffer(self.setting.hparams["buffer_capacity"], self.setting.num_envs)

    def set_schedules(self, epoch: int, step_after_start: int) -> None:
        """Update schedules; called before each round of environment steps."""

    def learn(self) -> None:
        hparams, steps = self.setting.hparams, self.setting.steps
        self.collector.reset()
        self.set_schedules(0, 0)
        with policy_within_training_step(self.policy):
            self.collector.collect(n_step=hparams["learning_starts"], random=hparams.get("random_start", True))
        self.algorithm.run_training(
            OffPolicyTrainerParams(
                max_epochs=1,
                epoch_num_steps=steps - hparams["learning_starts"],
                training_collector=self.collector,
                collection_step_num_env_steps=hparams["train_frequency"],
                update_step_num_gradient_steps_per_sample=self.updates_per_step,
                batch_size=hparams["batch_size"],
                training_fn=self.set_schedules,
                show_progress=False,
                verbose=False,
            )
        )

    def act(self, obs: np.ndarray) -> np.ndarray:
        # Outside of training mode noisy layers have no noise, and IQN samples as many fractions as for collecting.
        with torch.no_grad(), torch_train_mode(self.policy, enabled=False):
            actions: np.ndarray = self.policy.map_action(self.policy(Batch(obs=obs, info=Batch())).act)
        return actions

    def details(self) -> dict[str, Any]:
        return {"parameters": sum(value.numel() for value in self.policy.parameters() if value.requires_grad)}
