"""The policy of an algorithm as one module, as it is exported: normalisation, network, best action."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

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

    carry: ClassVar[Mapping[str, int]] = {}
    obs_mean: Tensor
    obs_scale: Tensor

    def __init__(self, network: nn.Module, distribution: Greedy, normalizer: ObsNormalizer | None = None) -> None:
        super().__init__()
        self.network, self._distribution = network, distribution
        self.normalizes = normalizer is not None
        if normalizer is not None:
            for name, values in zip(("obs_mean", "obs_scale"), normalizer.constants(), strict=True):
                self.register_buffer(name, values.clone())

    def forward(self, obs: Any, action_mask: Tensor | None) -> Decision:
        outputs: Tensor = self.network(normalized(obs, self.obs_mean, self.obs_scale) if self.normalizes else obs)
        actions = self._distribution.greedy(outputs, action_mask)
        is_choice = isinstance(self._distribution, Categorical | Bernoulli)
        return Decision(actions, outputs[:, : self._distribution.num_outputs] if is_choice else None)
