"""Settings of IQN."""

from typing import ClassVar

from pydantic import Field

from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_goal_rewards
from rl_training.hparams.fields import (
    AtLeastTwo,
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
    MemoryKind,
    NetworkKind,
    NStep,
    Prioritized,
    PriorityExponent,
    TrainFrequency,
    WeightDecay,
)
from rl_training.hparams.q_fields import (
    Q_CHECKS,
    ActWithTarget,
    AnnealUpdates,
    AugmentationKind,
    DoubleQ,
    Dueling,
    EmbeddingDim,
    EncoderWidth,
    EpsilonEnd,
    EpsilonStart,
    EvaluationEpsilon,
    ExplorationFraction,
    GammaStart,
    GradientSteps,
    ImageEncoder,
    Kappa,
    Munchausen,
    MunchausenAlpha,
    MunchausenClip,
    MunchausenTau,
    Noisy,
    NoisySigma,
    NStepStart,
    QAdamEps,
    QLayerNorm,
    QMaxGradNorm,
    ResetInterval,
    ResetShare,
    TargetTau,
    TargetUpdateInterval,
    check_munchausen,
)


class IQNHParams(HParams):
    """Implicit quantile networks (Dabney et al. 2018)."""

    checks: ClassVar = (*Q_CHECKS, check_munchausen)
    run_checks: ClassVar = (check_goal_rewards,)

    buffer_capacity: BufferCapacity = 100_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 128
    learning_starts: LearningStarts = 1_000
    train_frequency: TrainFrequency = 4
    gradient_steps: GradientSteps = -1
    n_step: NStep = 1
    n_step_start: NStepStart = None
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0
    her: HindsightGoals = "none"
    her_ratio: HindsightRatio = 4.0
    augmentation: AugmentationKind = "none"

    encoder: ImageEncoder = "auto"
    encoder_width: EncoderWidth = 1
    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: QLayerNorm = True
    dueling: Dueling = False
    noisy: Noisy = False
    noisy_sigma: NoisySigma = 0.5
    embedding_dim: EmbeddingDim = 64

    learning_rate: LearningRate = 1e-3
    learning_rate_schedule: LinearSchedule = "linear"
    adam_eps: QAdamEps = 1e-8
    max_grad_norm: QMaxGradNorm = 10.0
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    gamma_start: GammaStart = None
    anneal_updates: AnnealUpdates = 10_000
    double_q: DoubleQ = False
    munchausen: Munchausen = False
    munchausen_alpha: MunchausenAlpha = 0.9
    munchausen_tau: MunchausenTau = 0.03
    munchausen_clip: MunchausenClip = -1.0
    target_update_interval: TargetUpdateInterval = 50
    tau: TargetTau = 1.0
    act_with_target: ActWithTarget = False
    reset_interval: ResetInterval = None
    reset_share: ResetShare = 0.5
    epsilon_start: EpsilonStart = 1.0
    epsilon_end: EpsilonEnd = 0.05
    exploration_fraction: ExplorationFraction = 0.1
    evaluation_epsilon: EvaluationEpsilon = 0.0
    clip_targets: ClipTargets = False
    num_quantiles: AtLeastTwo = Field(32, description="fractions whose mean value selects the action (the paper's K)")
    num_tau_samples: AtLeastTwo = Field(
        8, description="fractions sampled per transition in the loss, for values and for targets (the paper's N and N')"
    )
    kappa: Kappa = 1.0
