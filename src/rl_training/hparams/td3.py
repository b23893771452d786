"""Settings of TD3."""

from typing import Annotated, ClassVar

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    CriticLayerNorm,
    NoiseColor,
    ObservationClip,
    OwnCriticHiddenSizes,
    RunningNormalization,
    TargetNoise,
    TargetNoiseClip,
    TargetsDelay,
    Tau,
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
    Discount,
    HiddenSizes,
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
    NonNegative,
    NStep,
    Prioritized,
    PriorityExponent,
    Search,
    TrainFrequency,
    WeightDecay,
)


class TD3HParams(HParams):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

    checks: ClassVar = (check_replay, check_hindsight, check_network, check_critic_network, check_target_range)
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
    hidden_sizes: HiddenSizes = (256, 256)
    critic_hidden_sizes: OwnCriticHiddenSizes = None
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 1e-3
    actor_learning_rate: ActorLearningRate = 3e-4
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    tau: Tau = 0.005
    clip_targets: ClipTargets = False
    policy_delay: TargetsDelay = 2
    noise_color: NoiseColor = 0.0
    exploration_noise: Annotated[NonNegative, Search(0.02, 0.5, log=True)] = Field(
        0.1, description="standard deviation of the exploration noise on actions, which span [-1, 1]"
    )
    target_noise: TargetNoise = 0.2
    target_noise_clip: TargetNoiseClip = 0.5
