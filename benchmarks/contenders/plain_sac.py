"""SAC as one plain eager PyTorch loop, in the style of single-file implementations such as CleanRL's.

Without a library, what remains is the cost of eager PyTorch, numpy and the environment.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from harness import Learner, Setting, TrainingEnvs, box, main
from plain_dqn import Buffer, mlp
from torch import Tensor, nn


class PlainLearner(Learner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        env = training.envs[0]
        torch.set_num_threads(setting.threads)
        np.random.seed(setting.seed)
        torch.manual_seed(setting.seed)
        env.action_space.seed(setting.seed)
        self.setting, self.env, self.updates, self.device = setting, env, 0, torch.device(setting.device)
        space, hparams = box(env.action_space), setting.hparams
        obs_shape, action_shape = box(env.observation_space).shape, space.shape
        obs_size, self.action_size, hidden = (
            int(np.prod(obs_shape)),
            int(np.prod(action_shape)),
            hparams["hidden_sizes"],
        )
        self.actor = mlp([obs_size, *hidden, 2 * self.action_size]).to(self.device)
        self.critics = nn.ModuleList(mlp([obs_size + self.action_size, *hidden, 1]) for _ in range(2)).to(self.device)
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
        parts = {"actor": self.actor.parameters(), "critics": self.critics.parameters(), "alpha": [self.log_alpha]}
        self.optimizers = {name: torch.optim.Adam(part, lr=hparams["learning_rate"]) for name, part in parts.items()}
        self.buffer = Buffer(hparams["buffer_capacity"], obs_shape, action_shape, np.float32)
        self.low, self.scale = space.low, (space.high - space.low) / 2

    def learn(self) -> None:
        hparams = self.setting.hparams
        obs, _ = self.env.reset(seed=self.setting.seed)
        for step in range(self.setting.steps):
            if step < hparams["learning_starts"]:
                action = np.random.uniform(-1.0, 1.0, self.env.action_space.shape).astype(np.float32)
            else:
                with torch.no_grad():
                    action = self.draw(self._tensor(obs[None]))[0][0].cpu().numpy()
            next_obs, reward, terminated, truncated, _ = self.env.step(self._to_env(action))
            self.buffer.add(obs, action, float(reward), next_obs, terminated)
            obs = self.env.reset()[0] if terminated or truncated else next_obs
            if step >= hparams["learning_starts"]:
                for _ in range(round(hparams["gradient_updates_per_step"])):
                    self.update()

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in [-1, 1] and their log-probabilities."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20.0, 2.0).exp())
        before = normal.rsample()
        actions = before.tanh()
        log_probs: Tensor = normal.log_prob(before)
        return actions, (log_probs - (1.0 - actions.square() + 1e-6).log()).sum(1)

    def update(self) -> None:
        hparams = self.setting.hparams
        obs, actions, rewards, next_obs, terminated = (
            values.to(self.device) for values in self.buffer.sample(hparams["batch_size"])
        )
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, next_log_probs = self.draw(next_obs)
            next_values = self._values(self.target_critics, next_obs, next_actions).amin(0) - alpha * next_log_probs
            td_target = rewards + hparams["gamma"] * (1 - terminated) * next_values
        values = self._values(self.critics, obs, actions)
        self._descend("critics", F.mse_loss(values[0], td_target) + F.mse_loss(values[1], td_target))
        drawn, log_probs = self.draw(obs)
        self._descend("actor", (alpha * log_probs - self._values(self.critics, obs, drawn).amin(0)).mean())
        self._descend("alpha", -(self.log_alpha * (log_probs.detach() - self.action_size)).mean())
        with torch.no_grad():
            for target, value in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(value, hparams["tau"])
        self.updates += 1

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            mean, _ = self.actor(self._tensor(obs)).chunk(2, dim=1)
            return self._to_env(mean.tanh().cpu().numpy())

    def num_updates(self) -> int:
        return self.updates

    def _values(self, critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat((obs, actions), 1)
        return torch.stack([critic(inputs).squeeze(1) for critic in critics])

    def _descend(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.as_tensor(obs, dtype=torch.float32, device=self.device)

    def _to_env(self, actions: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = self.low + (actions + 1.0) * self.scale
        return scaled


if __name__ == "__main__":
    main(PlainLearner, ["torch", "gymnasium", "mujoco", "numpy"])
