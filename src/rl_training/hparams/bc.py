"""Settings of behavioural cloning."""

from typing import ClassVar, Literal

from pydantic import Field

from rl_training.hparams.actor_critic_fields import Tau
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_evaluable, check_network
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    AdamEps,
    BatchSize,
    CosineSchedule,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    Discount,
    HeldOut,
    HiddenSizes,
    LearningRate,
    MaxGradNormOrNull,
    NetworkKind,
    NormalizeObservations,
    RewardScale,
    RewardShift,
)


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
