"""Field types that settings classes share: each carries its range and its description.

A settings class then reads `gamma: Discount = 0.99`. A field that only one class has is described there.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StrictBool

from rl_training.hparams.datasets import HELD_OUT_WITHOUT_ENV, DatasetKind


@dataclass(frozen=True, slots=True)
class Fixed:
    """Mark of a setting that cannot change when a run is resumed: the saved state would mean something else."""

    reason: str


@dataclass(frozen=True, slots=True)
class Search:
    """Mark of a setting that `tune` varies: between `low` and `high`, or among `choices`.

    `one_minus`: the range is that of 1 - value, as of a discount factor on a logarithmic scale.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    one_minus: bool = False
    choices: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether a value is among the choices or within the range."""
        if self.choices or not isinstance(value, int | float):
            return value in self.choices
        return self.low <= (1.0 - value if self.one_minus else value) <= self.high


def _whole_number(value: Any) -> Any:
    """Accept `1e5` for 100000 in YAML, but neither `true` nor "64" for a number."""
    if isinstance(value, bool | str):
        raise ValueError("must be a whole number")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("must be a whole number")
        if abs(value) >= 2**63:
            raise ValueError("must have at most 63 bits")
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("must be a number")
    return value


def expand_home(path: str | Path) -> Path:
    """Replace a leading `~` or `~user` by the home folder; one that is unknown stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (`Path.expanduser` raises for an unknown user)


def _path_as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


# --- Kinds of values -------------------------------------------------------------------------------------------------

# Bounds stand before these in an annotation: then the JSON Schema shows them.
WHOLE = BeforeValidator(_whole_number)
REAL = BeforeValidator(_number)

Real = Annotated[float, REAL]
Switch = StrictBool
Count = Annotated[int, Ge(1), WHOLE]
CountOrZero = Annotated[int, Ge(0), WHOLE]
AtLeastTwo = Annotated[int, Ge(2), WHOLE]
Fraction = Annotated[float, Ge(0.0), Le(1.0), REAL]
OpenFraction = Annotated[float, Gt(0.0), Lt(1.0), REAL]
Positive = Annotated[float, Gt(0.0), REAL]
NonNegative = Annotated[float, Ge(0.0), REAL]
Sizes = tuple[Count, ...]
HomePath = Annotated[Path, AfterValidator(expand_home)]
PathOrNull = Annotated[HomePath | None, PlainSerializer(_path_as_text, return_type=str | None)]

# --- Data: replay ----------------------------------------------------------------------------------------------------

FIXED_BUFFER = Fixed("the saved replay buffer is laid out by it")
BufferCapacity = Annotated[Count, FIXED_BUFFER, Field(description="capacity of the replay buffer in transitions")]
MemoryKind = Annotated[
    Literal["ram", "mmap"],
    Field(
        description="where the replay buffer is stored; mmap: in a file, of which the system keeps in memory what fits"
    ),
]
_Transitions = Annotated[Count, Field(description="transitions per gradient step")]
BatchSize = Annotated[_Transitions, Search(choices=(32, 64, 128, 256, 512))]
LargeBatchSize = Annotated[_Transitions, Search(choices=(256, 512, 1_024))]
LearningStarts = Annotated[CountOrZero, Field(description="env steps of random actions before learning begins")]
StepsBeforeLearning = Annotated[CountOrZero, Field(description="env steps before learning begins")]
TrainFrequency = Annotated[Count, Field(description="env steps between rounds of updates")]
NStep = Annotated[
    Count,
    Fixed("the saved replay buffer holds sums of that many rewards"),
    Field(description="rewards summed before the target bootstraps; fewer at the end of an episode"),
]
Prioritized = Annotated[
    Switch, FIXED_BUFFER, Field(description="sampling of transitions by their TD error (prioritized replay)")
]
PriorityExponent = Annotated[
    NonNegative,
    Fixed("the saved priorities have this exponent"),
    Field(description="exponent of the priorities; 0: uniform sampling"),
]
ImportanceStart = Annotated[Fraction, Field(description="exponent of the importance weights at the first update")]
ImportanceEnd = Annotated[
    Fraction,
    Field(description="exponent of the importance weights at the end of the run; 1: full correction of the sampling"),
]

HindsightGoals = Annotated[
    Literal["none", "future", "final", "episode"],
    FIXED_BUFFER,
    Field(
        description="hindsight experience replay: where in its episode the new goal of a transition was achieved; "
        "future: at it or later; final: at the end; episode: anywhere; none: no new goals"
    ),
]
HindsightRatio = Annotated[
    NonNegative, Field(description="transitions with a new goal per transition with its own, if her is on")
]

# --- Data: datasets --------------------------------------------------------------------------------------------------

DatasetSource = Annotated[
    DatasetKind | None,
    Field(
        description="kind of dataset; null: by the name of the file; random: uniform actions in the run's env; arrays: "
        "given in Python, kept in the run folder"
    ),
]
DatasetPath = Annotated[
    PathOrNull, Field(description="file of an npz, hdf5 or parquet dataset, or folder of a Minari dataset")
]
DatasetId = Annotated[str | None, Field(description="name of a Minari dataset, such as mujoco/hopper/medium-v0")]
DatasetSize = Annotated[
    Count | None,
    Field(description="transitions of a random dataset, null: 10000; of another the first ones to use, null: all"),
]
DatasetSeed = Annotated[
    CountOrZero, Field(description="seed of a random dataset, and of the choice of held-out episodes")
]
HeldOut = Annotated[
    float | None,
    Ge(0.0),
    Lt(1.0),
    REAL,
    Field(
        description="share of the episodes held out from training, for offline evaluation; null: "
        f"{HELD_OUT_WITHOUT_ENV} without an environment, else 0"
    ),
]
FIXED_REWARDS = Fixed("the saved critics have learned values of rewards in this unit")
RewardScale = Annotated[
    Positive | Literal["none", "return"],
    FIXED_REWARDS,
    Field(description="factor on rewards; return: 1000 / (largest - smallest return of the dataset's episodes)"),
]
RewardShift = Annotated[Real, FIXED_REWARDS, Field(description="constant added to the scaled rewards")]
NormalizeObservations = Annotated[
    Switch, Field(description="normalization of observations by the dataset's mean and standard deviation")
]
InitFrom = Annotated[PathOrNull, Fixed("the saved run has begun from it")]

# --- Data: rollouts --------------------------------------------------------------------------------------------------

RolloutLength = Annotated[
    Count,
    Fixed("the saved rollout may be part of one of that length"),
    Field(description="steps per env between updates; a rollout has num_steps * num_envs rows"),
]
NumSteps = Annotated[RolloutLength, Search(choices=(128, 256, 512, 1_024, 2_048))]
UpdateEpochs = Annotated[Count, Search(1, 20, log=True), Field(description="passes over each rollout")]
MinibatchSize = Annotated[
    Count,
    Search(choices=(32, 64, 128, 256, 512)),
    Field(description="rows per gradient step; must divide the rows of a rollout"),
]
Normalize = Annotated[
    Literal["none", "obs", "returns", "both"],
    Field(
        description="normalization by running statistics, saved with the policy; obs: observations; returns: rewards, "
        "by the standard deviation of the return"
    ),
]

# --- Network ---------------------------------------------------------------------------------------------------------

NetworkName = Literal["mlp", "simba"]
NetworkKind = Annotated[
    NetworkName, Field(description="mlp: hidden layers one after the other; simba: residual blocks of their sizes")
]
_LayerSizes = Annotated[Sizes, Field(description="units of the hidden layers after the encoder")]
HiddenSizes = Annotated[_LayerSizes, Search(choices=((64, 64), (128, 128), (256, 256)))]
DeepHiddenSizes = Annotated[_LayerSizes, Search(choices=((128, 128, 128), (256, 256, 256)))]
Activation = Annotated[
    Literal["tanh", "relu"],
    Fixed("the saved weights were learned with it"),
    Search(choices=("tanh", "relu")),
    Field(description="activation function of the hidden layers after the encoder"),
]
SharedTrunk = Annotated[
    Literal["auto", "yes", "no"],
    Field(description="one encoder and hidden layers for policy and value; auto: if there is an image or a Dict"),
]
PolicyOrthogonalInit = Annotated[
    Switch, Field(description="orthogonal initial weights, small at the policy's output; zero biases")
]
LogStdInit = Annotated[Real, Field(description="initial log standard deviation of Box actions, which span [-1, 1]")]

# --- Optimizer -------------------------------------------------------------------------------------------------------

LearningRate = Annotated[
    Positive, Search(1e-5, 1e-2, log=True), Field(description="learning rate of Adam; the initial one if it decays")
]
ActorLearningRate = Annotated[
    Positive | None, Field(description="learning rate of the actor; null: same as learning_rate")
]
PolicyLearningRate = Annotated[
    Positive,
    Search(1e-5, 1e-2, log=True),
    Field(
        description="learning rate of Adam for the critics, the actor and the temperature; the initial one if it decays"
    ),
]
ModelActorLearningRate = Annotated[
    Positive | None, Field(description="learning rate of the actor; null: same as policy_learning_rate")
]
ModelAlphaLearningRate = Annotated[
    Positive | None, Field(description="learning rate of the temperature; null: same as policy_learning_rate")
]
LinearSchedule = Annotated[
    Literal["constant", "linear"],
    Search(choices=("constant", "linear")),
    Field(description="schedule of the learning rates; linear: decay to 0 over the run"),
]
CosineSchedule = Annotated[
    Literal["constant", "cosine"],
    Search(choices=("constant", "cosine")),
    Field(description="schedule of the policy's learning rate; cosine: decay to 0 over the run"),
]
AdamEps = Annotated[Positive, Field(description="epsilon of Adam")]
WeightDecay = Annotated[
    NonNegative,
    Field(description="decoupled weight decay (AdamW) of matrices and convolutions, times the learning rate; 0: none"),
]
MaxGradNorm = Annotated[
    Positive, Search(0.3, 10.0, log=True), Field(description="global norm to which larger gradients are clipped")
]
MaxGradNormOrNull = Annotated[
    Positive | None, Field(description="norm to which larger gradients are clipped; null: no clipping")
]

# --- Algorithm: values -----------------------------------------------------------------------------------------------

Discount = Annotated[
    Fraction, Search(1e-4, 0.1, log=True, one_minus=True), Field(description="discount factor per env step")
]
ClipTargets = Annotated[
    Switch, Field(description="targets clipped to [-1 / (1 - gamma), 0], the range of returns if rewards are -1 and 0")
]

# --- Algorithm: policy gradient --------------------------------------------------------------------------------------

GaeLambda = Annotated[
    Fraction,
    Search(5e-3, 0.2, log=True, one_minus=True),
    Field(description="lambda of generalized advantage estimation: 0 = TD error, 1 = return"),
]
ClipCoef = Annotated[
    Positive,
    Search(0.1, 0.4),
    Field(description="clip range of the probability ratio, 1 ± this; the initial one if it decays"),
]
ClipSchedule = Annotated[
    Literal["constant", "linear"], Field(description="schedule of clip_coef; linear: decay to 0 over the run")
]
ValueClip = Annotated[
    Switch, Field(description="clipping of the value's step by clip_coef, too; only sensible with normalized returns")
]
ValueCoef = Annotated[NonNegative, Search(0.25, 1.0), Field(description="weight of the value's mean squared error")]
EntropyCoef = Annotated[
    NonNegative,
    Search(choices=(0.0, 3e-4, 1e-3, 3e-3, 1e-2)),
    Field(description="weight of the policy's entropy, which keeps it exploring"),
]
TargetKL = Annotated[
    Positive | None,
    Field(description="approximate KL divergence; an update stops at 1.5 times this; null: it never stops early"),
]
NormalizeAdvantages = Annotated[
    Switch, Field(description="scaling of advantages to zero mean and unit standard deviation in each minibatch")
]
RecomputeAdvantages = Annotated[
    Switch, Field(description="new advantages before each epoch, from the values learned so far")
]
SampledEvaluation = Annotated[
    Switch,
    Field(
        description="evaluation and prediction with sampled actions, as is usual for Atari, instead of the most likely "
        "ones"
    ),
]

# --- Algorithm: dynamics models --------------------------------------------------------------------------------------

NumEnsembles = Annotated[Count, Field(description="dynamics models in the ensemble, its members")]
NumElites = Annotated[
    Count, Field(description="members with the smallest error on held-out data; only these are used in rollouts")
]
ModelHiddenSizes = Annotated[Sizes, Field(description="units of each member's hidden layers")]
ModelLearningRate = Annotated[
    Positive, Search(1e-4, 1e-2, log=True), Field(description="learning rate of Adam for the ensemble")
]
ModelBatchSize = Annotated[Count, Field(description="transitions per gradient step of each member")]
ModelPatience = Annotated[
    Count, Field(description="epochs in a row that improve no member by more than 1 %, after which a fit ends")
]
ModelMaxEpochs = Annotated[Count, Field(description="largest number of passes over the data in one fit")]
ModelHoldoutRatio = Annotated[
    OpenFraction, Field(description="share of the transitions held out to evaluate a fit, at most 5000 of them")
]
RolloutHorizon = Annotated[
    Count, Search(1, 10, log=True), Field(description="steps of a rollout, unless it terminates before")
]
SyntheticCapacity = Annotated[
    Count, FIXED_BUFFER, Field(description="largest number of rollout transitions that are kept, for any horizon")
]
SyntheticRefreshes = Annotated[Count, Field(description="latest refreshes whose transitions are kept")]
SyntheticRatio = Annotated[Fraction, Field(description="share of each batch that comes from rollouts")]
Termination = Annotated[
    Literal["auto", "learned", "never"],
    Field(description="what ends a rollout; auto: the environment's rule if it is known, else learned; never: nothing"),
]
