"""Settings of Dreamer."""

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from rl_training.hparams.base import HParams
from rl_training.hparams.fields import (
    FIXED_BUFFER,
    ActorLearningRate,
    Count,
    CountOrZero,
    Discount,
    EntropyCoef,
    Fixed,
    Fraction,
    MemoryKind,
    NonNegative,
    Positive,
    Search,
    StepsBeforeLearning,
    Switch,
)


class NetworkSize(NamedTuple):
    """The sizes of the networks that `size` determines."""

    deter_size: int
    hidden_size: int
    num_classes: int
    cnn_depth: int


SizeName = Literal["1m", "12m", "25m", "50m"]
SIZES: dict[SizeName, NetworkSize] = {
    "1m": NetworkSize(512, 64, 4, 4),
    "12m": NetworkSize(2_048, 256, 16, 16),
    "25m": NetworkSize(3_072, 384, 24, 24),
    "50m": NetworkSize(4_096, 512, 32, 32),
}


def check_sizes(size: SizeName, deter_size: int | None, num_blocks: int, num_bins: int, sequence_length: int) -> None:
    deter_size = deter_size or SIZES[size].deter_size
    if deter_size % num_blocks:
        raise ValueError(f"deter_size must be a multiple of num_blocks, {num_blocks}, got {deter_size}")
    if num_bins < 3 or num_bins % 2 == 0:
        raise ValueError(f"num_bins must be odd and at least 3, got {num_bins}")
    if sequence_length < 2:
        raise ValueError("sequence_length must be at least 2, because a step leads from one observation to the next")


def check_sequences(buffer_capacity: int, sequence_length: int, num_envs: int) -> None:
    if buffer_capacity // num_envs < sequence_length:
        raise ValueError(
            f"buffer_capacity must hold a sequence of each env, {sequence_length} * {num_envs} = "
            f"{sequence_length * num_envs} observations, got {buffer_capacity}"
        )


class DreamerHParams(HParams):
    """DreamerV3 (Hafner et al. 2025)."""

    checks: ClassVar = (check_sizes,)
    run_checks: ClassVar = (check_sequences,)

    buffer_capacity: Annotated[Count, FIXED_BUFFER] = Field(
        100_000, description="capacity of the replay buffer in observations, of all envs together"
    )
    memory: MemoryKind = "ram"
    batch_size: Count = Field(16, description="sequences per update")
    sequence_length: Count = Field(64, description="observations of a sequence, which may cross the ends of episodes")
    learning_starts: StepsBeforeLearning = 1_000
    train_ratio: Positive = Field(
        256.0, description="observations replayed per env step; an update replays batch_size * sequence_length"
    )

    size: SizeName = Field("12m", description="size of the networks, named by the paper's number of parameters")
    deter_size: Count | None = Field(None, description="size of the recurrent state; null: by size")
    num_blocks: Count = Field(8, description="blocks of the recurrent weights; must divide deter_size")
    num_latents: Count = Field(32, description="categorical variables of the stochastic state")
    num_classes: Count | None = Field(None, description="classes of each categorical variable; null: by size")
    hidden_size: Count | None = Field(None, description="units of every hidden layer; null: by size")
    cnn_depth: Count | None = Field(
        None,
        description="unit of convolution channels: the layers have 2, 3, 4, 4, ... times this; null: by size",
    )
    num_bins: Count = Field(255, description="bins of rewards and values; odd, so that one of them is 0")
    symlog_limit: Annotated[Positive, Fixed("the saved values are probabilities of these bins")] = Field(
        20.0, description="limit of the bins, ± symexp of this: e ** 20 - 1 is 5e8"
    )
    unimix: Fraction = Field(0.01, description="share of the uniform distribution in latents and in the policy")

    learning_rate: Annotated[Positive, Search(1e-5, 1e-3, log=True)] = Field(
        4e-5, description="learning rate of LaProp"
    )
    actor_learning_rate: ActorLearningRate = None
    critic_learning_rate: Positive | None = Field(
        None, description="learning rate of the critic; null: same as learning_rate"
    )
    warmup_updates: CountOrZero = Field(1_000, description="updates over which the learning rates grow from 0")
    adaptive_clip: Positive = Field(
        0.3, description="share of the norm of a weight tensor to which the norm of its gradient is limited"
    )

    gamma: Discount = 0.997
    return_lambda: Fraction = Field(0.95, description="lambda of the returns: 0 = one reward, 1 = all rewards")
    imagination_horizon: Count = Field(15, description="steps imagined from every replayed observation")
    dynamics_coef: NonNegative = Field(1.0, description="weight of the KL divergence that trains the prior to predict")
    representation_coef: NonNegative = Field(
        0.1, description="weight of the KL divergence that makes the posterior predictable"
    )
    free_nats: NonNegative = Field(1.0, description="KL divergence, in nats, below which nothing is learned from it")
    entropy_coef: EntropyCoef = 3e-4
    return_rate: Fraction = Field(
        0.01, description="share of an update in the running 5 to 95 percentile range by which returns are scaled down"
    )
    slow_critic_rate: Fraction = Field(
        0.02, description="share of the distance to the critic that its slow copy moves per update"
    )
    slow_critic_coef: NonNegative = Field(1.0, description="weight of the critic's distance to its slow copy")
    replay_critic_coef: NonNegative = Field(0.3, description="weight of the critic's loss on replayed sequences")
    replay_critic_trains_world_model: Switch = Field(
        True, description="gradient of the critic's loss on replayed sequences in the world model, too"
    )
    sampled_evaluation: Switch = Field(
        False,
        description="evaluation and prediction with sampled actions, as in the published scores, instead of the most "
        "likely ones",
    )


def network_size(hparams: DreamerHParams) -> NetworkSize:
    """Return the sizes that `size` determines, with those that are set in their place."""
    own = {name: getattr(hparams, name) for name in NetworkSize._fields}
    return SIZES[hparams.size]._replace(**{name: value for name, value in own.items() if value is not None})
