"""Settings of IQL, on a dataset and continued in an environment."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from rl_training.hparams.actor_critic_fields import Tau, check_plain_replay
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_evaluable, check_network, check_replay
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    FIXED_BUFFER,
    AdamEps,
    BatchSize,
    CosineSchedule,
    Count,
    DatasetId,
    DatasetPath,
    DatasetSeed,
    DatasetSize,
    DatasetSource,
    Discount,
    HeldOut,
    HiddenSizes,
    ImportanceEnd,
    ImportanceStart,
    InitFrom,
    LearningRate,
    LogStdInit,
    MaxGradNormOrNull,
    MemoryKind,
    NetworkKind,
    NormalizeObservations,
    NStep,
    OpenFraction,
    Positive,
    Prioritized,
    PriorityExponent,
    RewardScale,
    RewardShift,
    Search,
    StepsBeforeLearning,
    Switch,
)

Expectile = Annotated[
    OpenFraction,
    Search(0.5, 0.95),
    Field(description="expectile of the critics' values of the dataset's actions, which V learns; 0.5: their mean"),
]
InverseTemperature = Annotated[
    Positive,
    Search(0.5, 10.0, log=True),
    Field(description="inverse temperature: the larger, the more the better actions outweigh others"),
]
MaxAdvantageWeight = Annotated[Positive, Field(description="largest weight of an action")]
ValueLayerNorm = Annotated[
    Switch,
    Search(choices=(False, True)),
    Field(description="layer normalization of the hidden layers of the critics and of V"),
]
OrthogonalInit = Annotated[
    Switch, Field(description="orthogonal initial weights of gain sqrt(2), zero biases; false: PyTorch's defaults")
]


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

    init_from: InitFrom = Field(
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
    learning_starts: StepsBeforeLearning = 0
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


ExpectileHParams: TypeAlias = IQLHParams | IQLOnlineHParams
