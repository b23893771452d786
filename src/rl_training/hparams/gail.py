"""Settings of GAIL: of PPO, which trains the policy, and of the discriminator, which rewards it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_network, check_rollout
from rl_training.hparams.datasets import DatasetKind, check_expert_dataset
from rl_training.hparams.fields import (
    Activation,
    AdamEps,
    ClipCoef,
    ClipSchedule,
    Count,
    CountOrZero,
    DatasetPath,
    DatasetSize,
    Discount,
    EntropyCoef,
    GaeLambda,
    HiddenSizes,
    LearningRate,
    LinearSchedule,
    LogStdInit,
    MaxGradNorm,
    MinibatchSize,
    NetworkKind,
    NonNegative,
    Normalize,
    NormalizeAdvantages,
    NumSteps,
    PolicyOrthogonalInit,
    Positive,
    RecomputeAdvantages,
    SampledEvaluation,
    Search,
    SharedTrunk,
    Sizes,
    Switch,
    TargetKL,
    UpdateEpochs,
    ValueClip,
    ValueCoef,
)


def check_absorbing_state(absorbing_state: bool, gamma: float) -> None:
    if absorbing_state and gamma == 1.0:
        raise ValueError("absorbing_state needs gamma < 1, got 1.0: the sum of its endless rewards would have no value")


class GAILHParams(HParams):
    """Generative adversarial imitation learning (Ho and Ermon 2016)."""

    checks: ClassVar = (check_network, check_expert_dataset, check_absorbing_state)
    run_checks: ClassVar = (check_rollout,)

    expert_dataset_kind: DatasetKind | None = Field(
        None,
        description="kind of dataset to imitate; null: by the name of the file; random: uniform actions in the run's "
        "env; arrays: given in Python, kept in the run folder",
    )
    expert_dataset_path: DatasetPath = None
    expert_dataset_id: str | None = Field(None, description="name of a Minari dataset, such as mujoco/hopper/expert-v0")
    expert_dataset_size: DatasetSize = None
    expert_dataset_seed: CountOrZero = Field(0, description="seed of a random dataset, and of the shuffling of actions")
    expert_shuffle: Literal["none", "actions", "labels"] = Field(
        "none",
        description="control in which nothing can be imitated; actions: each observation gets the action of another; "
        "labels: random labels for the discriminator",
    )
    num_steps: NumSteps = 2_048
    update_epochs: UpdateEpochs = 10
    minibatch_size: MinibatchSize = 64
    normalize: Normalize = "returns"

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (64, 64)
    activation: Activation = "tanh"
    orthogonal_init: PolicyOrthogonalInit = True
    shared_trunk: SharedTrunk = "auto"
    log_std_init: LogStdInit = 0.0
    discriminator_hidden_sizes: Sizes = Field(
        (100, 100), description="units of the discriminator's hidden layers, tanh"
    )
    normalize_discriminator: Switch = Field(
        True,
        description="normalization of the vectors that the discriminator sees, by the expert's mean and standard "
        "deviation",
    )

    learning_rate: LearningRate = 3e-4
    learning_rate_schedule: LinearSchedule = "linear"
    adam_eps: AdamEps = 1e-5
    max_grad_norm: MaxGradNorm = 0.5
    discriminator_learning_rate: Annotated[Positive, Search(1e-4, 1e-2, log=True)] = Field(
        1e-3, description="learning rate of Adam for the discriminator"
    )

    gamma: Discount = 0.99
    gae_lambda: GaeLambda = 0.95
    clip_coef: ClipCoef = 0.2
    clip_schedule: ClipSchedule = "constant"
    value_clip: ValueClip = False
    vf_coef: ValueCoef = 0.5
    ent_coef: EntropyCoef = 0.0
    target_kl: TargetKL = None
    normalize_advantages: NormalizeAdvantages = True
    recompute_advantages: RecomputeAdvantages = False
    sampled_evaluation: SampledEvaluation = False

    discriminator_updates: Annotated[Count, Search(1, 32, log=True)] = Field(
        8, description="gradient steps of the discriminator per rollout"
    )
    discriminator_batch_size: Count = Field(
        256, description="rows of the expert, and as many of the rollout, per gradient step of the discriminator"
    )
    discriminator_ent_coef: NonNegative = Field(
        1e-3, description="weight of the entropy of the discriminator's outputs, which keeps them from being certain"
    )
    gradient_penalty: NonNegative = Field(
        10.0, description="weight of (|dL/dx| - 1)^2 between rows of the expert and of the rollout; 0: no penalty"
    )
    reward_form: Literal["positive", "negative", "airl"] = Field(
        "positive",
        description="reward from the discriminator's logit L; positive: softplus(L), where an end is a failure; "
        "negative: -softplus(-L), where it is the goal; airl: L, where all episodes have the same length",
    )
    absorbing_state: Switch = Field(
        False,
        description="absorbing state in which a terminated episode continues forever; the discriminator classifies "
        "and rewards it, too, so that an end alone is no gain or loss, for any sign of the rewards",
    )
