"""DQN of sbx-rl (stable-baselines3 in JAX)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import torch
from harness import CountedSteps, Learner, Setting, main
from sbx import DQN
from sbx.dqn import policies


def q_network(hidden_sizes: tuple[int, ...]) -> type[nn.Module]:
    """Give sbx's Q-network with layers of different widths: its own reads the first width only."""

    class QNetwork(nn.Module):
        n_actions: int
        n_units: int
        activation_fn: object

        @nn.compact
        def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
            x = policies.Flatten()(x)
            for width in hidden_sizes:
                x = nn.relu(nn.Dense(width)(x))
            return nn.Dense(self.n_actions)(x)

    return QNetwork


class SBXLearner(Learner):
    def __init__(self, setting: Setting, env: CountedSteps) -> None:
        torch.set_num_threads(setting.threads)  # the replay buffer is stable-baselines3's
        hparams = setting.hparams
        self.steps = setting.steps
        policies.QNetwork = q_network(tuple(hparams["hidden_sizes"]))
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
            target_update_interval=hparams["target_update_interval"],
            exploration_initial_eps=hparams["epsilon_start"],
            exploration_final_eps=hparams["epsilon_end"],
            exploration_fraction=hparams["exploration_fraction"],
            policy_kwargs={
                "optimizer_class": lambda learning_rate: optax.chain(
                    optax.clip_by_global_norm(hparams["max_grad_norm"]), optax.adam(learning_rate)
                )
            },
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
    main(SBXLearner, ["sbx-rl", "stable-baselines3", "jax", "flax", "optax", "gymnasium", "numpy"])
