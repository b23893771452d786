"""The settings that the shared learner of the actor-critics takes, and those that its parts take."""

from typing import TypeAlias

from rl_training.hparams.cql import CalQLHParams, CQLHParams
from rl_training.hparams.crossq import CrossQHParams
from rl_training.hparams.discrete_sac import DiscreteSACHParams
from rl_training.hparams.mbpo import MBPOHParams, MOPOHParams
from rl_training.hparams.rebrac import BehaviorRegularizedHParams
from rl_training.hparams.redq import REDQHParams
from rl_training.hparams.rlpd import RLPDHParams
from rl_training.hparams.sac import SACHParams
from rl_training.hparams.simbav2 import SimBaV2HParams
from rl_training.hparams.td3 import TD3HParams
from rl_training.hparams.tqc import TQCHParams

# The model-based algorithms and CQL train a soft actor-critic, too.
SoftHParams: TypeAlias = (
    SACHParams | REDQHParams | TQCHParams | RLPDHParams | MBPOHParams | MOPOHParams | CQLHParams | CalQLHParams
)
# Online, without a model of the environment: critics of their own sizes, and weight decay.
ModelFreeHParams: TypeAlias = SACHParams | REDQHParams | TQCHParams | RLPDHParams | TD3HParams
DelayedHParams: TypeAlias = TD3HParams | BehaviorRegularizedHParams
MLPHParams: TypeAlias = SoftHParams | DelayedHParams  # of networks that `build_model` builds
TemperatureHParams: TypeAlias = SoftHParams | CrossQHParams | SimBaV2HParams | DiscreteSACHParams
ActorCriticHParams: TypeAlias = TemperatureHParams | DelayedHParams
OnlineHParams: TypeAlias = (
    SACHParams
    | REDQHParams
    | TQCHParams
    | RLPDHParams
    | TD3HParams
    | MBPOHParams
    | CrossQHParams
    | SimBaV2HParams
    | CalQLHParams
    | DiscreteSACHParams
)
