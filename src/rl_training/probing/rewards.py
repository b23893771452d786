"""Checks of the rewards of random episodes."""

from collections.abc import Iterator

import numpy as np

from rl_training.probing.findings import Finding
from rl_training.probing.play import Episode

LARGE = 1_000.0
SMALL = 1e-4
MIN_LENGTH = 8  # of an episode whose rewards may grow


def check_rewards(episodes: list[Episode]) -> Iterator[Finding]:
    rewards = np.concatenate([episode.rewards for episode in episodes])
    if rewards.min() == rewards.max() and _tells_nothing(episodes, rewards[0]):
        yield Finding(
            "look",
            "reward_constant",
            f"all {len(rewards):,} random steps were rewarded {rewards[0]:g}: is it paid at all? If it is rare, random "
            "exploration may never find it",
        )
        return
    if all(map(_grows, episodes)):
        text = "it grows at every step of every episode: return the reward of the step, not the sum so far"
        yield Finding("fix", "reward_cumulative", text)
        return
    size = float(np.quantile(np.abs(rewards), 0.99))
    if size > LARGE or 0 < np.abs(rewards).max() < SMALL:
        text = f"its size is about {size:.3g}: scale it to about 1, or let PPO's normalize do so"
        yield Finding("fix", "reward_scale", text)
    if rewards.max() <= 0 and rewards.mean() < 0 and np.mean([episode.terminated for episode in episodes]) > 0.8:
        yield Finding(
            "look",
            "reward_sign",
            f"no reward is positive (mean {rewards.mean():.3g}) and random episodes terminate: the agent learns to end "
            "them soon. Is the sign right?",
        )


def _tells_nothing(episodes: list[Episode], reward: float) -> bool:
    """Return whether a constant reward prefers no episode: zero, or paid in episodes of one length."""
    return reward == 0 or len({len(episode) for episode in episodes if episode.ended}) <= 1


def _grows(episode: Episode) -> bool:
    sizes = np.abs(episode.rewards)
    return len(sizes) >= MIN_LENGTH and bool((np.diff(sizes) > 0).all())
