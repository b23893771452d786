"""Checks of the actions: the same state is reached again and again, and each time another action is tried."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.probing.findings import Finding
from rl_training.probing.play import Episode, play
from rl_training.probing.watched_env import WatchedEnv

STATES = 6
HELD_STEPS = 8  # for which an action is repeated
AFTER_STEPS = 2  # of the base action after a single other one
MAX_CHOICES = 18
MAX_DIMENSIONS = 4
SHARES = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)  # of the way from the middle of the range to its ends


@dataclass(frozen=True, slots=True)
class Trial:
    """What followed on one action in one state: held for a while, and taken once."""

    held: Episode
    once: Episode


def check_action_space(space: Any) -> Iterator[Finding]:
    if isinstance(space, spaces.Box) and not np.isfinite([space.low, space.high]).all():
        text = f"{space} has no finite bounds: declare the range that the environment uses"
        yield Finding("fix", "action_space", text)


def check_actions(env: WatchedEnv, episodes: list[Episode], *, seconds: float) -> Iterator[Finding]:
    """Compare what different actions do in the same states; `env` must repeat an episode."""
    candidates = _candidates(env.action_space)
    if env.masked or len(candidates) < 2:
        return
    start, table = time.monotonic(), []
    for number, episode in enumerate(episodes[:STATES]):
        if number and time.monotonic() - start > seconds:
            break
        table.append(_try_all(env, episode, number, candidates))
    if findings := list(_check_effect(table)):
        yield from findings
        return
    if isinstance(env.action_space, spaces.Box):
        yield from _check_dimensions(table)
    elif isinstance(env.action_space, spaces.Discrete):
        yield from _check_choices(candidates, table)
    yield from _check_reward_time(table)


def _candidates(space: Any) -> list[Any]:
    """Return the actions to try: for a Box its middle, then for each dimension some shares of the way to its ends."""
    if isinstance(space, spaces.Discrete):
        return [space.dtype.type(space.start + choice) for choice in range(min(int(space.n), MAX_CHOICES))]
    if isinstance(space, spaces.Box):
        middle, half = (space.low + space.high) / 2, (space.high - space.low) / 2
        moved = []
        for dimension in range(min(middle.size, MAX_DIMENSIONS)):
            for share in SHARES:
                action = middle.copy()
                action.flat[dimension] += share * half.flat[dimension]
                moved.append(action)
        return [action.astype(space.dtype) for action in (middle, *moved)]
    space.seed(0)
    return [space.sample() for _ in range(STATES)]


def _try_all(env: WatchedEnv, episode: Episode, number: int, candidates: list[Any]) -> list[Trial]:
    # The states differ in how far the episode has gone; the last steps before its end are left out.
    prefix = episode.actions[: min(3 * number, max(len(episode) - 2, 0))]
    base = candidates[0]
    trials = []
    for action in candidates:
        held = play(env, episode.seed, [*prefix, *[action] * HELD_STEPS])
        once = play(env, episode.seed, [*prefix, action, *[base] * AFTER_STEPS])
        trials.append(Trial(_after(held, len(prefix)), _after(once, len(prefix))))
    return trials


def _after(episode: Episode, steps: int) -> Episode:
    return Episode(
        None,
        episode.obs[steps + 1 :],
        rewards=episode.rewards[steps:],
        terminated=episode.terminated,
        truncated=episode.truncated,
    )


def _check_effect(table: list[list[Trial]]) -> Iterator[Finding]:
    if all(trial.held.same_as(row[0].held) for row in table for trial in row):
        text = f"no action changes what follows, in {len(table)} states: is the argument of step used?"
        yield Finding("fix", "action_no_effect", text)
    elif all(_same_first_step(trial.once, row[0].once) for row in table for trial in row):
        text = "an action changes the steps after it but not its own: is the previous action executed?"
        yield Finding("look", "action_delayed", text)


def _same_first_step(one: Episode, other: Episode) -> bool:
    return np.array_equal(one.obs[0], other.obs[0]) and one.rewards[0] == other.rewards[0]


def _check_dimensions(table: list[list[Trial]]) -> Iterator[Finding]:
    for dimension in range((len(table[0]) - 1) // len(SHARES)):
        first = 1 + dimension * len(SHARES)
        rows = [row[first : first + len(SHARES)] for row in table]
        if all(trial.held.same_as(row[0].held) for row in rows for trial in row):
            yield Finding("fix", "action_unused", f"its dimension {dimension} changes nothing: is it read in step?")
        elif all(_is_saturated(row) for row in rows):
            text = f"its dimension {dimension} acts alike from half of its range on: declare the range that is used"
            yield Finding("fix", "action_saturates", text)


def _is_saturated(row: list[Trial]) -> bool:
    """Return whether the outer half of the range is without effect, on both sides, but the whole range is not."""
    low, high = row[: SHARES.index(-0.25)], row[SHARES.index(0.5) :]
    return all(trial.held.same_as(side[0].held) for side in (low, high) for trial in side)


def _check_choices(candidates: list[Any], table: list[list[Trial]]) -> Iterator[Finding]:
    for first, action in enumerate(candidates):
        for second in range(first + 1, len(candidates)):
            if all(row[first].held.same_as(row[second].held) for row in table):
                text = f"{action} and {candidates[second]} do the same in {len(table)} states: are both meant to exist?"
                yield Finding("look", "actions_equal", text)
                return


def _check_reward_time(table: list[list[Trial]]) -> Iterator[Finding]:
    """Report rewards that depend on the action before, but never on the action of their step."""
    alike_now = all(trial.once.rewards[0] == row[0].once.rewards[0] for row in table for trial in row)
    later = [len({trial.once.rewards[1] for trial in row if len(trial.once) > 1}) > 1 for row in table]
    if alike_now and np.mean(later) > 0.5:
        yield Finding(
            "look",
            "reward_delayed",
            "it never depends on the action of its step, but on the one before: compute it after the change, and pay "
            "it at once",
        )
