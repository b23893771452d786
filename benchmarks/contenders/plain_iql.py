"""IQL as one plain eager PyTorch loop, in the style of single-file implementations such as CORL's.

Without a library, what remains is the cost of eager PyTorch and numpy.
"""

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from harness import Learner, Setting, TrainingEnvs, box, main, make_env
from plain_dqn import Buffer, mlp
from torch import Tensor, nn


class PlainLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        torch.set_num_threads(setting.threads)
        np.random.seed(setting.seed)
        torch.manual_seed(setting.seed)
        self.setting, self.counter, self.updates = setting, training.counter, 0
        self.device, hparams = torch.device(setting.device), setting.hparams
        space = box(make_env(setting).action_space)
        self.low, self.scale = space.low, (space.high - space.low) / 2
        self.buffer = self._read_dataset()
        obs_size, action_size = self.buffer.obs.shape[1], self.buffer.actions.shape[1]
        hidden = hparams["hidden_sizes"]
        self.actor = mlp([obs_size, *hidden, action_size]).to(self.device)
        self.log_std = torch.zeros(action_size, device=self.device, requires_grad=True)
        self.critics = nn.ModuleList(mlp([obs_size + action_size, *hidden, 1]) for _ in range(2)).to(self.device)
        self.target_critics = copy.deepcopy(self.critics)
        self.value = mlp([obs_size, *hidden, 1]).to(self.device)
        parts = {
            "value": self.value.parameters(),
            "actor": [*self.actor.parameters(), self.log_std],
            "critics": self.critics.parameters(),
        }
        self.optimizers = {name: torch.optim.Adam(part, lr=hparams["learning_rate"]) for name, part in parts.items()}
        if hparams["learning_rate_schedule"] == "cosine":
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizers["actor"], setting.steps)

    def _read_dataset(self) -> Buffer:
        with np.load(self.setting.dataset_path) as columns:
            rows, actions = len(columns["rewards"]), (columns["actions"] - self.low) / self.scale - 1.0
            buffer = Buffer(rows, columns["observations"].shape[1:], actions.shape[1:], np.float32)
            buffer.obs[:], buffer.next_obs[:] = columns["observations"], columns["next_observations"]
            buffer.actions[:], buffer.terminated[:] = actions, columns["terminations"]
            buffer.rewards[:] = columns["rewards"] * self._reward_scale(columns)
        buffer.added = rows
        return buffer

    def _reward_scale(self, columns: dict[str, np.ndarray]) -> float:
        scale = self.setting.hparams["reward_scale"]
        if scale != "return":
            return 1.0 if scale == "none" else float(scale)
        ends = np.flatnonzero(columns["terminations"] | columns["truncations"]) + 1
        returns = [part.sum() for part in np.split(columns["rewards"], ends) if len(part)]
        return float(1_000.0 / (max(returns) - min(returns)))

    def learn(self) -> None:
        for _ in range(self.setting.steps):
            self.update()
            self.counter.advance()

    def update(self) -> None:
        hparams = self.setting.hparams
        obs, actions, rewards, next_obs, terminated = (
            values.to(self.device) for values in self.buffer.sample(hparams["batch_size"])
        )
        inputs = torch.cat((obs, actions), 1)
        with torch.no_grad():
            q_values = torch.minimum(*(critic(inputs).squeeze(1) for critic in self.target_critics))
        errors = q_values - self.value(obs).squeeze(1)
        weights = torch.where(errors < 0.0, 1.0 - hparams["expectile"], hparams["expectile"])
        self._descend("value", (weights * errors.square()).mean())
        with torch.no_grad():
            advantages = q_values - self.value(obs).squeeze(1)
            exponents = (hparams["beta"] * advantages).clamp(max=math.log(hparams["max_advantage_weight"]))
            td_target = rewards + hparams["gamma"] * (1 - terminated) * self.value(next_obs).squeeze(1)
        policy = torch.distributions.Normal(self.actor(obs).tanh(), self.log_std.clamp(-5.0, 2.0).exp())
        log_probs: Tensor = policy.log_prob(actions)
        self._descend("actor", -(exponents.exp() * log_probs.sum(1)).mean())
        if hparams["learning_rate_schedule"] == "cosine":
            self.schedule.step()
        losses = [F.mse_loss(critic(inputs).squeeze(1), td_target) for critic in self.critics]
        self._descend("critics", losses[0] + losses[1])
        with torch.no_grad():
            for target, value in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(value, hparams["tau"])
        self.updates += 1

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            means = self.actor(torch.as_tensor(obs, dtype=torch.float32, device=self.device)).tanh()
            actions: np.ndarray = self.low + (means.cpu().numpy() + 1.0) * self.scale
        return actions

    def num_updates(self) -> int:
        return self.updates

    def _descend(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()


if __name__ == "__main__":
    main(PlainLearner, ["torch", "gymnasium", "mujoco", "numpy"])
