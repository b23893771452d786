"""Settings of the off-policy actor-critics: SAC, TD3, REDQ, and what model-based algorithms build on."""

from typing import Literal

from pydantic import Field, model_validator

from rl_training.hparams.base import (
    NETWORK,
    Count,
    CountOrZero,
    Fraction,
    HiddenSizes,
    HParams,
    NetworkKind,
    NonNegative,
    OffPolicyHParams,
    Positive,
    Real,
    Switch,
    check_network,
)


class ActorCriticHParams(HParams):
    """How critics of actions in [-1, 1], their slow copies and an actor learn, wherever transitions come from."""

    batch_size: Count = Field(256, description="transitions per gradient step")
    gamma: Fraction = Field(0.99, description="discount per env step")
    policy_delay: Count = Field(1, description="updates of the critics per update of the actor")
    tau: Fraction = Field(0.005, description="share of the way that the slow copies move to the critics at an update")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: the step sizes fall to 0 over the run"
    )
    adam_eps: Positive = Field(1e-8, description="Adam epsilon")
    max_grad_norm: Positive | None = Field(None, description="gradients' norms are clipped to this; null: they are not")
    layer_norm: Switch = Field(False, description="normalise each hidden layer of the critics: values diverge far less")
    network: NetworkKind = NETWORK
    hidden_sizes: HiddenSizes = Field((256, 256), description="units of the hidden layers after the encoder")

    @model_validator(mode="after")
    def _check_network(self) -> "ActorCriticHParams":
        check_network(self.network, self.hidden_sizes)
        return self


class OnlineHParams(ActorCriticHParams, OffPolicyHParams):
    """What learning in an environment adds: how much is remembered, and when updates are due."""

    buffer_capacity: Count = Field(1_000_000, description="transitions the replay buffer holds")
    learning_starts: CountOrZero = Field(
        1_000, description="env steps of random actions before updates begin to be owed"
    )
    train_frequency: Count = Field(1, description="env steps between rounds of updates")
    gradient_updates_per_step: Positive = Field(1.0, description="updates of the critics per env step")


class SoftHParams(ActorCriticHParams):
    """Settings of actors that are rewarded for their entropy."""

    alpha: Positive | Literal["auto"] = Field(
        "auto", description="temperature, the entropy's weight; auto: learnt, so that the entropy meets target_entropy"
    )
    target_entropy: Real | Literal["auto"] = Field(
        "auto", description="in nats, of actions in [-1, 1]; auto: minus the number of action dimensions"
    )


class SACHParams(SoftHParams, OnlineHParams):
    """Soft actor-critic (Haarnoja et al. 2018)."""

    learning_rate: Positive = Field(3e-4, description="Adam step size")
    actor_learning_rate: Positive | None = Field(None, description="that of the actor; null: learning_rate")
    alpha_learning_rate: Positive | None = Field(None, description="that of the temperature; null: learning_rate")


class REDQHParams(SACHParams):
    """Randomized ensembled double Q-learning (Chen et al. 2021)."""

    learning_starts: CountOrZero = Field(
        5_000, description="env steps of random actions before updates begin to be owed"
    )
    gradient_updates_per_step: Positive = Field(20.0, description="updates of the critics per env step")
    policy_delay: Count = Field(20, description="updates of the critics per update of the actor")
    num_critics: Count = Field(10, description="critics in the ensemble")
    subset_size: Count = Field(2, description="critics, drawn anew for each update, whose least value is the target")

    @model_validator(mode="after")
    def _check_subset(self) -> "REDQHParams":
        if self.subset_size > self.num_critics:
            raise ValueError(f"subset_size must be at most num_critics, {self.num_critics}, got {self.subset_size}")
        return self


class TD3HParams(OnlineHParams):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

    policy_delay: Count = Field(2, description="updates of the critics per update of the actor and the slow copies")
    learning_rate: Positive = Field(3e-4, description="Adam step size")
    actor_learning_rate: Positive | None = Field(None, description="that of the actor; null: learning_rate")
    exploration_noise: NonNegative = Field(0.1, description="deviation of the noise on actions, which span [-1, 1]")
    target_noise: NonNegative = Field(0.2, description="deviation of the noise on the target's actions")
    target_noise_clip: NonNegative = Field(0.5, description="the largest noise on the target's actions")
