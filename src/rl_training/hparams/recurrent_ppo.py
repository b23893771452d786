"""Settings of recurrent PPO."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_network, check_sequences
from rl_training.hparams.fields import (
    Activation,
    AdamEps,
    ClipCoef,
    ClipSchedule,
    Count,
    Discount,
    EntropyCoef,
    Fixed,
    GaeLambda,
    LearningRate,
    LinearSchedule,
    LogStdInit,
    MaxGradNorm,
    NetworkKind,
    Normalize,
    NormalizeAdvantages,
    PolicyOrthogonalInit,
    RecomputeAdvantages,
    RolloutLength,
    SampledEvaluation,
    Search,
    SharedTrunk,
    Sizes,
    TargetKL,
    UpdateEpochs,
    ValueClip,
    ValueCoef,
)

CellKind = Literal["lstm", "gru"]
Cell = Annotated[
    CellKind,
    Fixed("the saved weights and states belong to it"),
    Search(choices=("lstm", "gru")),
    Field(description="kind of the recurrent cell"),
]
CellSize = Annotated[
    Count,
    Fixed("the saved states have this size"),
    Search(choices=(32, 64, 128, 256)),
    Field(description="units of the recurrent cell, which follows the encoder"),
]
# Not searched, nor is num_steps: only some combinations of the three are possible.
RecurrentMinibatchSize = Annotated[
    Count, Field(description="rows per gradient step, in whole sequences; must divide the rows of a rollout")
]
UnrollLength = Annotated[
    Count | None,
    Field(
        description="steps through which gradients flow; a minibatch consists of such sequences; null: num_steps, all "
        "steps of an env; must divide num_steps and minibatch_size"
    ),
]
RecurrentHiddenSizes = Annotated[
    Sizes,
    Search(choices=((64,), (128,), (64, 64))),
    Field(description="units of the hidden layers between the recurrent cell and the outputs"),
]


class RecurrentPPOHParams(HParams):
    """Proximal policy optimization with a recurrent network (Schulman et al. 2017)."""

    checks: ClassVar = (check_network,)
    run_checks: ClassVar = (check_sequences,)

    num_steps: RolloutLength = 128
    update_epochs: UpdateEpochs = 10
    minibatch_size: RecurrentMinibatchSize = 128
    unroll_length: UnrollLength = None
    normalize: Normalize = "returns"

    cell: Cell = "lstm"
    cell_size: CellSize = 64
    network: NetworkKind = "mlp"
    hidden_sizes: RecurrentHiddenSizes = (64,)
    activation: Activation = "tanh"
    orthogonal_init: PolicyOrthogonalInit = True
    shared_trunk: SharedTrunk = "auto"
    log_std_init: LogStdInit = 0.0

    learning_rate: LearningRate = 3e-4
    learning_rate_schedule: LinearSchedule = "constant"
    adam_eps: AdamEps = 1e-5
    max_grad_norm: MaxGradNorm = 0.5

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

    @property
    def sequence_length(self) -> int:
        return self.unroll_length or self.num_steps
