"""Dreamer's networks: a world model built on a recurrent state-space model, its heads, and the actor and the critic.

`features` are the two parts of a state in one row: (..., deter_size + num_latents * num_classes). Before an episode,
the row is zero.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from rl_training.core.types import Decision
from rl_training.models.dreamer_actions import Actions
from rl_training.models.dreamer_codecs import ObservationCodec
from rl_training.models.dreamer_latents import mixed_log_probs
from rl_training.models.dreamer_rssm import CELLS, RSSM, Cells, Sizes
from rl_training.models.layers import init_truncated, normed_mlp


class Observed(NamedTuple):
    """The outputs of a world model for sequences, (batch, time, ...)."""

    features: Tensor
    posterior: Tensor  # log-probabilities of the latents given the observation, (..., latents, classes)
    prior: Tensor  # the same without the observation
    errors: dict[str, Tensor]  # of each part of the observation decoded from the features, summed over its numbers
    reward_logits: Tensor  # (..., bins)
    continue_logits: Tensor


class WorldModel(nn.Module):
    """Encodes observations, and predicts next states, rewards and whether the episode continues."""

    def __init__(self, space: gym.Space[Any], actions: Actions, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.actions = sizes, actions
        self.codec = ObservationCodec(space, sizes.features, units=sizes.hidden, depth=sizes.depth)
        self.rssm = RSSM(self.codec.embedding_size, actions.num_inputs, sizes)
        self.reward = nn.Sequential(*normed_mlp(sizes.features, (sizes.hidden,), sizes.bins))
        self.goes_on = nn.Sequential(*normed_mlp(sizes.features, (sizes.hidden,), 1))
        init_truncated(self)
        _scale_output(self.reward, 0.0)  # the first predicted rewards are 0, not huge

    def forward(self, method: Callable[..., Any], *inputs: Any) -> Any:
        """Run one of the methods below: `FlatModule.apply` can call only `forward`."""
        return method(self, *inputs)

    def observe(self, obs: Tensor, actions: Tensor, is_first: Tensor, noise: Tensor, cells: Cells = CELLS) -> Observed:
        """Process sequences: `obs` (batch, time, *obs), `actions` (batch, time, *action), `is_first` (batch, time),
        `noise` (batch, time, latents) in [0, 1).

        `actions` are those that led to the observations. Where an episode or the sequence starts, they and the state
        are set to zero.
        """
        targets = self.codec.targets(obs.flatten(0, 1))
        embeddings = torch.unflatten(self.codec.encode(targets), 0, is_first.shape)
        features, logits = self.rssm.observe(embeddings, self.actions.encode(actions), is_first, noise, cells.observe)
        errors = self.codec.losses(features.flatten(0, 1), targets)
        return Observed(
            features,
            mixed_log_probs(logits, self.sizes.unimix),
            mixed_log_probs(self.rssm.prior_logits(features[..., : self.sizes.deter]), self.sizes.unimix),
            {name: error.view(is_first.shape) for name, error in errors.items()},
            *self.predict_heads(features),
        )

    def filter(self, obs: Tensor | Sequence[Tensor], features: Tensor, actions: Tensor, noise: Tensor | None) -> Tensor:
        """Return the features after one more observation, (batch, *obs).

        `features`: those before it. `actions`: the last actions, encoded.
        """
        return self.rssm.filter(self.codec.encode(self.codec.targets(obs)), features, actions, noise)

    def imagine(
        self, features: Tensor, choose: Callable[[Tensor, int], Tensor], noise: Tensor, cells: Cells = CELLS
    ) -> tuple[Tensor, Tensor]:
        """Roll out the prior without observations, one step per row of `noise`, (steps, batch, latents).

        `choose` returns the actions for features and a step number. Returns the features, (steps + 1, batch, ...)
        including the initial ones, and the actions, (steps, batch, *action).
        """
        steps, chosen = [features], []
        for number in range(len(noise)):
            chosen.append(choose(steps[-1], number))
            steps.append(cells.predict(self.rssm, steps[-1], self.actions.encode(chosen[-1]), noise[number]))
        return torch.stack(steps), torch.stack(chosen)

    def predict_heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the reward received on entering the state, (..., bins), and of continuing, (...)."""
        return self.reward(features), self.goes_on(features).squeeze(-1)


class DreamerPolicy(nn.Module):
    """The most likely action in the most likely state, without noise; the carry is that of acting."""

    normalizes = False

    def __init__(self, world_model: WorldModel, actor: nn.Module) -> None:
        super().__init__()
        self.world_model, self.actor = world_model, actor
        self.carry = {"features": world_model.sizes.features, "previous": world_model.actions.num_inputs}

    def forward(
        self, obs: Tensor | Sequence[Tensor], action_mask: Tensor | None, features: Tensor, previous: Tensor
    ) -> Decision:
        features = self.world_model.filter(obs, features, previous, None)
        kind, outputs = self.world_model.actions, self.actor(features)
        actions = kind.draw(outputs, None)
        return Decision(actions, kind.scores(outputs), (features, kind.encode(actions)))


def build_actor(num_outputs: int, sizes: Sizes) -> nn.Sequential:
    """Build the network from features to the outputs of the policy, which are nearly 0 at first."""
    return _head(num_outputs, sizes, 0.01)


def build_critic(sizes: Sizes) -> nn.Sequential:
    """Build the network from features to the logits of the value's bins; at first every value is exactly 0."""
    return _head(sizes.bins, sizes, 0.0)


def _head(outputs: int, sizes: Sizes, scale: float) -> nn.Sequential:
    head = nn.Sequential(*normed_mlp(sizes.features, (sizes.hidden,) * 3, outputs))
    init_truncated(head)
    _scale_output(head, scale)
    return head


@torch.no_grad()
def _scale_output(head: nn.Sequential, scale: float) -> None:
    weight = head[-1].weight
    assert isinstance(weight, Tensor)
    weight.mul_(scale)
