"""Settings of the DQN family."""

from typing import Literal

from pydantic import Field

from rl_training.hparams.base import Count, Fraction, HiddenSizes, OffPolicyHParams, Positive, Switch


class DQNHParams(OffPolicyHParams):
    """Deep Q-learning (Mnih et al. 2015)."""

    target_update_interval: Count = Field(50, description="gradient steps between copies into the target network")
    learning_rate: Positive = Field(1e-3, description="Adam step size; at the start if it falls")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "linear", description="linear: the step size falls to 0 over the run"
    )
    adam_eps: Positive = Field(1e-8, description="Adam epsilon; 1.5e-4 is usual for Atari")
    max_grad_norm: Positive = Field(10.0, description="the gradient's global norm is clipped to this")
    loss: Literal["huber", "mse"] = Field("huber", description="error function of the TD error (Huber: delta 1)")
    gamma: Fraction = Field(0.99, description="discount per env step")
    epsilon_start: Fraction = Field(
        1.0, description="share of random actions where the decay begins, step 0; until learning_starts all are random"
    )
    epsilon_end: Fraction = Field(0.05, description="share of random actions after the decay")
    exploration_fraction: Fraction = Field(0.1, description="part of total_timesteps over which epsilon decays")
    double_q: Switch = Field(False, description="the online network picks the target's action (Double DQN)")
    layer_norm: Switch = Field(True, description="normalise each hidden layer: Q-values diverge far less")
    hidden_sizes: HiddenSizes = Field((256, 256), description="units of the hidden layers after the encoder")

    def epsilon(self, step: int, total_timesteps: int) -> float:
        """Give the share of random actions at `step`: linear decay over the first part of the run."""
        decay_steps = self.exploration_fraction * total_timesteps
        progress = 1.0 if decay_steps <= step else step / decay_steps
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)
