"""Settings of CrossQ."""

from typing import Annotated, ClassVar

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    ActorHiddenSizes,
    AlphaLearningRate,
    CriticHiddenSizes,
    InitialTemperature,
    NoiseColor,
    PolicyDelay,
    TargetEntropy,
    Temperature,
    UpdatesPerStep,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_goal_rewards, check_hindsight, check_replay, check_target_range
from rl_training.hparams.fields import (
    ActorLearningRate,
    AdamEps,
    BatchSize,
    BufferCapacity,
    ClipTargets,
    CountOrZero,
    Discount,
    HindsightGoals,
    HindsightRatio,
    ImportanceEnd,
    ImportanceStart,
    LearningRate,
    LearningStarts,
    LinearSchedule,
    MaxGradNormOrNull,
    MemoryKind,
    NStep,
    OpenFraction,
    Prioritized,
    PriorityExponent,
    Search,
    TrainFrequency,
)


class CrossQHParams(HParams):
    """CrossQ (Bhatt et al. 2024)."""

    checks: ClassVar = (check_replay, check_hindsight, check_target_range)
    run_checks: ClassVar = (check_goal_rewards,)

    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: LearningStarts = 5_000
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 1.0
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0
    her: HindsightGoals = "none"
    her_ratio: HindsightRatio = 4.0

    hidden_sizes: ActorHiddenSizes = (256, 256)
    critic_hidden_sizes: Annotated[CriticHiddenSizes, Search(choices=((512, 512), (1024, 1024), (2048, 2048)))] = (
        2048,
        2048,
    )
    norm_rate: OpenFraction = Field(
        0.01, description="share of the distance to the moments of a batch that the running moments move per update"
    )
    norm_warmup: CountOrZero = Field(
        100_000,
        description="updates of a network before its normalization is corrected by the running moments; until then it "
        "is plain batch normalization",
    )

    learning_rate: LearningRate = 1e-3
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_beta1: OpenFraction = Field(
        0.5, description="decay of Adam's mean of the gradients of actor and critics; the temperature's is 0.9"
    )
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    clip_targets: ClipTargets = False
    policy_delay: PolicyDelay = 3
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"
