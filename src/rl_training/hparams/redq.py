"""Settings of REDQ, which is DroQ with other values."""

from typing import Annotated, ClassVar

from annotated_types import Ge, Lt
from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    AlphaLearningRate,
    CriticLayerNorm,
    InitialTemperature,
    NoiseColor,
    NumCritics,
    ObservationClip,
    OwnCriticHiddenSizes,
    PolicyDelay,
    RunningNormalization,
    SubsetSize,
    TargetEntropy,
    Tau,
    Temperature,
    UpdatesPerStep,
    check_subset,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import (
    check_critic_network,
    check_goal_rewards,
    check_hindsight,
    check_network,
    check_replay,
    check_target_range,
)
from rl_training.hparams.fields import (
    REAL,
    ActorLearningRate,
    AdamEps,
    BatchSize,
    BufferCapacity,
    ClipTargets,
    Discount,
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
    NStep,
    Prioritized,
    PriorityExponent,
    Search,
    TrainFrequency,
    WeightDecay,
)


def check_dropout(network: NetworkName, dropout: float) -> None:
    if network == "simba" and dropout:
        raise ValueError(f"network: simba has no dropout, got dropout {dropout:g}; set it to 0")


class REDQHParams(HParams):
    """Randomized ensembled double Q-learning (Chen et al. 2021); with dropout: DroQ (Hiraoka et al. 2022)."""

    checks: ClassVar = (
        check_replay,
        check_hindsight,
        check_network,
        check_critic_network,
        check_subset,
        check_dropout,
        check_target_range,
    )
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
    observation_clip: ObservationClip = "auto"

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    critic_hidden_sizes: OwnCriticHiddenSizes = None
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
    weight_decay: WeightDecay = 0.0

    gamma: Discount = 0.99
    tau: Tau = 0.005
    clip_targets: ClipTargets = False
    policy_delay: PolicyDelay = 20
    noise_color: NoiseColor = 0.0
    alpha: Temperature = "auto"
    initial_alpha: InitialTemperature = 1.0
    target_entropy: TargetEntropy = "auto"
    num_critics: NumCritics = 10
    subset_size: SubsetSize = 2
