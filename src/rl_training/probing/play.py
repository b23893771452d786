"""Random episodes of an environment, recorded for the checks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.probing.watched_env import WatchedEnv

MAX_EPISODES = 40
MAX_STEPS = 3_000
MAX_VALUES = 50_000_000  # of all observations that are kept


@dataclass(slots=True)
class Episode:
    """One episode: `obs` has one row more than there are actions. Without flags it was cut by the probe."""

    seed: int | None
    obs: list[np.ndarray]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    def __len__(self) -> int:
        return len(self.rewards)

    def same_as(self, other: "Episode") -> bool:
        """Return whether observations, rewards and flags are the same, bit for bit."""
        flags = (self.terminated, self.truncated) == (other.terminated, other.truncated)
        return (
            flags
            and self.rewards == other.rewards
            and len(self.obs) == len(other.obs)
            and all(np.array_equal(mine, theirs) for mine, theirs in zip(self.obs, other.obs, strict=True))
        )


def play(env: WatchedEnv, seed: int | None, actions: Sequence[Any] | int) -> Episode:
    """Play these actions, or so many random ones, until the episode ends."""
    episode = Episode(seed, [env.reset(seed)])
    for number in range(actions if isinstance(actions, int) else len(actions)):
        action = env.sample_action() if isinstance(actions, int) else actions[number]
        obs, reward, episode.terminated, episode.truncated = env.step(action)
        episode.obs.append(obs)
        episode.actions.append(action)
        episode.rewards.append(reward)
        if episode.ended:
            break
    return episode


def play_randomly(env: WatchedEnv, *, seconds: float) -> list[Episode]:
    """Play random episodes with the seeds 0, 1, ... until one of the limits is reached."""
    episodes: list[Episode] = []
    env.action_space.seed(0)
    start, left = time.monotonic(), MAX_STEPS
    while left > 0 and len(episodes) < MAX_EPISODES and time.monotonic() - start < seconds:
        episode = play(env, len(episodes), min(left, MAX_STEPS // 2 if env.time_limit is None else left))
        episodes.append(episode)
        left = min(left - max(len(episode), 1), MAX_VALUES // max(episode.obs[0].size, 1) - sum(map(len, episodes)))
    return episodes
