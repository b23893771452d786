"""A categorical distribution of the return over fixed atoms for every action."""

from collections.abc import Sequence

from torch import nn

from rl_training.models.layers import PLAIN, HeadStyle, action_layers


class MLPC51QNetwork(nn.Sequential):
    """(batch, *obs) -> (batch, actions, atoms): logits of the atoms."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        encoder: nn.Module | None = None,
        *,
        num_atoms: int = 51,
        style: HeadStyle = PLAIN,
    ) -> None:
        layers = action_layers(obs_dim, hidden_sizes, action_dim, num_atoms, style=style)
        super().__init__(encoder or nn.Identity(), *layers, nn.Unflatten(1, (action_dim, num_atoms)))
