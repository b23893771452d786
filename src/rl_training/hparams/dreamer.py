"""Settings of Dreamer."""

from pydantic import Field, model_validator

from rl_training.hparams.base import Count, CountOrZero, Fraction, NonNegative, Positive, ReplayHParams, Switch


class DreamerHParams(ReplayHParams):
    """DreamerV3 (Hafner et al. 2025)."""

    buffer_capacity: Count = Field(100_000, description="observations the replay buffer holds, of all envs together")
    batch_size: Count = Field(16, description="sequences per update")
    sequence_length: Count = Field(64, description="observations of a sequence; it may cross the ends of episodes")
    learning_starts: CountOrZero = Field(1_000, description="env steps before updates begin to be owed")
    train_ratio: Positive = Field(
        256.0, description="observations that are replayed per env step: an update replays batch_size * sequence_length"
    )
    gamma: Fraction = Field(0.997, description="discount per env step")
    return_lambda: Fraction = Field(0.95, description="how far returns look beyond one step: 0 = one reward, 1 = all")
    imagination_horizon: Count = Field(15, description="steps imagined from every replayed observation")

    world_model_learning_rate: Positive = Field(1e-4, description="Adam step size of the world model")
    actor_learning_rate: Positive = Field(3e-5, description="that of the actor")
    critic_learning_rate: Positive = Field(3e-5, description="that of the critic")
    world_model_max_grad_norm: Positive = Field(1_000.0, description="the world model's gradient is clipped to this")
    max_grad_norm: Positive = Field(100.0, description="those of actor and critic are clipped to this")
    adam_eps: Positive = Field(1e-8, description="Adam epsilon")

    dynamics_coef: NonNegative = Field(1.0, description="weight of the KL that teaches the prior to predict")
    representation_coef: NonNegative = Field(0.1, description="weight of the KL that makes the posterior predictable")
    free_nats: NonNegative = Field(1.0, description="a KL below this, in nats, teaches nothing")
    unimix: Fraction = Field(0.01, description="share of the uniform distribution in latents and in the policy")
    entropy_coef: NonNegative = Field(3e-4, description="weight of the policy's entropy, which keeps it exploring")
    return_rate: Fraction = Field(
        0.01, description="share of an update in the running 5 to 95 percentile range by which returns are scaled down"
    )
    slow_critic_rate: Fraction = Field(0.02, description="share of the way that the slow copy moves to the critic")
    slow_critic_coef: NonNegative = Field(1.0, description="weight of the critic's distance to its slow copy")
    replay_critic_coef: NonNegative = Field(0.3, description="weight of the critic's loss on what was replayed")

    deter_size: Count = Field(2_048, description="numbers of the recurrent state")
    num_blocks: Count = Field(8, description="blocks of the recurrent weights; deter_size must be a multiple")
    num_latents: Count = Field(32, description="categorical variables of the stochastic state")
    num_classes: Count = Field(16, description="classes of each")
    hidden_size: Count = Field(256, description="units of every hidden layer")
    cnn_depth: Count = Field(16, description="a unit of convolution channels: the layers have 2, 3, 4, 4, ... of it")
    num_bins: Count = Field(255, description="bins of rewards and values; odd, so that one of them is 0")
    symlog_limit: Positive = Field(20.0, description="the bins lie between ± symexp of this: e ** 20 - 1 is 5e8")
    sampled_evaluation: Switch = Field(
        False, description="evaluate and predict with samples, as in the published scores, instead of the likeliest"
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> "DreamerHParams":
        if self.deter_size % self.num_blocks:
            raise ValueError(f"deter_size must be a multiple of num_blocks, {self.num_blocks}, got {self.deter_size}")
        if self.num_bins < 3 or self.num_bins % 2 == 0:
            raise ValueError(f"num_bins must be odd and at least 3, got {self.num_bins}")
        if self.sequence_length < 2:
            raise ValueError(
                "sequence_length must be at least 2, because a step leads from one observation to the next"
            )
        return self

    def check_run(self, num_envs: int, *, has_env: bool = True) -> None:
        if self.buffer_capacity // num_envs < self.sequence_length:
            raise ValueError(
                f"buffer_capacity must hold a sequence of each env, {self.sequence_length} * {num_envs} = "
                f"{self.sequence_length * num_envs} observations, got {self.buffer_capacity}"
            )
