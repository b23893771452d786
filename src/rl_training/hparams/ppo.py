"""Settings of PPO."""

from typing import ClassVar, TypeAlias

from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_network, check_rollout
from rl_training.hparams.fields import (
    Activation,
    AdamEps,
    ClipCoef,
    ClipSchedule,
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
    Normalize,
    NormalizeAdvantages,
    NumSteps,
    PolicyOrthogonalInit,
    RecomputeAdvantages,
    SampledEvaluation,
    SharedTrunk,
    TargetKL,
    UpdateEpochs,
    ValueClip,
    ValueCoef,
)
from rl_training.hparams.gail import GAILHParams
from rl_training.hparams.recurrent_ppo import RecurrentPPOHParams


class PPOHParams(HParams):
    """Proximal policy optimization (Schulman et al. 2017)."""

    checks: ClassVar = (check_network,)
    run_checks: ClassVar = (check_rollout,)

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


# What PPO's learner and memory take. GAIL trains its policy by them, too.
OnPolicyHParams: TypeAlias = PPOHParams | GAILHParams | RecurrentPPOHParams
