"""Periodic resets of a network: what it learned stays in the replay buffer, and new weights learn from it again.

    encoder := share * encoder + (1 - share) * new weights        everything after it := new weights

A model of transitions between features, if there is one, is treated as the encoder is.

Nikishin et al. 2022, The primacy bias in deep reinforcement learning; D'Oro et al. 2023, Sample-efficient reinforcement
learning by breaking the replay ratio barrier; the shares are those of Schwarzer et al. 2023, Bigger, better, faster.
"""

import copy

import torch
from torch import Tensor, nn

from rl_training.core.seeding import Streams
from rl_training.errors import ConfigError
from rl_training.learners.flat_module import FlatModule
from rl_training.models.encoders import Encoder
from rl_training.models.layers import draw_weights
from rl_training.models.self_prediction import Transition


class ResetWeights:
    """New weights of a network for each reset. They depend on its number alone, so that a resumed run has the same."""

    def __init__(self, network: nn.Module, streams: Streams, *, share: float) -> None:
        self._module = copy.deepcopy(network).cpu()  # where the first weights were drawn, too
        self._new = FlatModule(self._module)
        self._streams = streams
        parts = dict(self._module.named_modules())
        encoders = tuple(f"{name}." for name, part in parts.items() if isinstance(part, Encoder | Transition))
        self._kept = self._new.per_parameter(lambda name, _: share if name.startswith(encoders) else 0.0)
        for name, part in parts.items():
            if not hasattr(part, "reset_parameters") and next(part.parameters(recurse=False), None) is not None:
                raise ConfigError(
                    "algo_kwargs.reset_interval needs layers that can draw new weights, but "
                    f"{name or 'the network'} ({type(part).__name__}) has no method reset_parameters"
                )

    def of(self, params: Tensor, *number: int) -> Tensor:
        """Return the weights after a reset of `params`; `number` names the reset and the network."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self._streams.integer("reset", *number))
            draw_weights(self._module)
        return torch.lerp(self._new.params.to(params.device), params, self._kept.to(params.device))
