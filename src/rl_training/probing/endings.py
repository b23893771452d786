"""Checks of how episodes end: termination, truncation, time limits, and what the last observation is."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from rl_training.probing.findings import Finding
from rl_training.probing.play import Episode

SHORTEST_LIMIT = 10  # steps; an episode that always terminates sooner is short by nature
MIN_EPISODES = 3
LEAST_SHARE = 0.3  # of the episodes that reach a time limit; a few equal lengths happen by chance


def check_endings(episodes: list[Episode], time_limit: int | None) -> Iterator[Finding]:
    if not any(episode.ended for episode in episodes):
        if time_limit is None:
            longest = max(map(len, episodes))
            text = f"no random episode ended within {longest:,} steps, and no time limit is known (max_episode_steps)"
            yield Finding("look", "episode_endless", text)
        return
    yield from _check_termination(episodes)
    yield from _check_truncation(episodes)
    yield from _check_last_observation(episodes)


def _check_termination(episodes: list[Episode]) -> Iterator[Finding]:
    """Report episodes that terminate at the same step, in states in which others go on."""
    length = max(map(len, episodes))
    longest = [episode for episode in episodes if len(episode) == length and episode.terminated]
    few = len(longest) < max(MIN_EPISODES, LEAST_SHARE * len(episodes))
    if length < SHORTEST_LIMIT or few or any(episode.truncated for episode in longest):
        return
    if not _last_is_recognised(longest):
        yield Finding(
            "fix",
            "time_limit_as_termination",
            f"{len(longest)} episodes terminated at step {length:,} exactly, in states like those before: report a "
            "time limit as truncated, not as terminated",
        )


def _last_is_recognised(episodes: list[Episode]) -> bool:
    """Return whether last observations are nearer to last ones of other episodes than to any earlier ones."""
    nearer = []
    for number, episode in enumerate(episodes):
        others = [other for index, other in enumerate(episodes) if index != number]
        last = episode.obs[-1].astype(np.float64)
        to_last = min(_distance(last, other.obs[-1]) for other in others)
        to_earlier = min(_distance(last, obs) for other in others for obs in other.obs[:-1])
        nearer.append(to_last < to_earlier)
    return float(np.mean(nearer)) > 0.6


def _check_truncation(episodes: list[Episode]) -> Iterator[Finding]:
    lengths = Counter(len(episode) for episode in episodes if episode.truncated and not episode.terminated)
    if len(lengths) > 2 and lengths.most_common(1)[0][1] < 0.5 * lengths.total():
        yield Finding(
            "fix",
            "termination_as_truncation",
            f"truncated after {min(lengths):,} to {max(lengths):,} steps, not at one time limit: if these are failures "
            "or goals, report them as terminated",
        )


def _check_last_observation(episodes: list[Episode]) -> Iterator[Finding]:
    """Report last observations that are starts of the next episode."""
    starts = [episode.obs[0].astype(np.float64) for episode in episodes]
    ended = [episode for episode in episodes if episode.ended and len(episode) > 1]
    if len(ended) < MIN_EPISODES:
        return
    at_end = np.mean([_is_new_start(episode, len(episode), starts) for episode in ended])
    earlier = np.mean([_is_new_start(episode, len(episode) - 1, starts) for episode in ended])
    if at_end > 0.8 and earlier < 0.2:
        yield Finding(
            "fix",
            "auto_reset",
            "the last observation of an episode looks like a start: step must return the true last one, and leave the "
            "reset to the caller",
        )


def _is_new_start(episode: Episode, at: int, starts: list[np.ndarray]) -> bool:
    """Return whether an observation is far nearer to a start than to the observation before it."""
    obs = episode.obs[at].astype(np.float64)
    moved = _distance(obs, episode.obs[at - 1])
    return moved > 0 and min(_distance(obs, start) for start in starts) < 0.5 * moved


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).sum())
