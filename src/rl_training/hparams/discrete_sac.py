"""Settings of discrete SAC."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rl_training.hparams.actor_critic_fields import (
    AlphaLearningRate,
    CriticLayerNorm,
    InitialTemperature,
    ObservationClip,
    PolicyDelay,
    RunningNormalization,
    Tau,
    UpdatesPerStep,
)
from rl_training.hparams.base import HParams
from rl_training.hparams.checks import (
    check_goal_rewards,
    check_hindsight,
    check_network,
    check_replay,
    check_target_range,
)
from rl_training.hparams.fields import (
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
    NonNegative,
    NStep,
    OpenFraction,
    Positive,
    Prioritized,
    PriorityExponent,
    Search,
    TrainFrequency,
)

CriticsEstimate = Literal["min", "mean"]


def check_temperature_limit(alpha: float | str, initial_alpha: float, max_alpha: float) -> None:
    if alpha == "auto" and initial_alpha >= max_alpha:
        raise ValueError(f"initial_alpha must be below max_alpha, {max_alpha:g}, got {initial_alpha:g}")


class DiscreteSACHParams(HParams):
    """Soft actor-critic for discrete actions (Christodoulou 2019)."""

    checks: ClassVar = (check_replay, check_hindsight, check_network, check_target_range, check_temperature_limit)
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
    observation_clip: ObservationClip = "auto"

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
    alpha: Positive | Literal["auto"] = Field(
        "auto",
        description="temperature: weight of the entropy; auto: learned, so that the entropy meets target_entropy_ratio",
    )
    initial_alpha: InitialTemperature = 1.0
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
