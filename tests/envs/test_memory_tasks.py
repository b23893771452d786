"""Tasks that need memory: what they hide, what they ask, and that they are registered."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.factory import make_env_factory
from rl_training.envs.memory_tasks import Recall, ZeroedEntries


@pytest.mark.parametrize(
    ("hidden", "shown", "entries", "limit"),
    [
        ("rl_training/CartPoleNoVelocity-v0", "CartPole-v1", [1, 3], 500),
        ("rl_training/PendulumNoVelocity-v0", "Pendulum-v1", [2], 200),
    ],
)
def test_velocities_are_zero_and_the_rest_is_the_same(hidden: str, shown: str, entries: list[int], limit: int) -> None:
    env, whole = make_env_factory(hidden)(), gym.make(shown)
    assert env.spec is not None
    assert env.spec.max_episode_steps == limit
    obs, expected = env.reset(seed=0)[0], whole.reset(seed=0)[0]
    whole.action_space.seed(0)
    for _ in range(5):
        assert not obs[entries].any()
        kept = [entry for entry in range(len(obs)) if entry not in entries]
        assert np.array_equal(obs[kept], expected[kept])
        assert expected[entries].any()
        action = whole.action_space.sample()
        (obs, reward, *_), (expected, other, *_) = env.step(action), whole.step(action)
        assert reward == other


@pytest.mark.parametrize("answer", [0, 1])
def test_the_cue_is_shown_once_and_asked_for_after_the_delay(answer: int) -> None:
    env: Any = make_env_factory("rl_training/Recall-v0", {"delay": 3})()
    obs, _ = env.reset(seed=0)
    cue = int(obs.argmax())
    assert obs.sum() == 1.0
    seen = []
    for _ in range(3):
        obs, reward, terminated, truncated, _ = env.step(cue)
        seen.append(obs.tolist())
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert seen == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]  # the question
    _, reward, terminated, truncated, _ = env.step(answer)
    assert (reward, terminated, truncated) == (float(answer == cue), True, False)


def test_both_cues_occur() -> None:
    env = Recall()
    assert {int(env.reset(seed=seed)[0].argmax()) for seed in range(20)} == {0, 1}


@pytest.mark.parametrize("kwargs", [{"num_cues": 1}, {"delay": 0}])
def test_a_task_without_a_question_is_refused(kwargs: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="num_cues must be at least 2 and delay at least 1"):
        Recall(**kwargs)


def test_entries_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"entries must be in \[0, 3\], got 4"):
        ZeroedEntries(gym.make("CartPole-v1"), [1, 4])
    with pytest.raises(ValueError, match="needs vector observations"):
        ZeroedEntries(gym.make("FrozenLake-v1"), [0])
