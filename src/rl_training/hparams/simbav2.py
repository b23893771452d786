"""Settings of SimBaV2."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    AlphaLearningRate,
    HalfTargetEntropy,
    InitialTemperature,
    NoiseColor,
    NumCritics,
    PolicyDelay,
    Tau,
    Temperature,
    UpdatesPerStep,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_replay
from rl_training.hparams.fields import (
    ActorLearningRate,
    AdamEps,
    AtLeastTwo,
    BatchSize,
    BufferCapacity,
    Discount,
    Fixed,
    Fraction,
    ImportanceEnd,
    ImportanceStart,
    LearningRate,
    LearningStarts,
    MaxGradNormOrNull,
    MemoryKind,
    NStep,
    Positive,
    Prioritized,
    PriorityExponent,
    Search,
    Sizes,
    TrainFrequency,
)


def check_blocks(hidden_sizes: Sizes, critic_hidden_sizes: Sizes) -> None:
    for name, sizes in (("hidden_sizes", hidden_sizes), ("critic_hidden_sizes", critic_hidden_sizes)):
        if len(set(sizes)) != 1:
            raise ValueError(f"{name} must have one or more blocks of the same size, got {list(sizes)}")


class SimBaV2HParams(HParams):
    """SimBaV2: SAC with hyperspherical networks and categorical critics (Lee et al. 2025)."""

    checks: ClassVar = (check_replay, check_blocks)

    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: LearningStarts = 5_000
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 2.0
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0

    hidden_sizes: Annotated[Sizes, Search(choices=((64,), (128,), (128, 128)))] = Field(
        (128,), description="units of the actor's blocks, all alike; inside, a block has four times as many"
    )
    critic_hidden_sizes: Annotated[Sizes, Search(choices=((128, 128), (256, 256), (512, 512)))] = Field(
        (512, 512), description="units of each critic's blocks, all alike; inside, a block has four times as many"
    )
    num_critics: NumCritics = 2
    num_atoms: AtLeastTwo = Field(101, description="atoms of the distribution of returns, both ends among them")
    value_limit: Annotated[Positive, Fixed("the saved critics have learned probabilities of atoms in this range")] = (
        Field(5.0, description="end of the atoms, which span ± this, and largest return after scaling of the rewards")
    )

    learning_rate: LearningRate = 1e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "linear", description="schedule of the learning rates; linear: decay to final_rate_share of them over the run"
    )
    final_rate_share: Fraction = Field(0.5, description="share of the learning rates at the end of a linear schedule")
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.995
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 0.01
    target_entropy: HalfTargetEntropy = "auto"
