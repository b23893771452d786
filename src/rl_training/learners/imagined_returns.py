"""Dreamer's returns: their weights in imagination, those of replayed sequences, and their range."""

import torch
from torch import Tensor

from rl_training.core.types import Batch
from rl_training.hparams.dreamer import DreamerHParams
from rl_training.learners.returns import lambda_return

PERCENTILES = (0.05, 0.95)  # of the returns; their distance is the range


def continuation_weights(starts_alive: Tensor, discounts: Tensor) -> Tensor:
    """Return weights of imagined states, the discounted probability of reaching them: (batch,), (steps, batch) -> same.

    `discounts` are those of the successors, so that the last one is not needed.
    """
    return torch.cat((starts_alive[None], discounts[:-1])).cumprod(0)


def replayed_returns(batch: Batch, values: Tensor, hparams: DreamerHParams) -> tuple[Tensor, Tensor]:
    """Return the lambda-returns of all states of sequences but the last, and their weights: (time - 1, batch) each.

    `values`: (time, batch) of all states. The last observation of an episode is followed by the first one of another:
    the return before does not bootstrap from there, and its own weight is 0.
    """
    is_first, terminated = batch["is_first"].T, batch["terminated"].T
    follows = ~torch.cat((is_first[2:], torch.ones_like(is_first[:1])))  # whether the successor has one of its own
    discounts = hparams.gamma * (~terminated[1:])
    returns = lambda_return(batch["rewards"].T[1:], discounts, values[1:], hparams.return_lambda * follows)
    return returns, (~is_first[1:]).float()


def return_range(low: Tensor, high: Tensor, returns: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Move the running percentiles of the returns towards those of the latest returns."""
    ordered = returns.flatten().sort().values  # not torch.quantile, which vmap runs in a loop over the members
    latest_low, latest_high = (_interpolated(ordered, share * (len(ordered) - 1)) for share in PERCENTILES)
    return torch.lerp(low, latest_low, rate), torch.lerp(high, latest_high, rate)


def _interpolated(values: Tensor, position: float) -> Tensor:
    """Return the value at a position between two of the values."""
    before = int(position)
    after = min(before + 1, len(values) - 1)
    return torch.lerp(values[before], values[after], position - before)
