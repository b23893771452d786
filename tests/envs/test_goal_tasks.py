"""The goal environments keep Gymnasium's rules, and their known answers are right."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.goal_tasks import BitFlip, PointReach


def test_flipping_the_bits_that_differ_reaches_the_goal_with_the_best_return() -> None:
    env = BitFlip(num_bits=6)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        different = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
        assert len(different) > 0
        steps = [env.step(np.int64(bit)) for bit in different]
        assert [step[2] for step in steps] == [False] * (len(different) - 1) + [True]
        assert sum(step[1] for step in steps) == 1 - len(different)
        assert [step[4]["is_success"] for step in steps] == [step[2] for step in steps]


def test_an_episode_of_bits_is_truncated_after_as_many_steps_as_bits() -> None:
    env = BitFlip(num_bits=3)
    same: list[np.int64] = []
    while not same:  # a bit whose flips never reach the goal
        obs, _ = env.reset()
        same = list(np.flatnonzero(obs["achieved_goal"] == obs["desired_goal"]))
    assert [env.step(same[0])[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_moving_straight_reaches_the_point_in_the_known_number_of_steps() -> None:
    env = PointReach()
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        best = env.steps_to_goal(obs["achieved_goal"], obs["desired_goal"])
        rewards = []
        for _ in range(20):
            obs, reward, terminated, truncated, info = env.step(
                np.clip((obs["desired_goal"] - obs["achieved_goal"]) / env.stride, -1.0, 1.0)
            )
            rewards.append(reward)
            assert not terminated
            assert info["is_success"] == (reward == 0.0)
        assert truncated
        assert sum(rewards) == min(0, 1 - best)


@pytest.mark.parametrize("name", ["BitFlip-v0", "PointReach-v0"])
def test_their_methods_repeat_what_steps_return(name: str) -> None:
    env = gym.make(f"rl_training/{name}").unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(100):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        goals = obs["achieved_goal"], obs["desired_goal"]
        assert env.compute_reward(*goals, {}) == reward  # type: ignore[attr-defined]
        assert env.compute_terminated(*goals, {}) == terminated  # type: ignore[attr-defined]
        if terminated or truncated:
            env.reset()
