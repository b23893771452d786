"""DQN as one plain eager PyTorch loop, in the style of single-file implementations such as CleanRL's.

Without a library, what remains is the cost of eager PyTorch, numpy and the environment.
"""

import random
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from harness import Learner, Setting, TrainingEnvs, box, discrete, main
from torch import nn


class Buffer:
    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        action_shape: tuple[int, ...] = (1,),
        action_dtype: type[np.generic] = np.int64,
    ) -> None:
        self.obs = np.zeros((capacity, *obs_shape), np.float32)
        self.next_obs = np.zeros((capacity, *obs_shape), np.float32)
        self.actions = np.zeros((capacity, *action_shape), action_dtype)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.float32)
        self.capacity, self.added = capacity, 0

    def add(
        self, obs: np.ndarray, action: int | np.ndarray, reward: float, next_obs: np.ndarray, terminated: bool
    ) -> None:
        row = self.added % self.capacity
        self.obs[row], self.next_obs[row] = obs, next_obs
        self.actions[row], self.rewards[row], self.terminated[row] = action, reward, terminated
        self.added += 1

    def sample(self, batch_size: int) -> list[torch.Tensor]:
        rows = np.random.randint(0, min(self.added, self.capacity), batch_size)
        fields = (self.obs, self.actions, self.rewards, self.next_obs, self.terminated)
        return [torch.as_tensor(values[rows]) for values in fields]


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PlainLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        env = training.envs[0]
        torch.set_num_threads(setting.threads)
        random.seed(setting.seed)
        np.random.seed(setting.seed)
        torch.manual_seed(setting.seed)
        env.action_space.seed(setting.seed)
        self.setting, self.env, self.updates = setting, env, 0
        obs_shape = box(env.observation_space).shape
        sizes = [int(np.prod(obs_shape)), *setting.hparams["hidden_sizes"], int(discrete(env.action_space).n)]
        self.q_network, self.target_network = mlp(sizes), mlp(sizes)
        self.target_network.load_state_dict(self.q_network.state_dict())
        self.optimizer = torch.optim.Adam(self.q_network.parameters(), lr=setting.hparams["learning_rate"])
        self.buffer = Buffer(setting.hparams["buffer_capacity"], obs_shape)

    def learn(self) -> None:
        hparams, total = self.setting.hparams, self.setting.steps
        start, end = hparams["epsilon_start"], hparams["epsilon_end"]
        obs, _ = self.env.reset(seed=self.setting.seed)
        for step in range(total):
            epsilon = start + min(1.0, step / (hparams["exploration_fraction"] * total)) * (end - start)
            if step < hparams["learning_starts"] or random.random() < epsilon:
                action = self.env.action_space.sample()
            else:
                action = self.act(obs[None])[0]
            next_obs, reward, terminated, truncated, _ = self.env.step(action)
            self.buffer.add(obs, action, float(reward), next_obs, terminated)
            obs = self.env.reset()[0] if terminated or truncated else next_obs
            if step >= hparams["learning_starts"] and step % hparams["train_frequency"] == 0:
                for _ in range(hparams["gradient_steps"]):
                    self.update()

    def update(self) -> None:
        hparams = self.setting.hparams
        obs, actions, rewards, next_obs, terminated = self.buffer.sample(hparams["batch_size"])
        with torch.no_grad():
            next_values = self.target_network(next_obs).max(dim=1).values
            td_target = rewards + hparams["gamma"] * (1 - terminated) * next_values
        loss = F.smooth_l1_loss(self.q_network(obs).gather(1, actions).squeeze(1), td_target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q_network.parameters(), hparams["max_grad_norm"])
        self.optimizer.step()
        self.updates += 1
        if self.updates % hparams["target_update_interval"] == 0:
            self.target_network.load_state_dict(self.q_network.state_dict())

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            actions: np.ndarray = self.q_network(torch.as_tensor(obs)).argmax(dim=1).numpy()
        return actions

    def num_updates(self) -> int:
        return self.updates


if __name__ == "__main__":
    main(PlainLearner, ["torch", "gymnasium", "numpy"])
