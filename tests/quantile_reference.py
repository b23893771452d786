"""Quantile regression in plain loops and float64, written from the papers: what the fast losses are compared with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rl_training.core.types import Batch


def huber(error: float, kappa: float) -> float:
    if kappa == 0.0:
        return abs(error)
    if abs(error) <= kappa:
        return 0.5 * error**2 / kappa
    return abs(error) - 0.5 * kappa


def quantile_loss(
    values: Sequence[float],
    targets: Sequence[float],
    taus: Sequence[float],
    kappa: float,
    probabilities: Sequence[float] | None = None,
) -> float:
    """Dabney et al. 2018, QR-DQN, algorithm 1: sum over the values of the expectation over the targets."""
    total = 0.0
    for value, tau in zip(values, taus, strict=True):
        for target, share in zip(targets, probabilities or [1 / len(targets)] * len(targets), strict=True):
            error = target - value
            total += abs(tau - (1.0 if error < 0 else 0.0)) * huber(error, kappa) * share
    return total


def random_quantile_batch(rng: np.random.Generator, size: int = 12, states: int = 4, actions: int = 3) -> Batch:
    """Steps between states that are numbers, in float64, with all that a batch may bring."""
    mask = rng.random((size, actions)) < 0.6
    mask[:, 0] |= ~mask.any(1)
    arrays: dict[str, Any] = {
        "obs": rng.integers(states, size=size),
        "next_obs": rng.integers(states, size=size),
        "actions": rng.integers(actions, size=size),
        "rewards": rng.normal(size=size),
        "terminated": rng.random(size) < 0.3,
        "discounts": 0.9 ** rng.integers(1, 4, size=size),
        "weights": rng.random(size),
        "next_action_mask": mask,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def best_valid_action(q_values: Sequence[float], valid: np.ndarray) -> int:
    return max((action for action in range(len(q_values)) if valid[action]), key=lambda action: q_values[action])


def target_quantiles(batch: Batch, row: int, next_values: np.ndarray) -> list[float]:
    reward, discount = float(batch["rewards"][row]), float(batch["discounts"][row])
    return [reward if batch["terminated"][row] else reward + discount * float(value) for value in next_values]
