"""Continue a run on a dataset in an environment: start from its networks and its dataset."""

from typing import cast

from rl_training.core.spaces import transition_fields
from rl_training.core.state_checks import loading
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import CheckpointError, ConfigError, UserError
from rl_training.experiment.manifest import POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from rl_training.hparams.base import HParams
from rl_training.hparams.cql import CalQLHParams, CQLHParams
from rl_training.hparams.iql import IQLHParams, IQLOnlineHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.offline import OfflineLearner
from rl_training.runtime.dataset_loading import find_arrays, load_transition_dataset
from rl_training.runtime.resuming import run_dir_of
from rl_training.runtime.run_spaces import network_spaces
from rl_training.runtime.setup import PreparedRun, RunOptions

_SAME_SETTINGS = ("network", "hidden_sizes", "layer_norm", "normalize_observations")  # they shape what is loaded


def begin_from_offline_run(prepared: PreparedRun, options: RunOptions) -> None:
    """Load the checkpoint of the offline run and fill the memory with its dataset. A resumed run already has both."""
    hparams = cast(IQLOnlineHParams, prepared.setup.hparams)
    if hparams.init_from is None:
        return
    try:
        checkpoint = _open(hparams, IQLHParams, "iql")
        dataset = _dataset(checkpoint, prepared, options)
        algorithm = cast(OfflineLearner, prepared.algorithm)
        policy, training = checkpoint.load(POLICY), checkpoint.load(TRAINING)
        with loading(checkpoint.path):
            algorithm.start_from(policy, training["algorithm"])
    except UserError as error:
        raise type(error)(f"iql_online.algo_kwargs.init_from: {error}") from error
    rows, capacity = len(dataset), hparams.buffer_capacity
    if rows > capacity:
        raise ConfigError(
            f"iql_online.algo_kwargs.buffer_capacity must hold the {rows:,} transitions of init_from's dataset, "
            f"got {capacity:,}"
        )
    cast(ReplayBuffer, prepared.memory).add_dataset(
        {name: getattr(dataset, name) for name in transition_fields(dataset.spaces)}
    )


def begin_from_cql_run(prepared: PreparedRun, options: RunOptions) -> None:
    """Load what a run of cql has learned. The dataset is the one that the settings of this run name."""
    hparams = cast(CalQLHParams, prepared.setup.hparams)
    if hparams.init_from is None:
        return
    try:
        checkpoint = _open(hparams, CQLHParams, "cql")
        policy, training = checkpoint.load(POLICY), checkpoint.load(TRAINING)
        with loading(checkpoint.path):
            cast(ActorCritic, prepared.algorithm).start_from(policy, training["algorithm"])
    except UserError as error:
        raise type(error)(f"cal_ql.algo_kwargs.init_from: {error}") from error


def _open(hparams: IQLOnlineHParams | CalQLHParams, kind: type[HParams], algo: str) -> Checkpoint:
    """Open the checkpoint of an offline run whose networks are those of this one. `kind`: its settings."""
    assert hparams.init_from is not None
    checkpoint = open_checkpoint(find_checkpoint(hparams.init_from), parts=(POLICY, TRAINING))
    offline_hparams = checkpoint.config.hparams
    if not isinstance(offline_hparams, kind):
        raise CheckpointError(f"{checkpoint.path} is a run of {checkpoint.config.algo}, but must be one of {algo}")
    if not checkpoint.is_resumable:
        raise CheckpointError(
            f"{checkpoint.path} holds the policy only (a best evaluation), without the critics; give the run folder"
        )
    for name in _SAME_SETTINGS:
        found, expected = getattr(hparams, name), getattr(offline_hparams, name)
        if found != expected:
            raise ConfigError(f"{name} must be as in {checkpoint.path}, {expected}, got {found}")
    return checkpoint


def _dataset(checkpoint: Checkpoint, prepared: PreparedRun, options: RunOptions) -> TransitionDataset:
    """Load the dataset of the offline run, which must fit the environment of this run."""
    offline_hparams, spaces = cast(IQLHParams, checkpoint.config.hparams), prepared.setup.spaces
    is_random = offline_hparams.dataset_kind == "random"  # generated in the environment of the offline run
    factory = options.factory_for(checkpoint.config) if is_random else prepared.env_factory
    allow, arrays = options.allow_entry_points, None
    if offline_hparams.dataset_kind == "arrays":
        arrays = find_arrays(None, run_dir_of(checkpoint), allow_entry_points=allow)
    dataset = load_transition_dataset(offline_hparams, env_factory=factory, allow_entry_points=allow, arrays=arrays)
    trained_on = network_spaces(dataset.spaces, checkpoint.config)
    if (trained_on.observation, trained_on.action) != (spaces.observation, spaces.action):
        raise CheckpointError(
            f"{checkpoint.path} was trained on {trained_on.observation} and {trained_on.action}, but the "
            f"environment has {spaces.observation} and {spaces.action}"
        )
    return dataset
