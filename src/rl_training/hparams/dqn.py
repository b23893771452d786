"""Settings of the DQN family: one class per head; a named variant is a head with other defaults."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import Field

from rl_training.hparams.base import HParams, variant
from rl_training.hparams.checks import (
    check_goal_rewards,
    check_hindsight,
    check_network,
    check_replay,
    check_target_range,
)
from rl_training.hparams.fields import (
    FIXED_BUFFER,
    REAL,
    WHOLE,
    AtLeastTwo,
    BatchSize,
    BufferCapacity,
    ClipTargets,
    Count,
    Discount,
    Fixed,
    Fraction,
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
    NonNegative,
    NStep,
    OpenFraction,
    Positive,
    Prioritized,
    PriorityExponent,
    Real,
    Search,
    Switch,
    TrainFrequency,
)

# --- Fields that all heads have --------------------------------------------------------------------------------------

GradientSteps = Annotated[
    int, Ge(-1), WHOLE, Field(description="updates per round; -1: as many as env steps since the last round")
]
QLayerNorm = Annotated[
    Switch,
    Search(choices=(False, True)),
    Field(description="layer normalization of the hidden layers; Q-values diverge far less with it"),
]
Dueling = Annotated[
    Switch, Field(description="separate streams for the value of the state and the advantages of the actions")
]
Noisy = Annotated[Switch, Field(description="exploration by noise on the weights, instead of epsilon (NoisyNet)")]
NoisySigma = Annotated[
    Positive, Field(description="initial scale of the noise, in units of 1 / sqrt(inputs of a layer)")
]
QAdamEps = Annotated[Positive, Field(description="epsilon of Adam; 1.5e-4 is usual for Atari")]
QMaxGradNorm = Annotated[
    Positive | None,
    Search(0.3, 10.0, log=True),
    Field(description="global norm to which larger gradients are clipped; null: no clipping"),
]
DoubleQ = Annotated[Switch, Field(description="selection of the target's action by the online network (Double DQN)")]
TargetUpdateInterval = Annotated[
    Count,
    Search(10, 1_000, log=True),
    Field(description="gradient steps between copies of the weights into the target network"),
]
TargetTau = Annotated[
    float,
    Gt(0.0),
    Le(1.0),
    REAL,
    Field(
        description="share of the distance to the weights that the target network moves; below 1, a soft update at "
        "every gradient step, it needs target_update_interval 1; 1: a copy"
    ),
]
EpsilonStart = Annotated[
    Fraction,
    Field(
        description="share of random actions at step 0, where the decay begins; before learning_starts all are random"
    ),
]
EpsilonEnd = Annotated[
    Fraction, Search(0.01, 0.2, log=True), Field(description="share of random actions after the decay")
]
ExplorationFraction = Annotated[
    Fraction, Search(0.02, 0.5, log=True), Field(description="part of total_timesteps over which epsilon decays")
]
EvaluationEpsilon = Annotated[Fraction, Field(description="share of random actions in evaluations; 0.001 on Atari")]
Kappa = Annotated[
    NonNegative, Field(description="size up to which errors count squared (Huber); 0: the plain quantile loss")
]
Munchausen = Annotated[
    Switch,
    Field(
        description="Munchausen targets: a bonus for actions that the policy prefers, and soft values; double_q has no "
        "part in them"
    ),
]
MunchausenAlpha = Annotated[Fraction, Field(description="weight of the Munchausen bonus")]
MunchausenTau = Annotated[
    Positive,
    Field(description="temperature of the softmax policy in Munchausen targets, in the unit of the rewards"),
]
MunchausenClip = Annotated[
    float,
    Le(0.0),
    REAL,
    Field(description="smallest Munchausen bonus, before munchausen_alpha, in the unit of the rewards"),
]
EmbeddingDim = Annotated[Count, Field(description="cosines that describe a fraction to the network")]

AugmentationKind = Annotated[
    Literal["none", "shift", "shift_and_intensity"],
    Field(
        description="random changes of images in a batch: shifts by up to 4 pixels, and factors of up to 10 %; no "
        "effect on other observations"
    ),
]
ImageEncoder = Annotated[
    Literal["auto", "impala"],
    Fixed("the saved weights belong to it"),
    Field(
        description="network for images; auto: Nature's convolutions, for small images MinAtar's; impala: a residual "
        "network in three stages"
    ),
]
EncoderWidth = Annotated[
    Count, Fixed("the saved weights have these sizes"), Field(description="factor on the channels of encoder: impala")
]
NStepStart = Annotated[
    Count | None,
    FIXED_BUFFER,
    Field(
        description="n_step at first, and after a reset; it moves to n_step over anneal_updates; null: always n_step"
    ),
]
GammaStart = Annotated[
    OpenFraction | None,
    FIXED_BUFFER,
    Field(description="gamma at first, and after a reset; it moves to gamma over anneal_updates; null: always gamma"),
]
AnnealUpdates = Annotated[
    Count, Field(description="gradient steps over which n_step_start and gamma_start move to n_step and gamma")
]
WeightDecay = Annotated[
    NonNegative,
    Field(description="decoupled weight decay (AdamW) of matrices and convolutions, times the learning rate; 0: none"),
]
ActWithTarget = Annotated[
    Switch, Field(description="actions by the target network, in training and evaluation; sensible with tau below 1")
]
ResetInterval = Annotated[
    Count | None,
    Field(
        description="gradient steps between resets, of which the last leaves as many before the end of the run: the "
        "hidden layers after the encoder get new weights, Adam starts again; null: no resets"
    ),
]
ResetShare = Annotated[
    Fraction, Field(description="share of the encoder's weights that a reset keeps; the rest is that of new ones")
]

# --- Checks ----------------------------------------------------------------------------------------------------------


def check_gradient_steps(gradient_steps: int) -> None:
    if gradient_steps == 0:
        raise ValueError("gradient_steps must be -1 or >= 1, got 0")


def check_target_update(tau: float, target_update_interval: int) -> None:
    if tau < 1.0 and target_update_interval > 1:
        raise ValueError(
            f"tau {tau:g} moves the target network at every gradient step, but target_update_interval is "
            f"{target_update_interval}; set target_update_interval: 1 for soft updates, or tau: 1 for copies"
        )


def check_annealing(n_step_start: int | None, gamma_start: float | None, gamma: float, her: str) -> None:
    if n_step_start is None and gamma_start is None:
        return
    if her != "none":
        raise ValueError("her replaces goals of single steps; n_step_start and gamma_start must be null with it")
    if gamma_start is not None and gamma >= 1.0:
        raise ValueError(f"gamma_start needs a gamma below 1 to move to, got {gamma:g}")


def check_act_with_target(act_with_target: bool, noisy: bool) -> None:
    if act_with_target and noisy:
        raise ValueError("act_with_target: true acts without noise, so that noisy explores nothing; set noisy: false")


def check_munchausen(munchausen: bool, double_q: bool) -> None:
    if munchausen and double_q:
        raise ValueError(
            "munchausen: true takes the mean over all actions, so that double_q selects none; set double_q: false"
        )


def check_support(v_min: float, v_max: float) -> None:
    if v_max <= v_min:
        raise ValueError(f"v_max must be greater than v_min, {v_min:g}, got {v_max:g}")


FIXED_ATOMS = Fixed("the saved network has learned probabilities of these atoms")

# --- Settings --------------------------------------------------------------------------------------------------------


class DQNHParams(HParams):
    """Deep Q-learning (Mnih et al. 2015)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_gradient_steps,
        check_target_update,
        check_network,
        check_act_with_target,
        check_annealing,
        check_target_range,
        check_munchausen,
    )
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
    loss: Literal["huber", "mse"] = Field("huber", description="loss of the TD error (Huber: delta 1)")


class C51HParams(HParams):
    """Categorical distributions of returns (Bellemare et al. 2017)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_gradient_steps,
        check_target_update,
        check_network,
        check_act_with_target,
        check_annealing,
        check_support,
    )
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

    learning_rate: LearningRate = 1e-3
    learning_rate_schedule: LinearSchedule = "linear"
    adam_eps: QAdamEps = 1e-8
    max_grad_norm: QMaxGradNorm = 10.0
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    gamma_start: GammaStart = None
    anneal_updates: AnnealUpdates = 10_000
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
    v_min: Annotated[Real, FIXED_ATOMS] = Field(
        -10.0, description="smallest return that can be represented: the first atom"
    )
    v_max: Annotated[Real, FIXED_ATOMS] = Field(
        10.0, description="largest return that can be represented: the last atom"
    )
    num_atoms: AtLeastTwo = Field(51, description="atoms of the distribution, v_min and v_max among them")


class QRDQNHParams(HParams):
    """Quantile regression (Dabney et al. 2018)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_gradient_steps,
        check_target_update,
        check_network,
        check_act_with_target,
        check_annealing,
    )
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

    learning_rate: LearningRate = 1e-3
    learning_rate_schedule: LinearSchedule = "linear"
    adam_eps: QAdamEps = 1e-8
    max_grad_norm: QMaxGradNorm = 10.0
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    gamma_start: GammaStart = None
    anneal_updates: AnnealUpdates = 10_000
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
    num_quantiles: AtLeastTwo = Field(51, description="quantiles of the return's distribution per action")
    kappa: Kappa = 1.0


class IQNHParams(HParams):
    """Implicit quantile networks (Dabney et al. 2018)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_gradient_steps,
        check_target_update,
        check_network,
        check_act_with_target,
        check_annealing,
        check_munchausen,
    )
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
    num_quantiles: AtLeastTwo = Field(32, description="fractions whose mean value selects the action (the paper's K)")
    num_tau_samples: AtLeastTwo = Field(
        8, description="fractions sampled per transition in the loss, for values and for targets (the paper's N and N')"
    )
    kappa: Kappa = 1.0


class FQFHParams(HParams):
    """Fully parameterized quantile function (Yang et al. 2019)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_gradient_steps,
        check_target_update,
        check_network,
        check_act_with_target,
        check_annealing,
    )
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
    fraction_learning_rate: Annotated[Positive, Search(1e-9, 1e-5, log=True)] = Field(
        2e-7, description="learning rate of RMSprop for the fraction proposals; about 0.01 / updates of the run"
    )

    gamma: Discount = 0.99
    gamma_start: GammaStart = None
    anneal_updates: AnnealUpdates = 10_000
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
    num_quantiles: AtLeastTwo = Field(32, description="fractions that are proposed for each state")
    kappa: Kappa = 1.0
    entropy_coef: NonNegative = Field(1e-3, description="weight of the fractions' entropy, which keeps them apart")


# What the shared learner takes. To a type checker a variant is its head.
QLearningHParams: TypeAlias = DQNHParams | C51HParams | QRDQNHParams | IQNHParams | FQFHParams


# --- Named variants --------------------------------------------------------------------------------------------------

DoubleDQNHParams = variant(
    "DoubleDQNHParams", DQNHParams, "DQN without overestimation (van Hasselt et al. 2016).", double_q=True
)
DuelingDQNHParams = variant(
    "DuelingDQNHParams", DQNHParams, "DQN with two streams (Wang et al. 2016).", dueling=True, double_q=True
)
NoisyDQNHParams = variant(
    "NoisyDQNHParams", DQNHParams, "DQN that explores by noisy weights (Fortunato et al. 2018).", noisy=True
)
PrioritizedDQNHParams = variant(
    "PrioritizedDQNHParams", DQNHParams, "DQN that replays by TD error (Schaul et al. 2016).", prioritized=True
)
NStepDQNHParams = variant("NStepDQNHParams", DQNHParams, "DQN with three-step returns (Sutton 1988).", n_step=3)
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
    "C51 with annealed returns, resets and a wide residual network, for few env steps (Schwarzer et al. 2023).",
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
