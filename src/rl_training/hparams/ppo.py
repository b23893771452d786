"""Settings of PPO."""

from typing import Literal

from pydantic import Field, model_validator

from rl_training.hparams.base import (
    NETWORK,
    Count,
    Fraction,
    HiddenSizes,
    HParams,
    NetworkKind,
    NonNegative,
    Positive,
    Real,
    Switch,
    check_network,
)


class PPOHParams(HParams):
    """Proximal policy optimization (Schulman et al. 2017)."""

    num_steps: Count = Field(
        2_048, description="steps per env between updates; a rollout has num_steps * num_envs rows"
    )
    update_epochs: Count = Field(10, description="passes over each rollout")
    minibatch_size: Count = Field(64, description="rows per gradient step; must divide the rollout")
    learning_rate: Positive = Field(3e-4, description="Adam step size; at the start if it falls")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "linear", description="linear: the step size falls to 0 over the run"
    )
    adam_eps: Positive = Field(1e-5, description="Adam epsilon")
    max_grad_norm: Positive = Field(0.5, description="the gradient's global norm is clipped to this")
    gamma: Fraction = Field(0.99, description="discount per env step")
    gae_lambda: Fraction = Field(0.95, description="how far advantages look beyond one step: 0 = TD error, 1 = return")
    clip_coef: Positive = Field(
        0.2, description="probability ratios beyond 1 ± this earn nothing; at the start if it falls"
    )
    clip_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: clip_coef falls to 0 over the run"
    )
    value_clip: Switch = Field(
        False, description="clip the value's step by clip_coef, too; only sensible with normalised returns"
    )
    vf_coef: NonNegative = Field(0.5, description="weight of the value's mean squared error")
    ent_coef: NonNegative = Field(0.0, description="weight of the policy's entropy, which keeps it exploring")
    target_kl: Positive | None = Field(
        None, description="stop an update when the policy has moved 1.5 times this far (approximate KL divergence)"
    )
    normalize_advantages: Switch = Field(True, description="zero mean and unit deviation in each minibatch")
    recompute_advantages: Switch = Field(False, description="anew before each epoch, from the values learnt so far")
    normalize: Literal["none", "obs", "returns", "both"] = Field(
        "none",
        description="by running statistics, kept with the policy: observations, rewards by the return's deviation",
    )
    network: NetworkKind = NETWORK
    hidden_sizes: HiddenSizes = Field((64, 64), description="units of the hidden layers after the encoder")
    activation: Literal["tanh", "relu"] = Field("tanh", description="of the hidden layers after the encoder")
    orthogonal_init: Switch = Field(True, description="orthogonal weights, small at the policy's output; zero biases")
    shared_trunk: Literal["auto", "yes", "no"] = Field(
        "auto", description="one encoder and hidden layers for policy and value; auto: when there is an image"
    )
    log_std_init: Real = Field(0.0, description="log of the deviation of Box actions at the start; they span [-1, 1]")
    sampled_evaluation: Switch = Field(
        False, description="evaluate and predict with sampled actions, as is usual for Atari, instead of the likeliest"
    )

    @model_validator(mode="after")
    def _check_network(self) -> "PPOHParams":
        check_network(self.network, self.hidden_sizes)
        return self

    def check_run(self, num_envs: int, *, has_env: bool = True) -> None:
        rows = self.num_steps * num_envs
        if self.normalize_advantages and min(rows, self.minibatch_size) < 2:
            raise ValueError(
                f"normalize_advantages needs minibatches of at least 2 rows, got minibatch_size {self.minibatch_size} "
                f"of {rows}"
            )
        if rows % self.minibatch_size:
            divisors = [size for size in range(2 if self.normalize_advantages else 1, rows + 1) if rows % size == 0]
            closest = min(divisors, key=lambda size: abs(size - self.minibatch_size))
            raise ValueError(
                f"minibatch_size must divide the rollout of num_steps * num_envs = {self.num_steps} * {num_envs} = "
                f"{rows} rows, got {self.minibatch_size}; {closest} would do"
            )
