"""Settings of CQL and of Cal-QL, which continues it in an environment."""

from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    AlphaLearningRate,
    CriticLayerNorm,
    EntropyInTarget,
    InitialTemperature,
    OfflineRatio,
    PolicyDelay,
    TargetEntropy,
    Tau,
    Temperature,
    UpdatesPerStep,
    check_whole_shares,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_evaluable, check_network
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    FIXED_BUFFER,
    ActorLearningRate,
    AdamEps,
    BatchSize,
    BufferCapacity,
    Count,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    DeepHiddenSizes,
    Discount,
    HeldOut,
    InitFrom,
    LearningRate,
    LinearSchedule,
    MaxGradNormOrNull,
    MemoryKind,
    NetworkKind,
    NonNegative,
    NormalizeObservations,
    RewardScale,
    RewardShift,
    Search,
    StepsBeforeLearning,
    Switch,
    TrainFrequency,
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
Calibrated = Annotated[
    Switch,
    FIXED_BUFFER,
    Field(description="floor under the penalized values of the policy's actions: the return that follows in the data"),
]


def check_calibration(calibrated: bool, gamma: float) -> None:
    if calibrated and gamma >= 1.0:
        raise ValueError(f"calibrated needs a gamma below 1, got {gamma:g}: returns after a time limit have no bound")


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
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"
    entropy_in_target: EntropyInTarget = False
    conservative_weight: ConservativeWeight = 10.0
    num_sampled_actions: NumSampledActions = 10
    calibrated: Calibrated = False


class CalQLHParams(HParams):
    """Calibrated Q-learning (Nakamoto et al. 2023): CQL, continued in an environment."""

    checks: ClassVar = (check_dataset, check_network, check_whole_shares, check_calibration)

    init_from: InitFrom = Field(
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
    learning_starts: StepsBeforeLearning = 1_000
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
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"
    entropy_in_target: EntropyInTarget = False
    conservative_weight: ConservativeWeight = 10.0
    num_sampled_actions: NumSampledActions = 10
    calibrated: Calibrated = True


ConservativeHParams: TypeAlias = CQLHParams | CalQLHParams
