"""Settings of TQC."""

from typing import Annotated, ClassVar

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    ActorHiddenSizes,
    AlphaLearningRate,
    CriticHiddenSizes,
    CriticLayerNorm,
    InitialTemperature,
    NoiseColor,
    NumCritics,
    ObservationClip,
    PolicyDelay,
    RunningNormalization,
    TargetEntropy,
    Tau,
    Temperature,
    UpdatesPerStep,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import (
    check_critic_network,
    check_goal_rewards,
    check_hindsight,
    check_network,
    check_replay,
    check_target_range,
)
from rl_training.hparams.fields import (
    ActorLearningRate,
    AdamEps,
    BatchSize,
    BufferCapacity,
    ClipTargets,
    Count,
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
    NetworkKind,
    NStep,
    Prioritized,
    PriorityExponent,
    Search,
    TrainFrequency,
    WeightDecay,
)


def check_dropped_quantiles(num_quantiles: int, dropped_quantiles: int) -> None:
    if dropped_quantiles >= num_quantiles:
        raise ValueError(f"dropped_quantiles must be below num_quantiles, {num_quantiles}, got {dropped_quantiles}")


class TQCHParams(HParams):
    """Truncated quantile critics (Kuznetsov et al. 2020)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_network,
        check_critic_network,
        check_target_range,
        check_dropped_quantiles,
    )
    run_checks: ClassVar = (check_goal_rewards,)

    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: LearningStarts = 1_000
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 1.0
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0
    her: HindsightGoals = "none"
    her_ratio: HindsightRatio = 4.0
    normalize_observations: RunningNormalization = "auto"
    observation_clip: ObservationClip = "auto"

    network: NetworkKind = "mlp"
    hidden_sizes: ActorHiddenSizes = (256, 256)
    critic_hidden_sizes: Annotated[CriticHiddenSizes, Search(choices=((256, 256), (512, 512), (512, 512, 512)))] = (
        512,
        512,
        512,
    )
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    tau: Tau = 0.005
    clip_targets: ClipTargets = False
    policy_delay: PolicyDelay = 1
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"
    num_critics: NumCritics = 5
    num_quantiles: Count = Field(25, description="quantiles of the return's distribution per critic")
    dropped_quantiles: Annotated[CountOrZero, Search(choices=(0, 1, 2, 5))] = Field(
        2,
        description="largest quantiles per critic that the target leaves out: the more, the lower the values; 0: none",
    )
