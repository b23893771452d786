"""Networks of the off-policy actor-critics: new ones for the run's spaces, or the user's own, tried first."""

import inspect
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.hparams.actor_critic import ActorCriticHParams, MLPHParams, ModelFreeHParams
from rl_training.hparams.fields import Sizes
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network, check_output, submodules, trial_obs
from rl_training.learners.optim import ClippedAdam, clipped_adam, matrix_decay
from rl_training.learners.scaling import normalizes
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.encoders import build_encoder


def build_model(
    setup: Setup[MLPHParams],
    kind: type[ContinuousActorCritic],
    *,
    num_critics: int,
    by_member: bool = False,
    num_quantiles: int | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Return the user's networks, or new ones of this kind for the run's spaces.

    `by_member`: the recipe also computes the values of some critics alone. `num_quantiles`: outputs of a critic whose
    values are distributions. `dropout`: its rate in the critics.
    """
    hparams, outputs = setup.hparams, kind.outputs_per_action * action_size(setup)

    def build() -> nn.Module:
        return kind(
            lambda: build_encoder(setup.spaces.observation),
            action_size(setup),
            hparams.hidden_sizes,
            critic_hidden_sizes=critic_sizes(hparams),
            num_critics=num_critics,
            num_quantiles=num_quantiles,
            layer_norm=hparams.layer_norm,
            residual=hparams.network == "simba",
            dropout=dropout,
        )

    def check(network: nn.Module) -> None:
        of_critics = {"critics": num_critics, "observations": 2}
        of_critics |= {} if num_quantiles is None else {"quantiles": num_quantiles}
        _check_networks(network, setup, outputs, of_critics, by_member=by_member)

    return build_network(setup, build, check)


def critic_sizes(hparams: MLPHParams) -> Sizes:
    """Return the units of the critics' hidden layers."""
    own = hparams.critic_hidden_sizes if isinstance(hparams, ModelFreeHParams) else None
    return hparams.hidden_sizes if own is None else own


def network_adam(network: FlatModule, hparams: MLPHParams, learning_rate: float) -> ClippedAdam:
    """Return Adam for an actor or critics, with weight decay of their matrices where the settings have it."""
    decay = hparams.weight_decay if isinstance(hparams, ModelFreeHParams) else 0.0
    return clipped_adam(hparams, learning_rate, decay=matrix_decay(network.module, decay))


def action_size(setup: Setup[ActorCriticHParams]) -> int:
    return math.prod(action_field(setup.spaces.action).shape)


def _check_networks(
    network: nn.Module,
    setup: Setup[ActorCriticHParams],
    outputs: int,
    of_critics: Mapping[str, int],
    *,
    by_member: bool,
) -> None:
    """Raise for networks of the user that do not fit, before they learn anything wrong."""
    actor, critics = submodules(network, ("actor", "critics"))
    obs = trial_obs(setup, np.float32 if normalizes(setup) else None)
    actions = torch.zeros((len(obs), *action_field(setup.spaces.action).shape), device=setup.device)
    check_output(actor, (obs,), {"observations": 2, "outputs": outputs}, "actor")
    check_output(critics, (obs, actions), of_critics, "critics")
    if by_member and "members" not in inspect.signature(critics.forward).parameters:
        raise TypeError(
            "the network's critics must take (obs, actions, members=None) and give the values of members alone"
        )
