"""The policy of an algorithm as one module, as it is exported: normalisation, network, best action."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rl_training.core.types import Decision
from rl_training.learners.normalization import ObsNormalizer, normalized
from rl_training.models.distributions import Bernoulli, Categorical


class Greedy(Protocol):
    """The part of a distribution that a policy without exploration needs."""

    num_outputs: int

    def greedy(self, outputs: Tensor, mask: Tensor | None) -> Tensor: ...


class NetworkPolicy(nn.Module):
    """The best action by the outputs of a network, (batch, *obs) -> (batch, outputs)."""

    carry: Mapping[str, int] = MappingProxyType({})
    obs_mean: Tensor
    obs_scale: Tensor

    def __init__(self, network: nn.Module, distribution: Greedy, normalizer: ObsNormalizer | None = None) -> None:
        super().__init__()
        self.network, self._distribution = network, distribution
        self.normalizes = normalizer is not None
        if normalizer is not None:
            self._limit = normalizer.limit
            for name, values in normalizer.constants().items():
                self.register_buffer(name, values.clone())

    def forward(self, obs: Any, action_mask: Tensor | None) -> Decision:
        return self._decide(self.network(self._seen(obs)), action_mask)

    def _seen(self, obs: Any) -> Any:
        return normalized(obs, self.obs_mean, self.obs_scale, self._limit) if self.normalizes else obs

    def _decide(self, outputs: Tensor, action_mask: Tensor | None, carry: tuple[Tensor, ...] = ()) -> Decision:
        actions = self._distribution.greedy(outputs, action_mask)
        is_choice = isinstance(self._distribution, Categorical | Bernoulli)
        return Decision(actions, outputs[:, : self._distribution.num_outputs] if is_choice else None, carry)


class RecurrentNetworkPolicy(NetworkPolicy):
    """The best action by a network with a state: (batch, *obs), (batch, numbers) -> outputs and the next state."""

    def __init__(
        self, network: nn.Module, carry: Mapping[str, int], distribution: Greedy, normalizer: ObsNormalizer | None
    ) -> None:
        """`carry`: the parts of the state, in the order of its columns."""
        super().__init__(network, distribution, normalizer)
        self.carry = carry

    def forward(self, obs: Any, action_mask: Tensor | None, *carry: Tensor) -> Decision:
        outputs, state = self.network(self._seen(obs), torch.cat(carry, 1))
        return self._decide(outputs, action_mask, state.split(tuple(self.carry.values()), 1))
