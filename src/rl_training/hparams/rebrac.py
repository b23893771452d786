"""Settings of TD3+BC and ReBRAC, whose losses are the same with other weights."""

from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from rl_training.hparams.actor_critic_fields import CriticLayerNorm, TargetNoise, TargetNoiseClip, TargetsDelay, Tau
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_evaluable, check_network
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    ActorLearningRate,
    AdamEps,
    BatchSize,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    DeepHiddenSizes,
    Discount,
    HeldOut,
    HiddenSizes,
    LargeBatchSize,
    LearningRate,
    LinearSchedule,
    MaxGradNormOrNull,
    NetworkKind,
    NonNegative,
    NormalizeObservations,
    Positive,
    RewardScale,
    RewardShift,
    Search,
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


BehaviorRegularizedHParams: TypeAlias = TD3BCHParams | ReBRACHParams
