"""Going on in an environment from where a run on a dataset stopped: what was learnt, and what it was learnt from."""

from typing import cast

from rl_training.algorithms.offline import OfflineLearner
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.schema import transition_fields
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, open_checkpoint
from rl_training.experiment.manifest import POLICY, TRAINING
from rl_training.hparams.offline import IQLHParams, IQLOnlineHParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run


class StartFrom(Callback):
    """At the run's beginning: loads the offline run's checkpoint, and fills the memory with its dataset."""

    def on_start(self, run: Run) -> None:
        hparams = cast(IQLOnlineHParams, run.config.hparams)
        if hparams.init_from is None or run.step > 0:  # if resumed, its own checkpoint has all of it
            return
        checkpoint = open_checkpoint(find_checkpoint(hparams.init_from), parts=(POLICY, TRAINING))
        learnt_with = checkpoint.config.hparams
        if not isinstance(learnt_with, IQLHParams):
            raise CheckpointError(f"init_from: {checkpoint.path} is of {checkpoint.config.algo}, but must be of iql")
        dataset = load_transition_dataset(learnt_with, env_factory=run.env_factory)
        rows, capacity = len(dataset), hparams.buffer_capacity
        if rows > capacity:
            raise ConfigError(f"buffer_capacity must hold the dataset of {rows:,} transitions, got {capacity:,}")
        cast(OfflineLearner, run.algorithm).start_from(checkpoint.load(POLICY), checkpoint.load(TRAINING)["algorithm"])
        run.memory.add({name: getattr(dataset, name) for name in transition_fields(dataset.spaces)})


def start_from(run: Run) -> list[Callback]:
    """What a run that is continued in an environment needs besides the loop."""
    return [StartFrom()]
