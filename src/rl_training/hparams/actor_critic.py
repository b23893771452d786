"""Settings of the off-policy actor-critics: SAC, TD3, REDQ, TQC, RLPD, CrossQ, SimBaV2."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Lt
from pydantic import Field

from rl_training.hparams.base import HParams
from rl_training.hparams.checks import (
    check_critic_network,
    check_goal_rewards,
    check_hindsight,
    check_network,
    check_replay,
    check_target_range,
)
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    REAL,
    ActorHiddenSizes,
    ActorLearningRate,
    AdamEps,
    AlphaLearningRate,
    AtLeastTwo,
    BatchSize,
    BufferCapacity,
    ClipTargets,
    Count,
    CountOrZero,
    CriticHiddenSizes,
    CriticLayerNorm,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    Discount,
    EntropyInTarget,
    Fixed,
    Fraction,
    HalfTargetEntropy,
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
    NetworkName,
    NoiseColor,
    NonNegative,
    NStep,
    NumCritics,
    ObservationClip,
    OfflineRatio,
    OpenFraction,
    PolicyDelay,
    Positive,
    Prioritized,
    PriorityExponent,
    RunningNormalization,
    Search,
    Sizes,
    SubsetSize,
    TargetEntropy,
    TargetNoise,
    TargetNoiseClip,
    TargetsDelay,
    Tau,
    Temperature,
    TrainFrequency,
    UpdatesPerStep,
)
from rl_training.hparams.mbpo import MBPOHParams, MOPOHParams
from rl_training.hparams.offline import (
    BehaviorRegularizedHParams,
    CalQLHParams,
    CQLHParams,
    check_plain_replay,
    check_whole_shares,
)


def check_subset(num_critics: int, subset_size: int) -> None:
    if subset_size > num_critics:
        raise ValueError(f"subset_size must be at most num_critics, {num_critics}, got {subset_size}")


def check_blocks(hidden_sizes: Sizes, critic_hidden_sizes: Sizes) -> None:
    for name, sizes in (("hidden_sizes", hidden_sizes), ("critic_hidden_sizes", critic_hidden_sizes)):
        if len(set(sizes)) != 1:
            raise ValueError(f"{name} must have one or more blocks of the same size, got {list(sizes)}")


class SACHParams(HParams):
    """Soft actor-critic (Haarnoja et al. 2018)."""

    checks: ClassVar = (check_replay, check_hindsight, check_network, check_target_range)
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
    observation_clip: ObservationClip = 10.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    clip_targets: ClipTargets = False
    policy_delay: PolicyDelay = 1
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    target_entropy: TargetEntropy = "auto"


def check_dropout(network: NetworkName, dropout: float) -> None:
    if network == "simba" and dropout:
        raise ValueError(f"network: simba has no dropout, got dropout {dropout:g}; set it to 0")


class REDQHParams(HParams):
    """Randomized ensembled double Q-learning (Chen et al. 2021); with dropout: DroQ (Hiraoka et al. 2022)."""

    checks: ClassVar = (check_replay, check_hindsight, check_network, check_subset, check_dropout, check_target_range)
    run_checks: ClassVar = (check_goal_rewards,)

    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: LearningStarts = 5_000
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 20.0
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0
    her: HindsightGoals = "none"
    her_ratio: HindsightRatio = 4.0
    normalize_observations: RunningNormalization = "auto"
    observation_clip: ObservationClip = 10.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = False
    dropout: Annotated[float, Ge(0.0), Lt(1.0), REAL, Search(choices=(0.0, 0.001, 0.01))] = Field(
        0.0, description="share of the critics' hidden units that each computation drops while learning; 0.01: DroQ"
    )

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    clip_targets: ClipTargets = False
    policy_delay: PolicyDelay = 20
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    target_entropy: TargetEntropy = "auto"
    num_critics: NumCritics = 10
    subset_size: SubsetSize = 2


def check_dropped_quantiles(num_quantiles: int, dropped_quantiles: int) -> None:
    if dropped_quantiles >= num_quantiles:
        raise ValueError(f"dropped_quantiles must be below num_quantiles, {num_quantiles}, got {dropped_quantiles}")


class TQCHParams(HParams):
    """Truncated quantile critics (Kuznetsov et al. 2020)."""

    checks: ClassVar = (check_replay, check_hindsight, check_network, check_critic_network, check_dropped_quantiles)
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
    observation_clip: ObservationClip = 10.0

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

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    target_entropy: TargetEntropy = "auto"
    num_critics: NumCritics = 5
    num_quantiles: Count = Field(25, description="quantiles of the return's distribution per critic")
    dropped_quantiles: Annotated[CountOrZero, Search(choices=(0, 1, 2, 5))] = Field(
        2,
        description="largest quantiles per critic that the target leaves out: the more, the lower the values; 0: none",
    )


class TD3HParams(HParams):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

    checks: ClassVar = (check_replay, check_hindsight, check_network, check_target_range)
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
    observation_clip: ObservationClip = 10.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

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


class RLPDHParams(HParams):
    """Online reinforcement learning with offline data (Ball et al. 2023)."""

    checks: ClassVar = (
        check_dataset,
        check_replay,
        check_network,
        check_subset,
        check_plain_replay,
        check_whole_shares,
    )

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    offline_ratio: OfflineRatio = 0.5
    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: LearningStarts = 5_000
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 20.0
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0
    normalize_observations: RunningNormalization = "auto"
    observation_clip: ObservationClip = 10.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = True

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 20
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    target_entropy: HalfTargetEntropy = "auto"
    entropy_in_target: EntropyInTarget = True
    num_critics: NumCritics = 10
    subset_size: SubsetSize = 2


class CrossQHParams(HParams):
    """CrossQ (Bhatt et al. 2024)."""

    checks: ClassVar = (check_replay, check_hindsight)
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
    policy_delay: PolicyDelay = 3
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    target_entropy: TargetEntropy = "auto"


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
    initial_alpha: Positive = Field(0.01, description="first temperature with alpha: auto")
    target_entropy: HalfTargetEntropy = "auto"


CriticsEstimate = Literal["min", "mean"]


class DiscreteSACHParams(HParams):
    """Soft actor-critic for discrete actions (Christodoulou 2019)."""

    checks: ClassVar = (check_replay, check_network)

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
    normalize_observations: RunningNormalization = "auto"
    observation_clip: ObservationClip = 10.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    alpha: Positive | Literal["auto"] = Field(
        "auto",
        description="temperature: weight of the entropy; auto: learned, so that the entropy meets target_entropy_ratio",
    )
    target_entropy_ratio: OpenFraction | Literal["auto"] = Field(
        "auto",
        description="entropy that alpha: auto aims at, as a share of that of the uniform policy; auto: 0.7 for up to "
        "four actions, 0.89 for more",
    )
    max_alpha: Positive = Field(10.0, description="largest temperature of alpha: auto; a run that reaches it stops")
    critic_entropy: NonNegative | Literal["auto"] = Field(
        "auto", description="weight of the entropy in the critics' target; auto: alpha; 0: rewards alone"
    )
    critics_estimate: Annotated[CriticsEstimate, Search(choices=("min", "mean"))] = Field(
        "min", description="what counts of the two critics' values: the smaller one or their mean"
    )


# What the shared parts take. The model-based algorithms train a soft actor-critic, too.
SoftHParams: TypeAlias = (
    SACHParams | REDQHParams | TQCHParams | RLPDHParams | MBPOHParams | MOPOHParams | CQLHParams | CalQLHParams
)
DelayedHParams: TypeAlias = TD3HParams | BehaviorRegularizedHParams
MLPHParams: TypeAlias = SoftHParams | DelayedHParams  # of networks that `build_model` builds
ActorCriticHParams: TypeAlias = MLPHParams | CrossQHParams | SimBaV2HParams | DiscreteSACHParams
OnlineHParams: TypeAlias = (
    SACHParams
    | REDQHParams
    | TQCHParams
    | RLPDHParams
    | TD3HParams
    | MBPOHParams
    | CrossQHParams
    | SimBaV2HParams
    | CalQLHParams
    | DiscreteSACHParams
)
