"""A Q-network that also predicts its own representations of the next observations (SPR).

    z_0 = scale(encoder(s_0))    z_k = scale(transition(z_{k-1}, a_{k-1}))    prediction_k = predictor(projection(z_k))

The projection is the first dense layer of the head, without its activation. `scale` maps the numbers of each image of
features to [0, 1]; the head reads scaled features, too.

Schwarzer et al. 2021, Data-efficient reinforcement learning with self-predictive representations.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_kind
from rl_training.models.encoders import Encoder, XavierConv
from rl_training.models.layers import Dueling, NoisyLinear

_SCALE_EPS = 1e-5  # keeps features that are all equal finite


@runtime_checkable
class SelfPredictionSettings(Protocol):
    """The settings of algorithms that can predict their own representations."""

    @property
    def self_prediction_steps(self) -> int: ...


def predicted_steps(setup: Setup[Any]) -> int:
    """Return how many steps a run predicts: 0 without the setting, and for observations that are no images."""
    hparams, is_image = setup.hparams, observation_kind(setup.spaces.observation) == "image"
    return hparams.self_prediction_steps if is_image and isinstance(hparams, SelfPredictionSettings) else 0


def scale(features: Tensor) -> Tensor:
    """Map the numbers of each row to [0, 1]: (batch, channels, height, width) -> same."""
    low, high = features.amin((1, 2, 3), keepdim=True), features.amax((1, 2, 3), keepdim=True)
    return (features - low) / (high - low + _SCALE_EPS)


class Transition(nn.Sequential):
    """(batch, channels + actions, height, width) -> (batch, channels, height, width): the features one step later."""

    def __init__(self, channels: int, num_actions: int) -> None:
        super().__init__(
            XavierConv(channels + num_actions, channels), nn.ReLU(), XavierConv(channels, channels), nn.ReLU()
        )


class SelfPredictiveNetwork(nn.Module):
    """(batch, *obs) -> the outputs of a Q-network, whose first layer encodes images, followed by dense layers."""

    def __init__(self, network: nn.Sequential, num_actions: int) -> None:
        super().__init__()
        encoder, *head = network
        assert isinstance(encoder, Encoder)
        convolutions = [part for part in encoder.modules() if isinstance(part, nn.Conv2d)]
        self.num_actions = num_actions
        self.encoder = Encoder(*list(encoder)[:-1])  # without the last layer, which flattens
        self.head = nn.Sequential(*head)
        self.transition = Transition(convolutions[-1].out_channels, num_actions)
        size = sum(layer.out_features for layer in self._projections())
        self.predictor = nn.Linear(size, size)

    def forward(self, obs: Tensor, method: Callable[..., Any] | None = None, *inputs: Tensor) -> Any:
        """Return the values, or what one of the methods below returns: `FlatModule.apply` can call only `forward`."""
        return self.head(self._encode(obs).flatten(1)) if method is None else method(self, obs, *inputs)

    def predict(self, obs: Tensor, actions: Tensor) -> tuple[Any, Tensor]:
        """Return the values, and predictions of what `project` returns for the observations after each action.

        `actions`: (batch, steps), the one taken at `obs` and those that followed. Predictions: (batch, steps, numbers).
        """
        first = features = self._encode(obs)
        choices = torch.arange(self.num_actions, device=obs.device)
        planes = (actions[..., None] == choices).float()[..., None, None].expand(-1, -1, -1, *features.shape[2:])
        following = []
        for action in planes.unbind(1):
            features = scale(self.transition(torch.cat((features, action), 1)))
            following.append(features)
        projected = self._project(torch.cat(following))
        predictions = self.predictor(projected).unflatten(0, (len(following), -1)).transpose(0, 1)
        return self.head(first.flatten(1)), predictions

    def project(self, obs: Tensor) -> Tensor:
        """Return what is predicted of observations: (batch, *obs) -> (batch, numbers)."""
        return self._project(self._encode(obs))

    def _encode(self, obs: Tensor) -> Tensor:
        return scale(self.encoder(obs))

    def _project(self, features: Tensor) -> Tensor:
        return torch.cat([layer(features.flatten(1)) for layer in self._projections()], 1)

    def _projections(self) -> list[nn.Linear | NoisyLinear]:
        """Return the first dense layers of the head: one, or that of each dueling stream."""
        first = self.head[0]
        streams: list[Any] = [[first]]
        if isinstance(first, Dueling):
            streams = [first.value, first.advantages]
        return [stream[0] for stream in streams]
