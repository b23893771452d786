"""Settings of RLPD."""

from typing import ClassVar

from rl_training.hparams.actor_critic_fields import (
    AlphaLearningRate,
    CriticLayerNorm,
    EntropyInTarget,
    HalfTargetEntropy,
    InitialTemperature,
    NoiseColor,
    NumCritics,
    ObservationClip,
    OfflineRatio,
    OwnCriticHiddenSizes,
    PolicyDelay,
    RunningNormalization,
    SubsetSize,
    Tau,
    Temperature,
    UpdatesPerStep,
    check_plain_replay,
    check_subset,
    check_whole_shares,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_critic_network, check_network, check_replay
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    ActorLearningRate,
    AdamEps,
    BatchSize,
    BufferCapacity,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    Discount,
    HiddenSizes,
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
    RewardScale,
    RewardShift,
    TrainFrequency,
    WeightDecay,
)


class RLPDHParams(HParams):
    """Online reinforcement learning with offline data (Ball et al. 2023)."""

    checks: ClassVar = (
        check_dataset,
        check_replay,
        check_network,
        check_critic_network,
        check_subset,
        check_plain_replay,
        check_whole_shares,
    )

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    reward_scale: RewardScale = "none"
    reward_shift: RewardShift = 0.0
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
    observation_clip: ObservationClip = "auto"

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    critic_hidden_sizes: OwnCriticHiddenSizes = None
    layer_norm: CriticLayerNorm = True

    learning_rate: LearningRate = 3e-4
    actor_learning_rate: ActorLearningRate = None
    alpha_learning_rate: AlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 20
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 1.0
    target_entropy: HalfTargetEntropy = "auto"
    entropy_in_target: EntropyInTarget = True
    num_critics: NumCritics = 10
    subset_size: SubsetSize = 2
