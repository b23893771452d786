"""Dreamer's networks: a world model built on a recurrent state-space model (RSSM), and its heads.

The state has two parts: h, deterministic and recurrent, and z, categorical variables as one-hot vectors. `features`
are both in one row: (..., deter_size + num_latents * num_classes). Before an episode, the row is zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from rl_training.core.spaces import observation_kind
from rl_training.core.types import Decision
from rl_training.models.dreamer_actions import Actions
from rl_training.models.dreamer_codecs import ImageCodec, VectorCodec
from rl_training.models.dreamer_latents import draw_latents, mixed_log_probs
from rl_training.models.layers import NORM_EPS, StackedLinear, init_truncated, normed_mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the networks."""

    deter: int
    blocks: int
    latents: int
    classes: int
    hidden: int
    depth: int
    bins: int
    unimix: float

    @property
    def features(self) -> int:
        return self.deter + self.latents * self.classes


class Observed(NamedTuple):
    """The outputs of a world model for sequences, (batch, time, ...)."""

    features: Tensor
    posterior: Tensor  # log-probabilities of the latents given the observation, (..., latents, classes)
    prior: Tensor  # the same without the observation
    squared_error: Tensor  # of the observation decoded from the features, summed over its numbers
    reward_logits: Tensor  # (..., bins)
    continue_logits: Tensor


class BlockGRU(nn.Module):
    """h' = u tanh(r c) + (1 - u) h, with block-diagonal weights: gates and candidate use only their own block of h.

    All blocks see all inputs. The -1 in the update gate makes the state change slowly at first.
    """

    def __init__(self, in_features: int, size: int, blocks: int) -> None:
        super().__init__()
        self.blocks, width = blocks, size // blocks
        self.hidden = StackedLinear(blocks, width + in_features, width)
        self.norm = nn.RMSNorm(size, NORM_EPS)
        self.gates = StackedLinear(blocks, width, 3 * width)

    def forward(self, state: Tensor, inputs: Tensor) -> Tensor:
        """`state`: (batch, size), `inputs`: (batch, in_features) -> (batch, size)."""
        grouped = torch.cat((self._group(state), inputs.expand(self.blocks, -1, -1)), -1)
        hidden = nn.functional.silu(self.norm(self.hidden(grouped).transpose(0, 1).flatten(1)))
        gates = self.gates(self._group(hidden)).unflatten(-1, (3, -1))  # (blocks, batch, 3, size / blocks)
        reset, candidate, update = gates.permute(2, 1, 0, 3).flatten(2).unbind()
        update = (update - 1.0).sigmoid()
        after: Tensor = update * (reset.sigmoid() * candidate).tanh() + (1.0 - update) * state
        return after

    def _group(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (self.blocks, -1)).transpose(0, 1)  # (blocks, batch, size / blocks)


class WorldModel(nn.Module):
    """Encodes observations, and predicts next states, rewards and whether the episode continues."""

    def __init__(self, space: gym.Space[Any], actions: Actions, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.actions = sizes, actions
        hidden, latent = (sizes.hidden,), sizes.latents * sizes.classes
        self.codec: ImageCodec | VectorCodec
        if observation_kind(space) == "image":
            self.codec = ImageCodec(space, sizes.features, sizes.depth)
        else:
            self.codec = VectorCodec(space, sizes.features, sizes.hidden)
        self.deter_in = nn.Sequential(*normed_mlp(sizes.deter, hidden, None))
        self.stoch_in = nn.Sequential(*normed_mlp(latent, hidden, None))
        self.action_in = nn.Sequential(*normed_mlp(actions.num_inputs, hidden, None))
        self.recurrent = BlockGRU(3 * sizes.hidden, sizes.deter, sizes.blocks)
        self.posterior = nn.Sequential(*normed_mlp(sizes.deter + self.codec.embedding_size, hidden, latent))
        self.prior = nn.Sequential(*normed_mlp(sizes.deter, hidden * 2, latent))
        self.reward = nn.Sequential(*normed_mlp(sizes.features, hidden, sizes.bins))
        self.goes_on = nn.Sequential(*normed_mlp(sizes.features, hidden, 1))
        init_truncated(self)
        _scale_output(self.reward, 0.0)  # the first predicted rewards are 0, not huge

    def forward(self, method: Callable[..., Any], *inputs: Any) -> Any:
        """Run one of the methods below: `FlatModule.apply` can call only `forward`."""
        return method(self, *inputs)

    def observe(self, obs: Tensor, actions: Tensor, is_first: Tensor, noise: Tensor) -> Observed:
        """Process sequences: `obs` (batch, time, *obs), `actions` (batch, time, *action), `is_first` (batch, time),
        `noise` (batch, time, latents) in [0, 1).

        `actions` are those that led to the observations. Where an episode starts, they and the state are set to zero.
        """
        batch, length = is_first.shape
        target = self.codec.target(obs.flatten(0, 1))
        embeddings = torch.unflatten(self.codec.encode(target), 0, (batch, length))
        goes_on = (~is_first).float()[..., None]
        inputs = self.action_in(self.actions.encode(actions) * goes_on)
        features, steps, logs = initial_features(batch, self.sizes, obs.device), [], []
        for t in range(length):
            deter = self._recur(features * goes_on[:, t], inputs[:, t])
            log_probs = self._latents(self.posterior(torch.cat((deter, embeddings[:, t]), -1)))
            features = torch.cat((deter, draw_latents(log_probs, noise[:, t])), -1)
            steps.append(features)
            logs.append(log_probs)
        seen = torch.stack(steps, 1)
        error = self.codec.decode(seen.flatten(0, 1)) - target
        return Observed(
            seen,
            torch.stack(logs, 1),
            self._latents(self.prior(seen[..., : self.sizes.deter])),
            error.square().flatten(1).sum(1).view(batch, length),
            self.reward(seen),
            self.goes_on(seen).squeeze(-1),
        )

    def filter(self, obs: Tensor, features: Tensor, actions: Tensor, noise: Tensor | None) -> Tensor:
        """Return the features after one more observation, (batch, *obs).

        `features`: those before it. `actions`: the last actions, encoded.
        """
        deter = self._recur(features, self.action_in(actions))
        embedding = self.codec.encode(self.codec.target(obs))
        log_probs = self._latents(self.posterior(torch.cat((deter, embedding), -1)))
        return torch.cat((deter, draw_latents(log_probs, noise)), -1)

    def imagine(
        self, features: Tensor, choose: Callable[[Tensor, int], Tensor], noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Roll out the prior without observations, one step per row of `noise`, (steps, batch, latents).

        `choose` returns the actions for features and a step number. Returns the features, (steps + 1, batch, ...)
        including the initial ones, and the actions, (steps, batch, *action).
        """
        steps, chosen = [features], []
        for number in range(len(noise)):
            actions = choose(features, number)
            deter = self._recur(features, self.action_in(self.actions.encode(actions)))
            stoch = draw_latents(self._latents(self.prior(deter)), noise[number])
            features = torch.cat((deter, stoch), -1)
            steps.append(features)
            chosen.append(actions)
        return torch.stack(steps), torch.stack(chosen)

    def predict_heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the reward received on entering the state, (..., bins), and of continuing, (...)."""
        return self.reward(features), self.goes_on(features).squeeze(-1)

    def _recur(self, features: Tensor, action_inputs: Tensor) -> Tensor:
        deter, stoch = features[..., : self.sizes.deter], features[..., self.sizes.deter :]
        inputs = torch.cat((self.deter_in(deter), self.stoch_in(stoch), action_inputs), -1)
        after: Tensor = self.recurrent(deter, inputs)
        return after

    def _latents(self, logits: Tensor) -> Tensor:
        return mixed_log_probs(torch.unflatten(logits, -1, (self.sizes.latents, self.sizes.classes)), self.sizes.unimix)


class DreamerPolicy(nn.Module):
    """The most likely action in the most likely state, without noise; the carry is that of acting."""

    normalizes = False

    def __init__(self, world_model: WorldModel, actor: nn.Module) -> None:
        super().__init__()
        self.world_model, self.actor = world_model, actor
        self.carry = {"features": world_model.sizes.features, "previous": world_model.actions.num_inputs}

    def forward(self, obs: Tensor, action_mask: Tensor | None, features: Tensor, previous: Tensor) -> Decision:
        features = self.world_model.filter(obs, features, previous, None)
        kind, outputs = self.world_model.actions, self.actor(features)
        actions = kind.draw(outputs, None)
        return Decision(actions, kind.scores(outputs), (features, kind.encode(actions)))


def initial_features(batch: int, sizes: Sizes, device: torch.device) -> Tensor:
    """Return the features before an episode: zeros."""
    return torch.zeros(batch, sizes.features, device=device)


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
