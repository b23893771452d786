"""Comparisons of groups of environments."""

import numpy as np

from rl_training.envs.vector import EnvGroup


def assert_same_results(sync: EnvGroup, other: EnvGroup, num_steps: int = 150) -> int:
    """Assert that two groups with the same environments return the same, bit for bit; return the number of resets."""
    assert other.observation_space == sync.observation_space
    assert other.action_space == sync.action_space
    indices, num_resets = list(range(sync.num_envs)), 0
    seeds = [3 + index for index in indices]
    sync.action_space.seed(0)
    for step in range(num_steps):
        if indices:
            num_resets += len(indices)
            expected, expected_infos = sync.reset(indices, seeds)
            found, found_infos = other.reset(indices, seeds)
            assert expected.tobytes() == found.tobytes()
            assert expected_infos == found_infos
        actions = np.stack([sync.action_space.sample() for _ in range(sync.num_envs)])
        one, another = sync.step(actions), other.step(actions)
        for name in ("obs", "rewards", "terminated", "truncated"):
            mine, theirs = getattr(one, name), getattr(another, name)
            assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        assert one.infos == another.infos  # FrozenLake has some: {"prob": 1/3}
        indices = one.ended
        seeds = [100 * step + index for index in indices]
    return num_resets
