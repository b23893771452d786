"""Settings of C51 and of its named variants Rainbow and BBF, which are C51 with other defaults."""

from typing import Annotated, ClassVar

from pydantic import Field

from rl_training.hparams.base import HParams, variant
from rl_training.hparams.checks import check_goal_rewards
from rl_training.hparams.fields import (
    AtLeastTwo,
    BatchSize,
    BufferCapacity,
    ClipTargets,
    Discount,
    Fixed,
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
    Real,
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
    EncoderWidth,
    EpsilonEnd,
    EpsilonStart,
    EvaluationEpsilon,
    ExplorationFraction,
    GammaStart,
    GradientSteps,
    ImageEncoder,
    Noisy,
    NoisySigma,
    NStepStart,
    QAdamEps,
    QLayerNorm,
    QMaxGradNorm,
    ResetInterval,
    ResetShare,
    SelfPredictionCoef,
    SelfPredictionSteps,
    TargetTau,
    TargetUpdateInterval,
    check_self_prediction,
)

FIXED_ATOMS = Fixed("the saved network has learned probabilities of these atoms")


def check_support(v_min: float, v_max: float) -> None:
    if v_max <= v_min:
        raise ValueError(f"v_max must be greater than v_min, {v_min:g}, got {v_max:g}")


class C51HParams(HParams):
    """Categorical distributions of returns (Bellemare et al. 2017)."""

    checks: ClassVar = (*Q_CHECKS, check_support, check_self_prediction)
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
    self_prediction_steps: SelfPredictionSteps = 0

    encoder: ImageEncoder = "auto"
    encoder_width: EncoderWidth = 1
    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: QLayerNorm = True
    dueling: Dueling = False
    noisy: Noisy = False
    noisy_sigma: NoisySigma = 0.5

    learning_rate: LearningRate = 1e-3
    learning_rate_schedule: LinearSchedule = "linear"
    adam_eps: QAdamEps = 1e-8
    max_grad_norm: QMaxGradNorm = 10.0
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    gamma_start: GammaStart = None
    anneal_updates: AnnealUpdates = 10_000
    self_prediction_coef: SelfPredictionCoef = 5.0
    double_q: DoubleQ = False
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
    v_min: Annotated[Real, FIXED_ATOMS] = Field(
        -10.0, description="smallest return that can be represented: the first atom"
    )
    v_max: Annotated[Real, FIXED_ATOMS] = Field(
        10.0, description="largest return that can be represented: the last atom"
    )
    num_atoms: AtLeastTwo = Field(51, description="atoms of the distribution, v_min and v_max among them")


RainbowDQNHParams = variant(
    "RainbowDQNHParams",
    C51HParams,
    "C51 with double, dueling, noisy, prioritized and three-step learning (Hessel et al. 2018).",
    double_q=True,
    dueling=True,
    noisy=True,
    prioritized=True,
    prioritized_alpha=0.5,
    n_step=3,
)
BBFHParams = variant(
    "BBFHParams",
    C51HParams,
    "C51 with annealed returns, resets, self-prediction and a wide residual network, for few env steps "
    "(Schwarzer et al. 2023).",
    buffer_capacity=200_000,
    batch_size=32,
    learning_starts=2_000,
    train_frequency=1,
    gradient_steps=2,
    n_step=3,
    n_step_start=10,
    prioritized=True,
    prioritized_alpha=0.5,
    prioritized_beta_start=0.5,
    prioritized_beta_end=0.5,
    augmentation="shift_and_intensity",
    self_prediction_steps=5,
    encoder="impala",
    encoder_width=4,
    hidden_sizes=(1_024,),
    layer_norm=False,
    dueling=True,
    learning_rate=1e-4,
    learning_rate_schedule="constant",
    adam_eps=1.5e-4,
    max_grad_norm=None,
    weight_decay=0.1,
    gamma=0.997,
    gamma_start=0.97,
    double_q=True,
    target_update_interval=1,
    tau=0.005,
    act_with_target=True,
    reset_interval=40_000,
    epsilon_end=0.0,
)
