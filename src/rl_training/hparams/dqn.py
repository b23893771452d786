"""Settings of the DQN family."""

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field, model_validator

from rl_training.hparams.base import (
    WHOLE,
    Count,
    CountOrZero,
    Fraction,
    HiddenSizes,
    HParams,
    Positive,
    Switch,
)


class DQNHParams(HParams):
    """Deep Q-learning (Mnih et al. 2015)."""

    buffer_capacity: Count = Field(100_000, description="transitions the replay buffer holds")
    batch_size: Count = Field(128, description="transitions per gradient step")
    learning_starts: CountOrZero = Field(1_000, description="env steps of random actions before the first update")
    train_frequency: Count = Field(4, description="env steps between rounds of updates")
    gradient_steps: Annotated[int, Ge(-1), WHOLE] = Field(
        -1, description="updates per round; -1 = as many as env steps since the last round"
    )
    target_update_interval: Count = Field(250, description="gradient steps between copies into the target network")
    learning_rate: Positive = Field(6.3e-4, description="Adam step size")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: the step size falls to 0 over the run"
    )
    adam_eps: Positive = Field(1e-8, description="Adam epsilon; 1.5e-4 is usual for Atari")
    max_grad_norm: Positive = Field(10.0, description="the gradient's global norm is clipped to this")
    loss: Literal["huber", "mse"] = Field("huber", description="error function of the TD error (Huber: delta 1)")
    gamma: Fraction = Field(0.99, description="discount per env step")
    epsilon_start: Fraction = Field(1.0, description="share of random actions at the first step")
    epsilon_end: Fraction = Field(0.05, description="share of random actions after the decay")
    exploration_fraction: Fraction = Field(0.1, description="part of total_timesteps over which epsilon decays")
    double_q: Switch = Field(False, description="the online network picks the target's action (Double DQN)")
    hidden_sizes: HiddenSizes = Field((256, 256), description="units of the hidden layers after the encoder")

    @model_validator(mode="after")
    def _check_gradient_steps(self) -> "DQNHParams":
        if self.gradient_steps == 0:
            raise ValueError("gradient_steps must be -1 or >= 1, got 0")
        return self

    def updates_until(self, step: int) -> int:
        """Count the updates owed by the time `step` env steps were taken: a function of the step alone.

        The difference between two steps is what is due, exact for any number of envs and after any resume.
        """
        per_round = self.train_frequency if self.gradient_steps == -1 else self.gradient_steps
        return max(0, step - self.learning_starts) // self.train_frequency * per_round

    def epsilon(self, step: int, total_timesteps: int) -> float:
        """Give the share of random actions at `step`: linear decay over the first part of the run."""
        decay_steps = self.exploration_fraction * total_timesteps
        progress = 1.0 if decay_steps <= step else step / decay_steps
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)
