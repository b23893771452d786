"""Field types and checks that the heads of the DQN family share."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Field

from rl_training.hparams.checks import check_hindsight, check_network, check_replay, check_target_range
from rl_training.hparams.fields import (
    FIXED_BUFFER,
    REAL,
    WHOLE,
    Count,
    CountOrZero,
    Fixed,
    Fraction,
    NonNegative,
    OpenFraction,
    Positive,
    Search,
    Switch,
)

# --- Data ------------------------------------------------------------------------------------------------------------

GradientSteps = Annotated[
    int, Ge(-1), WHOLE, Field(description="updates per round; -1: as many as env steps since the last round")
]
NStepStart = Annotated[
    Count | None,
    FIXED_BUFFER,
    Field(
        description="n_step at first, and after a reset; it moves to n_step over anneal_updates; null: always n_step"
    ),
]
AugmentationKind = Annotated[
    Literal["none", "shift", "shift_and_intensity"],
    Field(
        description="random changes of images in a batch: shifts by up to 4 pixels, and factors of up to 10 %; no "
        "effect on other observations"
    ),
]

SelfPredictionSteps = Annotated[
    CountOrZero,
    FIXED_BUFFER,
    Field(
        description="steps over which the network predicts its own representations of the next images (SPR); 0: none; "
        "no effect on other observations"
    ),
]

# --- Network ---------------------------------------------------------------------------------------------------------

ImageEncoder = Annotated[
    Literal["auto", "impala"],
    Fixed("the saved weights belong to it"),
    Field(
        description="network for images; auto: Nature's convolutions, for small images MinAtar's; impala: a residual "
        "network in three stages"
    ),
]
EncoderWidth = Annotated[
    Count, Fixed("the saved weights have these sizes"), Field(description="factor on the channels of encoder: impala")
]
QLayerNorm = Annotated[
    Switch,
    Search(choices=(False, True)),
    Field(description="layer normalization of the hidden layers; Q-values diverge far less with it"),
]
Dueling = Annotated[
    Switch, Field(description="separate streams for the value of the state and the advantages of the actions")
]
Noisy = Annotated[Switch, Field(description="exploration by noise on the weights, instead of epsilon (NoisyNet)")]
NoisySigma = Annotated[
    Positive, Field(description="initial scale of the noise, in units of 1 / sqrt(inputs of a layer)")
]
EmbeddingDim = Annotated[Count, Field(description="cosines that describe a fraction to the network")]

# --- Optimizer -------------------------------------------------------------------------------------------------------

QAdamEps = Annotated[Positive, Field(description="epsilon of Adam; 1.5e-4 is usual for Atari")]
QMaxGradNorm = Annotated[
    Positive | None,
    Search(0.3, 10.0, log=True),
    Field(description="global norm to which larger gradients are clipped; null: no clipping"),
]

# --- Algorithm: targets ----------------------------------------------------------------------------------------------

GammaStart = Annotated[
    OpenFraction | None,
    FIXED_BUFFER,
    Field(description="gamma at first, and after a reset; it moves to gamma over anneal_updates; null: always gamma"),
]
AnnealUpdates = Annotated[
    Count, Field(description="gradient steps over which n_step_start and gamma_start move to n_step and gamma")
]
DoubleQ = Annotated[Switch, Field(description="selection of the target's action by the online network (Double DQN)")]
Munchausen = Annotated[
    Switch,
    Field(
        description="Munchausen targets: a bonus for actions that the policy prefers, and soft values; needs "
        "double_q: false"
    ),
]
MunchausenAlpha = Annotated[Fraction, Field(description="weight of the Munchausen bonus")]
MunchausenTau = Annotated[
    Positive,
    Field(description="temperature of the softmax policy in Munchausen targets, in the unit of the rewards"),
]
MunchausenClip = Annotated[
    float,
    Le(0.0),
    REAL,
    Field(description="smallest Munchausen bonus, before munchausen_alpha, in the unit of the rewards"),
]
TargetUpdateInterval = Annotated[
    Count,
    Search(10, 1_000, log=True),
    Field(description="gradient steps between copies of the weights into the target network"),
]
TargetTau = Annotated[
    float,
    Gt(0.0),
    Le(1.0),
    REAL,
    Field(
        description="share of the distance to the weights that the target network moves; below 1, a soft update at "
        "every gradient step, it needs target_update_interval 1; 1: a copy"
    ),
]
SelfPredictionCoef = Annotated[
    NonNegative, Field(description="weight of the self-prediction loss beside that of the values")
]
Kappa = Annotated[
    NonNegative, Field(description="size up to which errors count squared (Huber); 0: the plain quantile loss")
]

# --- Algorithm: acting and resets ------------------------------------------------------------------------------------

ActWithTarget = Annotated[
    Switch, Field(description="actions by the target network, in training and evaluation; sensible with tau below 1")
]
EpsilonStart = Annotated[
    Fraction,
    Field(
        description="share of random actions at step 0, where the decay begins; before learning_starts all are random"
    ),
]
EpsilonEnd = Annotated[
    Fraction, Search(0.01, 0.2, log=True), Field(description="share of random actions after the decay")
]
ExplorationFraction = Annotated[
    Fraction, Search(0.02, 0.5, log=True), Field(description="part of total_timesteps over which epsilon decays")
]
EvaluationEpsilon = Annotated[Fraction, Field(description="share of random actions in evaluations; 0.001 on Atari")]
ResetInterval = Annotated[
    Count | None,
    Field(
        description="gradient steps between resets, counted as if learning_starts were 0, of which the last leaves as "
        "many before the end of the run: the hidden layers after the encoder get new weights, Adam starts again; null: "
        "no resets"
    ),
]
ResetShare = Annotated[
    Fraction,
    Field(description="share of the encoder's weights that a reset keeps; the rest comes from new random weights"),
]

# --- Checks ----------------------------------------------------------------------------------------------------------


def check_gradient_steps(gradient_steps: int) -> None:
    if gradient_steps == 0:
        raise ValueError("gradient_steps must be -1 or >= 1, got 0")


def check_target_update(tau: float, target_update_interval: int) -> None:
    if tau < 1.0 and target_update_interval > 1:
        raise ValueError(
            f"tau {tau:g} moves the target network at every gradient step, but target_update_interval is "
            f"{target_update_interval}; set target_update_interval: 1 for soft updates, or tau: 1 for copies"
        )


def check_annealing(n_step_start: int | None, gamma_start: float | None, gamma: float, her: str) -> None:
    if n_step_start is None and gamma_start is None:
        return
    if her != "none":
        raise ValueError("her replaces goals of single steps; n_step_start and gamma_start must be null with it")
    if gamma_start is not None and gamma >= 1.0:
        raise ValueError(f"gamma_start needs a gamma below 1 to move to, got {gamma:g}")


def check_self_prediction(self_prediction_steps: int, her: str) -> None:
    if self_prediction_steps and her != "none":
        raise ValueError("her replaces goals of single steps; self_prediction_steps must be 0 with it")


def check_act_with_target(act_with_target: bool, noisy: bool) -> None:
    if act_with_target and noisy:
        raise ValueError("act_with_target: true acts without noise, so that noisy explores nothing; set noisy: false")


def check_munchausen(munchausen: bool, double_q: bool) -> None:
    if munchausen and double_q:
        raise ValueError(
            "munchausen: true takes the mean over all actions, so that double_q selects none; set double_q: false"
        )


Q_CHECKS = (
    check_replay,
    check_hindsight,
    check_gradient_steps,
    check_target_update,
    check_network,
    check_target_range,
    check_act_with_target,
    check_annealing,
)
