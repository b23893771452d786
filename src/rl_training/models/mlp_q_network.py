"""Q-values of all actions at an observation."""

from collections.abc import Sequence

from torch import nn

from rl_training.models.layers import PLAIN, HeadStyle, action_layers


class MLPQNetwork(nn.Sequential):
    """(batch, *obs) -> (batch, actions): an optional encoder, hidden layers, one output per action."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        encoder: nn.Module | None = None,
        *,
        style: HeadStyle = PLAIN,
    ) -> None:
        layers = action_layers(obs_dim, hidden_sizes, action_dim, style=style)
        super().__init__(encoder or nn.Identity(), *layers)
