"""The settings that the shared parts of learning from a dataset take."""

from typing import TypeAlias

from rl_training.hparams.bc import BCHParams
from rl_training.hparams.cql import ConservativeHParams
from rl_training.hparams.iql import ExpectileHParams, IQLHParams
from rl_training.hparams.mbpo import MOPOHParams
from rl_training.hparams.rebrac import BehaviorRegularizedHParams

LearnerHParams: TypeAlias = ExpectileHParams | BCHParams  # of the offline learner
DatasetCriticHParams: TypeAlias = BehaviorRegularizedHParams | ConservativeHParams  # of the actor-critics
OfflineHParams: TypeAlias = IQLHParams | BCHParams | MOPOHParams | DatasetCriticHParams  # of the memory of a dataset
