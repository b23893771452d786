"""DQN of sbx-rl (stable-baselines3 in JAX)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from harness import Setting, TrainingEnvs, main
from sb3_interface import ModelLearner, dqn_arguments
from sbx import DQN
from sbx.dqn import policies


def q_network(hidden_sizes: tuple[int, ...]) -> type[nn.Module]:
    """Return sbx's Q-network with layers of different widths: its own only reads the first width."""

    class QNetwork(nn.Module):  # type: ignore[misc]
        n_actions: int
        n_units: int
        activation_fn: object

        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
            x = policies.Flatten()(x)
            for width in hidden_sizes:
                x = nn.relu(nn.Dense(width)(x))
            return nn.Dense(self.n_actions)(x)

    return QNetwork


class SBXLearner(ModelLearner):
    def __init__(self, setting: Setting, training: TrainingEnvs) -> None:
        super().__init__(setting)
        hparams = setting.hparams
        policies.QNetwork = q_network(tuple(hparams["hidden_sizes"]))
        self.model = DQN(
            "MlpPolicy",
            training.envs[0],
            policy_kwargs={
                "optimizer_class": lambda learning_rate: optax.chain(
                    optax.clip_by_global_norm(hparams["max_grad_norm"]), optax.adam(learning_rate)
                )
            },
            **dqn_arguments(setting),
        )


if __name__ == "__main__":
    main(SBXLearner, ["sbx-rl", "stable-baselines3", "jax", "flax", "optax", "gymnasium", "numpy"])
