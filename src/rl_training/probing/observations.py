"""Checks of the observations of random episodes."""

from collections.abc import Iterator

import numpy as np

from rl_training.probing.findings import Finding
from rl_training.probing.play import Episode

LARGE = 1_000.0  # a network learns slowly from numbers of this size
SMALL = 1e-3
MAX_RATIO = 1e4  # between the spreads of two numbers of an observation
MAX_NUMBERS = 64  # of an observation in which constant ones are reported
MIN_ROWS_PER_COLUMN = 8  # of the linear model that predicts the next observation
HIDDEN, EXPLAINED = 0.2, 0.4  # shares of the variance


def check_observations(episodes: list[Episode], *, is_float: bool) -> Iterator[Finding]:
    """Check what observations show; `is_float`: whether they are vectors of floats, which alone have a scale."""
    played = [episode for episode in episodes if len(episode) > 1]
    if not played:
        return
    if all(_is_still(episode) for episode in played):
        text = f"it does not change during {len(played)} random episodes: is it computed again in step?"
        yield Finding("fix", "observation_constant", text)
        return
    if len(played) > 2 and all(np.array_equal(episode.obs[0], episode.obs[1]) for episode in played):
        text = "the first step returns the observation of the reset, in every episode: compute it after the change"
        yield Finding("fix", "observation_delayed", text)
        return
    if is_float:
        rows = np.concatenate([np.stack(episode.obs) for episode in played])
        yield from _check_scale(rows)
        yield from _check_completeness(played)


def _is_still(episode: Episode) -> bool:
    return all(np.array_equal(obs, episode.obs[0]) for obs in episode.obs)


def _check_scale(rows: np.ndarray) -> Iterator[Finding]:
    largest = float(np.quantile(np.abs(rows).max(axis=1), 0.9))
    spreads = rows.std(axis=0)
    varying = spreads[spreads > 0]
    if largest > LARGE:
        text = f"its numbers reach {largest:.3g}: scale them to about -1 to 1, or set normalize_observations"
        yield Finding("fix", "observation_scale", text)
    elif len(varying) and varying.max() < SMALL:
        text = f"its numbers vary by {varying.max():.2g} only: scale them to about -1 to 1"
        yield Finding("fix", "observation_scale", text)
    elif len(varying) and varying.max() > MAX_RATIO * varying.min():
        text = f"one number varies {varying.max() / varying.min():.2g} times as much as another: scale each of them"
        yield Finding("look", "observation_scale", text)
    if len(still := np.flatnonzero(spreads == 0)) and len(rows) > 100 and rows.shape[1] <= MAX_NUMBERS:
        text = f"{len(still)} of {rows.shape[1]} numbers never change (the first has index {still[0]})"
        yield Finding("look", "observation_part_constant", text)


def _check_completeness(episodes: list[Episode]) -> Iterator[Finding]:
    """Compare how well the next observation follows from one observation and action, and from the last two.

    Where the change between two observations explains nearly all that one alone leaves open, velocities are missing.
    """
    now, before, actions, change = (np.concatenate(part) for part in zip(*map(_transitions, episodes), strict=True))
    alone = _products(np.hstack([now, actions]))
    with_history = np.hstack([alone, before])
    if len(now) < MIN_ROWS_PER_COLUMN * with_history.shape[1]:
        return
    left_alone, left_with_history = _unexplained(alone, change), _unexplained(with_history, change)
    if left_alone > HIDDEN and left_with_history < EXPLAINED * left_alone:
        text = (
            "the next observation follows from the last two but not from the last one: add velocities, or stack "
            "observations (gymnasium.wrappers.FrameStackObservation)"
        )
        yield Finding("look", "observation_incomplete", text)


def _transitions(episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    obs = np.stack(episode.obs).astype(np.float64)
    actions = np.stack([np.asarray(action, np.float64).reshape(-1) for action in episode.actions])
    return obs[1:-1], obs[:-2], actions[1:], obs[2:] - obs[1:-1]


def _products(inputs: np.ndarray) -> np.ndarray:
    """Return 1, the numbers, and the products of each two of them: (rows, 1 + n + n (n + 1) / 2)."""
    ones = np.ones((len(inputs), 1))
    first, second = np.triu_indices(inputs.shape[1])
    return np.hstack([ones, inputs, inputs[:, first] * inputs[:, second]])


def _unexplained(inputs: np.ndarray, outputs: np.ndarray) -> float:
    """Return the share of the variance that a linear model leaves: the largest of all outputs that vary."""
    weights, *_ = np.linalg.lstsq(inputs, outputs, rcond=None)
    variance = outputs.var(axis=0)
    varies = variance > 1e-12
    left = np.square(outputs - inputs @ weights).mean(axis=0)
    return float((left[varies] / variance[varies]).max(initial=0.0))
