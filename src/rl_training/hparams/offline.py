"""Settings of the algorithms that learn from a dataset without a model: IQL, BC, TD3+BC, ReBRAC, CQL, Cal-QL."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    AlphaLearningRate,
    CriticLayerNorm,
    EntropyInTarget,
    OfflineRatio,
    PolicyDelay,
    TargetEntropy,
    TargetNoise,
    TargetNoiseClip,
    TargetsDelay,
    Tau,
    Temperature,
    UpdatesPerStep,
    check_plain_replay,
    check_whole_shares,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_evaluable, check_network, check_replay
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    FIXED_BUFFER,
    ActorLearningRate,
    AdamEps,
    BatchSize,
    BufferCapacity,
    Calibrated,
    CosineSchedule,
    Count,
    CountOrZero,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    DeepHiddenSizes,
    Discount,
    Expectile,
    Fixed,
    HeldOut,
    HiddenSizes,
    ImportanceEnd,
    ImportanceStart,
    InverseTemperature,
    LargeBatchSize,
    LearningRate,
    LinearSchedule,
    LogStdInit,
    MaxAdvantageWeight,
    MaxGradNormOrNull,
    MemoryKind,
    NetworkKind,
    NonNegative,
    NormalizeObservations,
    NStep,
    OrthogonalInit,
    PathOrNull,
    Positive,
    Prioritized,
    PriorityExponent,
    RewardScale,
    RewardShift,
    Search,
    TrainFrequency,
    ValueLayerNorm,
)
from rl_training.hparams.mbpo import MOPOHParams


def check_calibration(calibrated: bool, gamma: float) -> None:
    if calibrated and gamma >= 1.0:
        raise ValueError(f"calibrated needs a gamma below 1, got {gamma:g}: returns after a time limit have no bound")


def check_statistics(init_from: object, normalize_observations: bool, reward_scale: float | str) -> None:
    if init_from is None and (normalize_observations or reward_scale == "return"):
        raise ValueError("normalize_observations and reward_scale: return are taken from a dataset: give init_from")


class IQLHParams(HParams):
    """Implicit Q-learning (Kostrikov et al. 2022)."""

    checks: ClassVar = (check_dataset, check_network)
    run_checks: ClassVar = (check_evaluable,)

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    held_out: HeldOut = None
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = False
    batch_size: BatchSize = 256

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: ValueLayerNorm = False
    orthogonal_init: OrthogonalInit = True
    log_std_init: LogStdInit = 0.0

    learning_rate: LearningRate = 3e-4
    learning_rate_schedule: CosineSchedule = "cosine"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    expectile: Expectile = 0.7
    beta: InverseTemperature = 3.0
    max_advantage_weight: MaxAdvantageWeight = 100.0


class IQLOnlineHParams(HParams):
    """IQL, continued in an environment from where it stopped on a dataset."""

    checks: ClassVar = (check_replay, check_network, check_plain_replay, check_statistics)

    init_from: Annotated[PathOrNull, Fixed("the saved run has begun from it")] = Field(
        None, description="run folder or checkpoint of the offline run to continue; null: a new start"
    )
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = False
    buffer_capacity: Annotated[Count, FIXED_BUFFER] = Field(
        1_000_000, description="capacity of the replay buffer in transitions, those of the dataset included"
    )
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: CountOrZero = Field(0, description="env steps before learning begins")
    train_frequency: Count = Field(1, description="env steps between rounds of as many updates")
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: ValueLayerNorm = False
    orthogonal_init: OrthogonalInit = True
    log_std_init: LogStdInit = 0.0

    learning_rate: LearningRate = 3e-4
    learning_rate_schedule: Literal["constant"] = Field(
        "constant", description="schedule of the learning rates, which do not decay"
    )
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    expectile: Expectile = 0.7
    beta: InverseTemperature = 3.0
    max_advantage_weight: MaxAdvantageWeight = 100.0


class BCHParams(HParams):
    """Behavioural cloning (Pomerleau 1991)."""

    checks: ClassVar = (check_dataset, check_network)
    run_checks: ClassVar = (check_evaluable,)

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    held_out: HeldOut = None
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = False
    batch_size: BatchSize = 256

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)

    learning_rate: LearningRate = 3e-4
    learning_rate_schedule: CosineSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    loss: Literal["nll", "mse"] = Field(
        "nll", description="nll: negative log-likelihood of the dataset's actions; mse: squared error of Box actions"
    )


class TD3BCHParams(HParams):
    """TD3 with a behavioural cloning term (Fujimoto and Gu 2021)."""

    checks: ClassVar = (check_dataset, check_network)
    run_checks: ClassVar = (check_evaluable,)

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    held_out: HeldOut = None
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = True
    batch_size: BatchSize = 256

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
    policy_delay: TargetsDelay = 2
    target_noise: TargetNoise = 0.2
    target_noise_clip: TargetNoiseClip = 0.5
    alpha: Annotated[Positive, Search(0.5, 100.0, log=True)] = Field(
        2.5, description="weight of the critic's value, relative to its mean, against the error of imitation"
    )


class ReBRACHParams(HParams):
    """Revisited behaviour-regularized actor-critic (Tarasov et al. 2023)."""

    checks: ClassVar = (check_dataset, check_network)
    run_checks: ClassVar = (check_evaluable,)

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    held_out: HeldOut = None
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = False
    batch_size: LargeBatchSize = 1_024

    network: NetworkKind = "mlp"
    hidden_sizes: DeepHiddenSizes = (256, 256, 256)
    layer_norm: CriticLayerNorm = True

    learning_rate: LearningRate = 1e-3
    actor_learning_rate: ActorLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: TargetsDelay = 2
    target_noise: TargetNoise = 0.2
    target_noise_clip: TargetNoiseClip = 0.5
    actor_penalty: Annotated[NonNegative, Search(1e-3, 0.1, log=True)] = Field(
        0.01, description="weight of the squared distance of the policy's action to the dataset's, in the actor's loss"
    )
    critic_penalty: Annotated[NonNegative, Search(1e-3, 0.5, log=True)] = Field(
        0.01, description="weight of the squared distance of the next action to the dataset's, in the critics' target"
    )


ConservativeWeight = Annotated[
    NonNegative,
    Search(0.01, 20.0, log=True),
    Field(description="weight of the values of sampled actions against those of the dataset; 0: none"),
]
NumSampledActions = Annotated[
    Count,
    Field(description="sampled actions per row of each kind: uniform, of the policy there and at the next observation"),
]


class CQLHParams(HParams):
    """Conservative Q-learning (Kumar et al. 2020)."""

    checks: ClassVar = (check_dataset, check_network, check_calibration)
    run_checks: ClassVar = (check_evaluable,)

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    held_out: HeldOut = None
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = True
    batch_size: BatchSize = 256

    network: NetworkKind = "mlp"
    hidden_sizes: DeepHiddenSizes = (256, 256, 256)
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = 3e-5
    alpha_learning_rate: AlphaLearningRate = 3e-5
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    alpha: Temperature = "auto"
    target_entropy: TargetEntropy = "auto"
    entropy_in_target: EntropyInTarget = False
    conservative_weight: ConservativeWeight = 10.0
    num_sampled_actions: NumSampledActions = 10
    calibrated: Calibrated = False


class CalQLHParams(HParams):
    """Calibrated Q-learning (Nakamoto et al. 2023): CQL, continued in an environment."""

    checks: ClassVar = (check_dataset, check_network, check_whole_shares, check_calibration)

    init_from: Annotated[PathOrNull, Fixed("the saved run has begun from it")] = Field(
        None, description="run folder or checkpoint of the run of cql to continue; null: a new start"
    )
    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    offline_ratio: OfflineRatio = 0.5
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
    normalize_observations: NormalizeObservations = True
    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: CountOrZero = Field(1_000, description="env steps before learning begins")
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 1.0

    network: NetworkKind = "mlp"
    hidden_sizes: DeepHiddenSizes = (256, 256, 256)
    layer_norm: CriticLayerNorm = False

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = 3e-5
    alpha_learning_rate: AlphaLearningRate = 3e-5
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    alpha: Temperature = "auto"
    target_entropy: TargetEntropy = "auto"
    entropy_in_target: EntropyInTarget = False
    conservative_weight: ConservativeWeight = 10.0
    num_sampled_actions: NumSampledActions = 10
    calibrated: Calibrated = True


# What the shared parts take: IQL's losses, the offline learner, critics on a dataset, the memory of a dataset.
ExpectileHParams: TypeAlias = IQLHParams | IQLOnlineHParams
LearnerHParams: TypeAlias = ExpectileHParams | BCHParams
BehaviorRegularizedHParams: TypeAlias = TD3BCHParams | ReBRACHParams
ConservativeHParams: TypeAlias = CQLHParams | CalQLHParams
DatasetCriticHParams: TypeAlias = BehaviorRegularizedHParams | ConservativeHParams
OfflineHParams: TypeAlias = IQLHParams | BCHParams | MOPOHParams | DatasetCriticHParams
