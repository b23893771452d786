"""What the builders of the DQN family share: networks, their checks, optimizers and augmentation."""

from collections.abc import Callable

from torch import nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_kind
from rl_training.errors import ConfigError
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.iqn import IQNHParams
from rl_training.hparams.q_learning import QLearningHParams
from rl_training.learners.augmentation import Augmentation
from rl_training.learners.networks import build_network, check_output, trial_obs
from rl_training.learners.optim import ClippedAdam, clipped_adam, matrix_decay
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import HeadStyle
from rl_training.models.self_prediction import predicted_steps


def build_augmentation(setup: Setup[QLearningHParams]) -> Augmentation | None:
    """Return the augmentation of images that the settings ask for; other observations stay as they are."""
    kind, space = setup.hparams.augmentation, setup.spaces.observation
    if kind == "none" or observation_kind(space) != "image":
        return None
    return Augmentation(space, intensity=kind == "shift_and_intensity", future_steps=predicted_steps(setup))


def q_optimizer(network: nn.Module, setup: Setup[QLearningHParams]) -> ClippedAdam:
    """Return Adam for the parameters of a network, with weight decay of its matrices."""
    hparams = setup.hparams
    return clipped_adam(hparams, hparams.learning_rate, decay=matrix_decay(network, hparams.weight_decay))


def build_q_network(
    setup: Setup[QLearningHParams],
    kind: Callable[..., nn.Module],
    *,
    check: Callable[[nn.Module], None] | None = None,
    **sizes: int,
) -> nn.Module:
    """Return the user's network, or one of this kind for the run's spaces: an encoder and the recipe's layers.

    `check` raises for a network of the user that does not fit; the learner checks the Q-values.
    """
    hparams = setup.hparams
    style = HeadStyle(
        layer_norm=hparams.layer_norm,
        dueling=hparams.dueling,
        noisy_sigma=hparams.noisy_sigma if hparams.noisy else None,
        residual=hparams.network == "simba",
    )
    num_actions = setup.spaces.num_actions

    def build() -> nn.Module:
        width = hparams.encoder_width if hparams.encoder == "impala" else None
        encoder, features = build_encoder(setup.spaces.observation, impala_width=width)
        return kind(features, num_actions, hparams.hidden_sizes, encoder, style=style, **sizes)

    return build_network(setup, build, check)


def check_munchausen_setup(setup: Setup[DQNHParams] | Setup[IQNHParams]) -> None:
    """Raise for Munchausen targets in an environment with action masks."""
    if setup.hparams.munchausen and setup.spaces.action_mask:
        raise ConfigError(
            "algo_kwargs.munchausen: true does not work with action masks: its bonus needs the mask of the state "
            "itself, and the replay buffer stores that of its successor; set it to false"
        )


def check_per_action(setup: Setup[QLearningHParams], setting: str) -> Callable[[nn.Module], None]:
    """Return the check of a network with several numbers per action: as many as the setting of this name says."""
    sizes = {
        "observations": 2,
        "actions": setup.spaces.num_actions,
        setting: getattr(setup.hparams, setting),
    }
    return lambda network: check_output(network, (trial_obs(setup),), sizes)
