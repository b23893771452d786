"""Dynamics models of MBPO and MOPO: the next observation and the reward, with their uncertainty."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.layers import StackedLinear, mlp

MAX_LOG_VARIANCE, MIN_LOG_VARIANCE = 0.5, -10.0  # initial values of the bounds (Chua et al. 2018, appendix A.1)


class Prediction(NamedTuple):
    """The prediction of each member: a Gaussian over (next_obs - obs, reward), the reward last."""

    mean: Tensor  # (members, batch, obs + 1)
    log_variance: Tensor  # the same shape
    termination_logit: Tensor | None  # (members, batch), if termination is learned


class MLPMOPOEnsembleModel(nn.Module):
    """An ensemble of probabilistic networks; the members share observations and actions or have one set each.

    (batch, obs), (batch, actions), or both with a leading dimension of members -> `Prediction`. Inputs are normalised
    by the buffers `input_mean` and `input_std`, (obs + actions,). Log-variances are between two learned bounds per
    output, so that a variance far from the data can neither vanish nor explode.
    """

    input_mean: Tensor
    input_std: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (200, 200, 200, 200),
        *,
        num_members: int = 7,
        learned_termination: bool = False,
    ) -> None:
        super().__init__()
        self.num_outputs = obs_dim + 1
        dense = partial(_pets_linear, num_members)
        outputs = 2 * self.num_outputs + int(learned_termination)
        self.layers = nn.Sequential(*mlp(obs_dim + action_dim, hidden_sizes, outputs, activation=nn.SiLU, dense=dense))
        self.max_log_variance = nn.Parameter(torch.full((self.num_outputs,), MAX_LOG_VARIANCE))
        self.min_log_variance = nn.Parameter(torch.full((self.num_outputs,), MIN_LOG_VARIANCE))
        self.register_buffer("input_mean", torch.zeros(obs_dim + action_dim))
        self.register_buffer("input_std", torch.ones(obs_dim + action_dim))

    def forward(self, obs: Tensor, actions: Tensor) -> Prediction:
        inputs = (torch.cat((obs, actions), -1) - self.input_mean) / self.input_std
        outputs = self.layers(inputs)
        mean, log_variance, *logit = outputs.split((self.num_outputs,) * 2 + (1,) * self._num_logits(outputs), -1)
        log_variance = self.max_log_variance - F.softplus(self.max_log_variance - log_variance)
        log_variance = self.min_log_variance + F.softplus(log_variance - self.min_log_variance)
        return Prediction(mean, log_variance, logit[0].squeeze(-1) if logit else None)

    def _num_logits(self, outputs: Tensor) -> int:
        return outputs.shape[-1] - 2 * self.num_outputs


def pick_members(named: Mapping[str, Tensor], members: Tensor) -> dict[str, Tensor]:
    """Return the parameters of an ensemble of these members only, in this order.

    The members differ in the parameters of the layers; all share the bounds.
    """
    return {name: value[members] if is_member_parameter(name) else value for name, value in named.items()}


def is_member_parameter(name: str) -> bool:
    """Return whether every member has its own copy of a parameter, (members, ...)."""
    return name.startswith("layers.")


def _pets_linear(num_members: int, in_features: int, out_features: int) -> StackedLinear:
    """Return a layer initialised as in PETS: normal weights of deviation 1 / (2 sqrt(inputs)), truncated at two."""
    layer = StackedLinear(num_members, in_features, out_features)
    std = 0.5 / math.sqrt(in_features)
    nn.init.trunc_normal_(layer.weight, std=std, a=-2.0 * std, b=2.0 * std)
    nn.init.zeros_(layer.bias)
    return layer
