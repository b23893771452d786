"""Settings of PQN."""

from typing import Annotated, ClassVar

from pydantic import Field

from rl_training.hparams.base import HParams
from rl_training.hparams.checks import check_minibatches, check_network
from rl_training.hparams.fields import (
    AdamEps,
    Discount,
    Fixed,
    Fraction,
    HiddenSizes,
    LearningRate,
    LinearSchedule,
    MinibatchSize,
    NetworkKind,
    Positive,
    RolloutLength,
    Search,
    UpdateEpochs,
)
from rl_training.hparams.q_fields import (
    EpsilonEnd,
    EpsilonStart,
    EvaluationEpsilon,
    ExplorationFraction,
    QLayerNorm,
    QMaxGradNorm,
)

QNumSteps = Annotated[RolloutLength, Search(choices=(16, 32, 64, 128))]
QLambda = Annotated[
    Fraction,
    Search(0.0, 1.0),
    Field(description="lambda of the returns: 0 = one-step targets, 1 = the whole rollout"),
]
RewardFactor = Annotated[
    Positive, Fixed("the saved network has learned values of this scale"), Field(description="factor on rewards")
]


class PQNHParams(HParams):
    """Parallelised Q-network (Gallici et al. 2025)."""

    checks: ClassVar = (check_network,)
    run_checks: ClassVar = (check_minibatches,)

    num_steps: QNumSteps = 32
    update_epochs: UpdateEpochs = 2
    minibatch_size: MinibatchSize = 128
    reward_scale: RewardFactor = 1.0

    network: NetworkKind = "mlp"
    hidden_sizes: HiddenSizes = (256, 256)
    layer_norm: QLayerNorm = True

    learning_rate: LearningRate = Field(2.5e-4, description="learning rate of RAdam; the initial one if it decays")
    learning_rate_schedule: LinearSchedule = "linear"
    adam_eps: AdamEps = Field(1e-8, description="epsilon of RAdam")
    max_grad_norm: QMaxGradNorm = 10.0

    gamma: Discount = 0.99
    q_lambda: QLambda = 0.65
    epsilon_start: EpsilonStart = Field(1.0, description="share of random actions at step 0, where the decay begins")
    epsilon_end: EpsilonEnd = 0.05
    exploration_fraction: ExplorationFraction = 0.1
    evaluation_epsilon: EvaluationEpsilon = 0.0
