"""Checks of reset and seeds: the same seed and actions must give the same episode."""

from collections.abc import Callable, Iterator

import numpy as np

from rl_training.probing.findings import Finding
from rl_training.probing.play import Episode, play
from rl_training.probing.watched_env import WatchedEnv

REPEATED = 4  # episodes
REPEATED_STEPS = 100
OTHER_STEPS = 7
STARTS = 12


def check_seeding(make: Callable[[], WatchedEnv], used: WatchedEnv, episodes: list[Episode]) -> Iterator[Finding]:
    """Repeat episodes in a new copy, and in the used one; compare the starts of many seeds.

    `episodes` were the first that `used` has played.
    """
    fresh = make()
    yield from _check_repeats(fresh, make(), used, episodes)
    yield from _check_starts(fresh)


def _check_repeats(
    fresh: WatchedEnv, other: WatchedEnv, used: WatchedEnv, episodes: list[Episode]
) -> Iterator[Finding]:
    repeated, leaks = episodes[:REPEATED], []
    for episode in repeated:
        actions = episode.actions[:REPEATED_STEPS]
        play(used, None, OTHER_STEPS)  # so that it comes from another place than the new copies
        first, second, third = (play(env, episode.seed, actions) for env in (fresh, other, used))
        if not np.array_equal(first.obs[0], second.obs[0]):
            text = "start differently: draw from self.np_random, after super().reset(seed=seed)"
            yield Finding("fix", "seed_ignored", f"two resets with the seed {episode.seed} {text}")
            return
        if not first.same_as(second):
            text = "lead to different steps: draw from self.np_random, not from a generator of the module"
            yield Finding("fix", "steps_not_seeded", f"the same seed ({episode.seed}) and actions {text}")
            return
        if not first.same_as(third):
            leaks.append(_first_difference(first, third))
    if leaks:
        # Rarely, a simulator such as Box2D keeps a contact over a reset, which changes little.
        yield Finding(
            "fix" if 2 * len(leaks) >= len(repeated) else "look",
            "reset_leaks",
            f"{len(leaks)} of {len(repeated)} episodes differ from those of a new copy with the same seed and actions, "
            f"from step {min(leaks)} on: reset must set everything back",
        )


def _first_difference(one: Episode, other: Episode) -> int:
    """Return the first step (0: the reset) at which the observations differ, or after which only one goes on."""
    both = min(len(one.obs), len(other.obs))
    return next((at for at in range(both) if not np.array_equal(one.obs[at], other.obs[at])), both)


def _check_starts(env: WatchedEnv) -> Iterator[Finding]:
    seeded = [env.reset(seed) for seed in range(STARTS)]
    env.reset(0)
    unseeded = [env.reset() for _ in range(STARTS)]
    if not _all_equal(seeded):
        if _all_equal(unseeded):
            text = "reset() without a seed repeats one start; pass the seed on as it is: super().reset(seed=seed)"
            yield Finding("fix", "reset_repeats", text)
    elif _all_equal(unseeded):
        text = f"all {STARTS} seeds start with the same observation; is the start meant to be fixed?"
        yield Finding("look", "start_fixed", text)


def _all_equal(starts: list[np.ndarray]) -> bool:
    return all(np.array_equal(start, starts[0]) for start in starts)
