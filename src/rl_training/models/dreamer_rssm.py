"""Dreamer's recurrent state-space model (RSSM): a deterministic state h and categorical variables z.

    h_t = GRU(h_{t-1}, z_{t-1}, a_{t-1})      z_t ~ q(z | h_t, x_t)      z^_t ~ p(z | h_t)

Most of the time of an update is the launch of kernels in the loop over a sequence. So the loop contains only what
depends on the state before: the shares of actions and observations in its layers, the prior, the divergences and the
gradients of all weights (unrolled.py) are computed for all steps at once. Its body, a cell, can be replaced by a
compiled one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.core.transforms import is_transformed
from rl_training.hparams.dreamer import DreamerHParams, network_size
from rl_training.models.dreamer_latents import draw_latents, mixed_probs, straight_through
from rl_training.models.layers import NORM_EPS, StackedLinear, normed_mlp
from rl_training.models.unrolled import Step, chain, take_plain_steps, take_steps


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
    def stoch(self) -> int:
        return self.latents * self.classes

    @property
    def features(self) -> int:
        return self.deter + self.stoch


def sizes_of(hparams: DreamerHParams) -> Sizes:
    network = network_size(hparams)
    return Sizes(
        deter=network.deter_size,
        blocks=hparams.num_blocks,
        latents=hparams.num_latents,
        classes=network.num_classes,
        hidden=network.hidden_size,
        depth=network.cnn_depth,
        bins=hparams.num_bins,
        unimix=hparams.unimix,
    )


class BlockGRU(nn.Module):
    """h' = u tanh(r c) + (1 - u) h, with block-diagonal weights: gates and candidate use only their own block of h.

    All blocks see all inputs. The -1 in the update gate makes the state change slowly at first.
    """

    def __init__(self, in_features: int, size: int, blocks: int) -> None:
        super().__init__()
        self.blocks, self.width = blocks, size // blocks
        self.hidden = StackedLinear(blocks, self.width + in_features, self.width)
        self.norm = nn.RMSNorm(size, NORM_EPS)
        self.gates = StackedLinear(blocks, self.width, 3 * self.width)

    def forward(self, state: Tensor, inputs: Tensor) -> Tensor:
        """Return the next state: (batch, size), (batch, in_features) -> (batch, size)."""
        weight, last = self.split_weight(inputs.shape[1])
        return self.advance(state, (), weight, self.drive(inputs, last))

    def split_weight(self, num_last: int) -> tuple[Tensor, Tensor]:
        """Split the weight of the hidden layer into that of the state and the first inputs, and of the last inputs.

        Do so once before a loop: each time adds a copy of the weight to the gradient.
        """
        rest, last = self.hidden.weight.split([self.hidden.weight.shape[1] - num_last, num_last], 1)
        return rest, last

    def drive(self, last_inputs: Tensor, last_weight: Tensor) -> Tensor:
        """Return the share of the last inputs in the hidden layer, with its bias: (rows, n) -> (blocks, rows, ...).

        The rows may be those of all steps, because they do not depend on the state.
        """
        return torch.baddbmm(self.hidden.bias, last_inputs.expand(self.blocks, -1, -1), last_weight)

    def advance(self, state: Tensor, first_inputs: tuple[Tensor, ...], weight: Tensor, drive: Tensor) -> Tensor:
        """Return the next state, (batch, size). `first_inputs`: those that are not in `drive`, (batch, ...) each."""
        seen = torch.cat((self._group(state), *(part.expand(self.blocks, -1, -1) for part in first_inputs)), -1)
        hidden = torch.baddbmm(drive, seen, weight)
        hidden = F.silu(self.norm(hidden.transpose(0, 1).flatten(1)))
        gates = self.gates(self._group(hidden)).unflatten(-1, (3, -1))  # (blocks, batch, 3, size / blocks)
        reset, candidate, update = gates.permute(2, 1, 0, 3).flatten(2).unbind()
        candidate = (reset.sigmoid() * candidate).tanh()
        return torch.lerp(state, candidate, (update - 1.0).sigmoid())

    def _group(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (self.blocks, -1)).transpose(0, 1)  # (blocks, batch, size / blocks)


class States(NamedTuple):
    """The states of sequences, (batch, time, ...), with the logits by which z was drawn."""

    features: Tensor  # h and z in one row
    logits: Tensor  # (..., latents, classes)


class Cells(NamedTuple):
    """The bodies of the two loops over time, called with an `RSSM` and the arguments of the methods of these names."""

    observe: Callable[..., Any]
    predict: Callable[..., Any]


class RSSM(nn.Module):
    """Infers states from embeddings of observations, and predicts them without."""

    def __init__(self, embedding_size: int, num_inputs: int, sizes: Sizes) -> None:
        """`num_inputs`: the numbers of an encoded action."""
        super().__init__()
        self.sizes, hidden = sizes, (sizes.hidden,)
        self.deter_in = nn.Sequential(*normed_mlp(sizes.deter, hidden, None))
        self.stoch_in = nn.Sequential(*normed_mlp(sizes.stoch, hidden, None))
        self.action_in = nn.Sequential(*normed_mlp(num_inputs, hidden, None))
        self.recurrent = BlockGRU(3 * sizes.hidden, sizes.deter, sizes.blocks)
        self.posterior_in = nn.Linear(sizes.deter + embedding_size, sizes.hidden)
        self.posterior_out = nn.Sequential(
            nn.RMSNorm(sizes.hidden, NORM_EPS), nn.SiLU(), nn.Linear(sizes.hidden, sizes.stoch)
        )
        self.prior = nn.Sequential(*normed_mlp(sizes.deter, hidden * 2, sizes.stoch))

    def forward(self, method: Callable[..., Any], *inputs: Any) -> Any:
        """Run one of the methods below: `functional_call` can call only `forward`."""
        return method(self, *inputs)

    def observe(
        self, embeddings: Tensor, actions: Tensor, is_first: Tensor, noise: Tensor, cell: Callable[..., Any]
    ) -> States:
        """Infer the states of sequences: `is_first` (batch, time), the rest (batch, time, ...), encoded.

        `actions` are those that led to the observations. Where an episode or the sequence starts, they and the state
        are set to zero. `noise`: (batch, time, latents), in [0, 1). `cell`: `observe_cell`, or the same compiled.
        """
        # Time comes first, so that the rows of a step are one piece of memory.
        embeddings, actions, noise = (x.transpose(0, 1).contiguous() for x in (embeddings, actions, noise))
        keep = (~is_first).T.contiguous().float()[..., None]
        keep[0] = 0.0  # acting takes no action in a state of zeros either
        weight, action_weight = self.recurrent.split_weight(self.sizes.hidden)
        drive = self.recurrent.drive(self.action_in(actions * keep).flatten(0, 1), action_weight)
        deter_weight, token_weight = self._split_posterior()
        tokens = F.linear(embeddings, token_weight, self.posterior_in.bias)
        if is_transformed():
            each_step = self._take_steps(keep, drive, tokens, noise, cell, take_plain_steps)
            deter, stoch, logits = (torch.stack(each, 1) for each in zip(*each_step, strict=True))
            return States(torch.cat((deter, stoch), -1), logits)
        fixed = {name: value.detach() for name, value in self.named_parameters()}
        inputs = (keep, drive.detach(), tokens.detach(), noise)
        steps: list[Step] = torch.func.functional_call(self, fixed, (RSSM._take_steps, *inputs, cell, take_steps))
        # Once more for all steps at once, with gradients, and with what was drawn.
        before, drawn = zip(*(step.before for step in steps), strict=True), [step.outputs[1] for step in steps]
        deter, stoch = (torch.stack(each).detach() * keep for each in before)
        deter = self._recur(deter.flatten(0, 1), stoch.flatten(0, 1), weight, drive)
        logits = self._posterior(deter, deter_weight, tokens.flatten(0, 1))
        stoch = straight_through(torch.stack(drawn).detach().flatten(0, 1), self._probs(logits))
        outputs = chain(steps, *(torch.unflatten(each, 0, keep.shape[:2]) for each in (deter, stoch, logits)))
        deter, stoch, logits = (each.transpose(0, 1) for each in outputs)
        return States(torch.cat((deter, stoch), -1), logits)

    def _take_steps(
        self,
        keep: Tensor,
        drive: Tensor,
        tokens: Tensor,
        noise: Tensor,
        cell: Callable[..., Any],
        take: Callable[..., list[Any]],
    ) -> list[Any]:
        """Take the steps of sequences from zeros; `drive`: (blocks, time * batch, ...), the rest (time, batch, ...).

        `take`: `take_steps` or `take_plain_steps`.
        """
        (weight, _), (deter_weight, _) = self.recurrent.split_weight(self.sizes.hidden), self._split_posterior()
        drives = torch.unflatten(drive, 1, keep.shape[:2]).unbind(1)  # (blocks, batch, size / blocks) of each step
        zeros = [tokens.new_zeros(tokens.shape[1], size) for size in (self.sizes.deter, self.sizes.stoch)]
        inputs = zip(keep.unbind(), drives, tokens.unbind(), noise.unbind(), strict=True)
        return take(lambda h, z, *each: cell(self, h, z, weight, deter_weight, *each), zeros, inputs)

    def observe_cell(
        self,
        deter: Tensor,
        stoch: Tensor,
        weight: Tensor,
        deter_weight: Tensor,
        keep: Tensor,
        drive: Tensor,
        token: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return h, z and the logits of z one step later; `keep`: (batch, 1), 0 where an episode starts."""
        deter = self._recur(deter * keep, stoch * keep, weight, drive)
        logits = self._posterior(deter, deter_weight, token)
        return deter, self._draw(logits, noise), logits

    def filter(self, embedding: Tensor, features: Tensor, action: Tensor, noise: Tensor | None) -> Tensor:
        """Return the features after one more observation, (batch, ...); without noise, of the most likely classes.

        `features`: those before it. `action`: the last one, encoded.
        """
        deter = self._after(features, action)
        deter_weight, token_weight = self._split_posterior()
        logits = self._posterior(deter, deter_weight, F.linear(embedding, token_weight, self.posterior_in.bias))
        return torch.cat((deter, self._draw(logits, noise)), -1)

    def predict_cell(self, features: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        """Return features of the next step, drawn from the prior: all (batch, ...), the action encoded."""
        deter = self._after(features, action)
        return torch.cat((deter, self._draw(self.prior_logits(deter), noise)), -1)

    def prior_logits(self, deter: Tensor) -> Tensor:
        """Return the logits of z without the observation: (..., deter) -> (..., latents, classes)."""
        return self._latents(self.prior(deter))

    def _after(self, features: Tensor, action: Tensor) -> Tensor:
        deter, stoch = features.split([self.sizes.deter, self.sizes.stoch], -1)
        weight, action_weight = self.recurrent.split_weight(self.sizes.hidden)
        return self._recur(deter, stoch, weight, self.recurrent.drive(self.action_in(action), action_weight))

    def _recur(self, deter: Tensor, stoch: Tensor, weight: Tensor, drive: Tensor) -> Tensor:
        return self.recurrent.advance(deter, (self.deter_in(deter), self.stoch_in(stoch)), weight, drive)

    def _split_posterior(self) -> tuple[Tensor, Tensor]:
        """Split the weight of the posterior's first layer into that of h and that of the observation."""
        weight = self.posterior_in.weight
        deter, token = weight.split([self.sizes.deter, weight.shape[1] - self.sizes.deter], 1)
        return deter, token

    def _posterior(self, deter: Tensor, weight: Tensor, token: Tensor) -> Tensor:
        """Return the logits of z; `token`: the share of the observation in the first layer."""
        return self._latents(self.posterior_out(torch.addmm(token, deter, weight.T)))

    def _latents(self, logits: Tensor) -> Tensor:
        return torch.unflatten(logits, -1, (self.sizes.latents, self.sizes.classes))

    def _probs(self, logits: Tensor) -> Tensor:
        return mixed_probs(logits, self.sizes.unimix)

    def _draw(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        return draw_latents(self._probs(logits), noise)


CELLS = Cells(RSSM.observe_cell, RSSM.predict_cell)


def compile_cells(backend: str = "inductor") -> Cells:
    """Return the cells as PyTorch compiles them at their first call: their operations fuse to fewer kernels."""
    compiled = (torch.compile(_copied(cell), backend=backend, fullgraph=True, dynamic=False) for cell in CELLS)
    return Cells(*compiled)


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with code of its own: PyTorch limits how often one piece of code is compiled in a process."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
