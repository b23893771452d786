"""Field types and checks that the actor-critics share, those that learn from a dataset among them."""

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from rl_training.hparams.fields import REAL, Count, Fraction, NonNegative, Positive, Real, Search, Sizes, Switch

# --- Data ------------------------------------------------------------------------------------------------------------

UpdatesPerStep = Annotated[Positive, Field(description="critic updates per env step")]
OfflineRatio = Annotated[Fraction, Field(description="share of each batch that comes from the dataset")]
RunningNormalization = Annotated[
    Switch | Literal["auto"],
    Field(
        description="normalization of observations by the mean and standard deviation of all training steps so far; "
        "auto: with network: simba, of vectors"
    ),
]
ObservationClip = Annotated[
    Positive | Literal["auto"] | None,
    Field(
        description="largest normalized observation, to which others are clipped; auto: 10, with network: simba null; "
        "null: no clipping"
    ),
]

# --- Network ---------------------------------------------------------------------------------------------------------

ActorHiddenSizes = Annotated[
    Sizes,
    Search(choices=((64, 64), (128, 128), (256, 256))),
    Field(description="units of the actor's hidden layers after the encoder"),
]
CriticHiddenSizes = Annotated[Sizes, Field(description="units of the critics' hidden layers after the encoder")]
OwnCriticHiddenSizes = Annotated[
    Sizes | None, Field(description="units of the critics' hidden layers after the encoder; null: hidden_sizes")
]
CriticLayerNorm = Annotated[
    Switch,
    Search(choices=(False, True)),
    Field(description="layer normalization of the critics' hidden layers; values diverge far less with it"),
]
NumCritics = Annotated[Count, Field(description="critics in the ensemble")]

# --- Optimizer -------------------------------------------------------------------------------------------------------

AlphaLearningRate = Annotated[
    Positive | None, Field(description="learning rate of the temperature; null: same as learning_rate")
]

# --- Algorithm -------------------------------------------------------------------------------------------------------

Tau = Annotated[
    Fraction,
    Search(1e-3, 0.05, log=True),
    Field(description="share of the distance to the critics that the target networks move per update"),
]
PolicyDelay = Annotated[Count, Field(description="critic updates per actor update")]
TargetsDelay = Annotated[Count, Field(description="critic updates per update of the actor and the target networks")]
NoiseColor = Annotated[
    float,
    Ge(0.0),
    Le(2.0),
    REAL,
    Search(choices=(0.0, 0.5, 1.0)),
    Field(
        description="color of the exploration noise: its power falls with frequency f as 1 / f ** color; 0: white, "
        "steps are independent; 1: pink; 2: red, slow drifts"
    ),
]
TargetNoise = Annotated[NonNegative, Field(description="standard deviation of the noise on the target's actions")]
TargetNoiseClip = Annotated[NonNegative, Field(description="largest noise on the target's actions")]
Temperature = Annotated[
    Positive | Literal["auto"],
    Field(description="temperature: weight of the entropy; auto: learned, so that the entropy meets target_entropy"),
]
InitialTemperature = Annotated[Positive, Field(description="first temperature with alpha: auto")]
TargetEntropy = Annotated[
    Real | Literal["auto"],
    Field(
        description="entropy that alpha: auto aims at, in nats, of actions in [-1, 1]; auto: minus the number of "
        "action dimensions"
    ),
]
HalfTargetEntropy = Annotated[
    Real | Literal["auto"],
    Field(
        description="entropy that alpha: auto aims at, in nats, of actions in [-1, 1]; auto: minus half the number of "
        "action dimensions"
    ),
]
EntropyInTarget = Annotated[
    Switch, Field(description="entropy of the next action as part of the critics' target, as in SAC")
]
SubsetSize = Annotated[
    Count, Field(description="critics sampled for each update; the target uses the smallest of their values")
]

# --- Checks ----------------------------------------------------------------------------------------------------------


def check_subset(num_critics: int, subset_size: int) -> None:
    if subset_size > num_critics:
        raise ValueError(f"subset_size must be at most num_critics, {num_critics}, got {subset_size}")


def check_plain_replay(n_step: int, prioritized: bool) -> None:
    if n_step > 1 or prioritized:
        raise ValueError("n_step must be 1 and prioritized false: the rows of a dataset are single steps, all alike")


def check_whole_shares(batch_size: int, offline_ratio: float) -> None:
    rows = batch_size * offline_ratio
    if not rows.is_integer():
        raise ValueError(
            f"offline_ratio must give a whole number of rows: {offline_ratio:g} of batch_size {batch_size} is {rows:g}"
        )
