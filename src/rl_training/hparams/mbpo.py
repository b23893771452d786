"""Settings of MBPO and MOPO, which train a soft actor-critic on rollouts through an ensemble of dynamics models."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    CriticLayerNorm,
    InitialTemperature,
    PolicyDelay,
    TargetEntropy,
    Tau,
    Temperature,
    UpdatesPerStep,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_dynamics, check_evaluable, check_network, check_replay
from rl_training.hparams.datasets import check_dataset
from rl_training.hparams.fields import (
    AdamEps,
    BatchSize,
    BufferCapacity,
    Count,
    CountOrZero,
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
    LinearSchedule,
    MaxGradNormOrNull,
    MemoryKind,
    ModelActorLearningRate,
    ModelAlphaLearningRate,
    ModelBatchSize,
    ModelHiddenSizes,
    ModelHoldoutRatio,
    ModelLearningRate,
    ModelMaxEpochs,
    ModelPatience,
    NetworkKind,
    NonNegative,
    NStep,
    NumElites,
    NumEnsembles,
    PolicyLearningRate,
    Prioritized,
    PriorityExponent,
    RolloutHorizon,
    Search,
    SyntheticCapacity,
    SyntheticRatio,
    SyntheticRefreshes,
    Termination,
    TrainFrequency,
)


def check_single_steps(n_step: int, prioritized: bool) -> None:
    if n_step > 1:
        raise ValueError(f"n_step must be 1, because a model predicts single steps, got {n_step}")
    if prioritized:
        raise ValueError("prioritized must be false, because transitions of rollouts have no priorities")


def check_horizon(
    rollout_horizon: int, rollout_horizon_end: int | None, rollout_horizon_steps: tuple[int, int] | None
) -> None:
    end, steps = rollout_horizon_end, rollout_horizon_steps
    if (end is None) != (steps is None):
        missing = "rollout_horizon_end" if end is None else "rollout_horizon_steps"
        raise ValueError(
            f"a horizon that grows needs rollout_horizon_end and rollout_horizon_steps: {missing} is missing"
        )
    if end is not None and end < rollout_horizon:
        raise ValueError(f"rollout_horizon_end must be at least rollout_horizon, {rollout_horizon}, got {end}")
    if steps is not None and steps[1] <= steps[0]:
        raise ValueError(f"rollout_horizon_steps must be two env steps, the second one larger, got {list(steps)}")


class MBPOHParams(HParams):
    """Model-based policy optimization (Janner et al. 2019)."""

    checks: ClassVar = (check_replay, check_network, check_dynamics, check_single_steps, check_horizon)

    buffer_capacity: BufferCapacity = 1_000_000
    memory: MemoryKind = "ram"
    batch_size: BatchSize = 256
    learning_starts: CountOrZero = Field(
        5_000, description="env steps of random actions before the model is fitted and learning begins"
    )
    train_frequency: TrainFrequency = 1
    gradient_updates_per_step: UpdatesPerStep = 20.0
    n_step: NStep = 1
    prioritized: Prioritized = False
    prioritized_alpha: PriorityExponent = 0.6
    prioritized_beta_start: ImportanceStart = 0.4
    prioritized_beta_end: ImportanceEnd = 1.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = False

    policy_learning_rate: PolicyLearningRate = 3e-4
    actor_learning_rate: ModelActorLearningRate = None
    alpha_learning_rate: ModelAlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"

    num_ensembles: NumEnsembles = 7
    num_elites: NumElites = 5
    model_hidden_sizes: ModelHiddenSizes = (200, 200, 200, 200)
    model_learning_rate: ModelLearningRate = 1e-3
    model_batch_size: ModelBatchSize = 256
    model_patience: ModelPatience = 5
    model_max_epochs: ModelMaxEpochs = 200
    model_holdout_ratio: ModelHoldoutRatio = 0.2
    model_train_frequency: Count = Field(250, description="env steps between fits of the ensemble")
    rollout_refresh_interval: Count = Field(250, description="env steps between rounds of rollouts")
    rollout_batch_size: Count = Field(
        100_000, description="states of the replay buffer from which rollouts start at each refresh"
    )
    rollout_horizon: RolloutHorizon = 1
    rollout_horizon_end: Count | None = Field(None, description="final horizon, if it grows; null: it does not grow")
    rollout_horizon_steps: tuple[CountOrZero, CountOrZero] | None = Field(
        None, description="env steps between which the horizon grows, linearly and rounded down"
    )
    synthetic_buffer_capacity: SyntheticCapacity = 2_000_000
    synthetic_refreshes_kept: SyntheticRefreshes = 4
    synthetic_batch_ratio: SyntheticRatio = 0.95
    termination: Termination = "auto"


class MOPOHParams(HParams):
    """Model-based offline policy optimization (Yu et al. 2020)."""

    checks: ClassVar = (check_dataset, check_network, check_dynamics)
    run_checks: ClassVar = (check_evaluable,)

    dataset_kind: DatasetSource = None
    dataset_path: DatasetPath = None
    dataset_id: DatasetId = None
    dataset_size: DatasetSize = None
    dataset_seed: DatasetSeed = 0
    held_out: HeldOut = None
    batch_size: BatchSize = 256

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: CriticLayerNorm = False

    policy_learning_rate: PolicyLearningRate = 3e-4
    actor_learning_rate: ModelActorLearningRate = None
    alpha_learning_rate: ModelAlphaLearningRate = None
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-8
    max_grad_norm: MaxGradNormOrNull = None

    gamma: Discount = 0.99
    tau: Tau = 0.005
    policy_delay: PolicyDelay = 1
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"

    num_ensembles: NumEnsembles = 7
    num_elites: NumElites = 5
    model_hidden_sizes: ModelHiddenSizes = (200, 200, 200, 200)
    model_learning_rate: ModelLearningRate = 1e-3
    model_batch_size: ModelBatchSize = 256
    model_patience: ModelPatience = 5
    model_max_epochs: ModelMaxEpochs = 200
    model_holdout_ratio: ModelHoldoutRatio = 0.2
    model_train_frequency: CountOrZero = Field(
        0,
        description="gradient steps between further fits of the ensemble; 0: a single fit, before the first one",
    )
    rollout_refresh_interval: Count = Field(1_000, description="gradient steps between rounds of rollouts")
    rollout_batch_size: Count = Field(
        50_000, description="states of the dataset from which rollouts start at each refresh"
    )
    rollout_horizon: RolloutHorizon = 5
    synthetic_buffer_capacity: SyntheticCapacity = 2_000_000
    synthetic_refreshes_kept: SyntheticRefreshes = 5
    synthetic_batch_ratio: SyntheticRatio = 0.95
    termination: Termination = "auto"
    penalty_coef: Annotated[NonNegative, Search(0.1, 10.0, log=True)] = Field(
        1.0, description="reduction of the reward per unit of model uncertainty; 0: no penalty"
    )
    uncertainty: Literal["deviation", "disagreement"] = Field(
        "deviation",
        description="deviation: largest norm of a member's predicted standard deviations; disagreement: largest "
        "distance of a member's mean to the mean of all",
    )


# What the shared parts take: ensemble, rollouts, memory of rollouts.
ModelHParams: TypeAlias = MBPOHParams | MOPOHParams
