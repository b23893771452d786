"""Hindsight experience replay: every new goal, reward and termination is what the same episode would have had."""

import re
from dataclasses import replace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import TransformReward

from builders import make_setup
from rl_training.core.spaces import pack_space
from rl_training.core.types import Batch
from rl_training.data.hindsight import HindsightStorage
from rl_training.data.replay_buffer import ReplayBuffer, build_replay_buffer
from rl_training.envs.dict_obs import Packer
from rl_training.envs.goals import GoalRules
from rl_training.errors import CheckpointError, ConfigError
from state_comparison import assert_identical

ALWAYS = 1e9  # her_ratio at which every sampled row gets a new goal
UNREACHABLE = 99.0
NUMBER = Box(-np.inf, np.inf, (1,), np.float32)
SPACE = Dict({"observation": NUMBER, "achieved_goal": NUMBER, "desired_goal": NUMBER})


class Line(gym.Env[Any, Any]):
    """Walks 1, 2, 3, ... whatever the action; reaching the goal terminates with reward 0, other steps cost 1."""

    observation_space: Any = SPACE
    action_space = Discrete(2)

    def __init__(self, goal: float = 3.0, length: int = 5) -> None:
        self.goal, self.length, self.position = goal, length, 0.0

    @staticmethod
    def compute_reward(achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal == desired_goal)[..., 0].astype(np.float64) - 1.0

    @staticmethod
    def compute_terminated(achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal == desired_goal)[..., 0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = 0.0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.position += 1.0
        arrived = self.position == self.goal
        return self._observe(), float(arrived) - 1.0, arrived, self.position >= self.length and not arrived, {}

    def _observe(self) -> dict[str, np.ndarray]:
        return observe(self.position, self.goal)


def observe(position: float, goal: float) -> dict[str, np.ndarray]:
    at = np.array([position], np.float32)
    return {"observation": at, "achieved_goal": at, "desired_goal": np.array([goal], np.float32)}


PACKED = pack_space(SPACE)
PACKER = Packer(PACKED)


def make_buffer(num_envs: int = 1, make_env: Any = Line, **hparams: Any) -> ReplayBuffer:
    setup = make_setup(observation=PACKED, num_envs=num_envs, **{"her": "future", "her_ratio": ALWAYS, **hparams})
    buffer = build_replay_buffer(replace(setup, make_env=make_env))
    assert isinstance(buffer, ReplayBuffer)
    return buffer


def steps_of(*rows: tuple[float, float, bool]) -> dict[str, np.ndarray]:
    """One step of every env: the position before it, the goal, and whether a time limit ends the episode after it."""
    before, goals, truncated = zip(*rows, strict=True)
    arrived = np.array([position + 1.0 == goal for position, goal in zip(before, goals, strict=True)])
    return {
        "obs": np.stack([PACKER.pack(observe(*row)) for row in zip(before, goals, strict=True)]),
        "next_obs": np.stack([PACKER.pack(observe(p + 1.0, goal)) for p, goal in zip(before, goals, strict=True)]),
        "actions": np.zeros(len(rows), np.int64),
        "rewards": arrived - 1.0,
        "terminated": arrived,
        "truncated": np.array(truncated) & ~arrived,
    }


def add_episode(buffer: ReplayBuffer, length: int, *, start: float = 0.0, goal: float = UNREACHABLE) -> None:
    """Add an episode of one env, which a time limit ends unless it arrives at its goal."""
    for step in range(length):
        buffer.add(steps_of((start + step, goal, step == length - 1)))


def parts(batch: Batch, name: str) -> dict[str, np.ndarray]:
    """The numbers in a batch of observations, (rows,) per part."""
    rows = np.ascontiguousarray(batch[name].numpy())
    return {leaf.name: view[..., 0] for leaf, view in zip(PACKED.leaves, PACKED.views(rows), strict=True)}


# --- A chain of five steps --------------------------------------------------------------------------------------------


def test_every_relabelled_row_equals_the_step_of_an_episode_with_that_goal() -> None:
    buffer = make_buffer()
    add_episode(buffer, 5)
    batch = buffer.sample(2_000)
    before, after = parts(batch, "obs"), parts(batch, "next_obs")
    goals = after["desired_goal"]
    np.testing.assert_array_equal(before["desired_goal"], goals)
    np.testing.assert_array_equal(after["achieved_goal"], before["achieved_goal"] + 1.0)
    for start, goal, reward, terminated in zip(
        before["achieved_goal"], goals, batch["rewards"], batch["terminated"], strict=True
    ):
        env = Line(goal, length=10)
        env.reset()
        env.position = float(start)
        _, expected_reward, expected_end, _, _ = env.step(0)
        assert (float(reward), bool(terminated)) == (expected_reward, expected_end)
    assert set(batch) == {"obs", "next_obs", "actions", "rewards", "terminated"}


def test_future_goals_are_uniform_over_the_step_itself_and_those_after_it() -> None:
    buffer = make_buffer()
    add_episode(buffer, 5)
    batch = buffer.sample(20_000)
    position, goals = parts(batch, "obs")["achieved_goal"], parts(batch, "obs")["desired_goal"]
    # From position p, after which p + 1 is achieved, the goals are p + 1, ..., 5: each with probability 1 / (5 - p).
    for start in range(5):
        counts = np.bincount(goals[position == start].astype(int), minlength=6) / (position == start).sum()
        expected = [0.0] * (start + 1) + [1 / (5 - start)] * (5 - start)
        np.testing.assert_allclose(counts, expected, atol=0.03)


def test_final_goals_are_the_last_achieved_ones_and_episode_goals_any() -> None:
    final, episode = make_buffer(her="final"), make_buffer(her="episode")
    for buffer in (final, episode):
        add_episode(buffer, 5)
    assert set(parts(final.sample(500), "obs")["desired_goal"]) == {5.0}
    batch = episode.sample(20_000)
    counts = np.bincount(parts(batch, "obs")["desired_goal"].astype(int), minlength=6)
    np.testing.assert_allclose(counts / 20_000, [0.0] + [0.2] * 5, atol=0.02)


def test_a_share_of_one_in_k_plus_one_keeps_its_goal_reward_and_termination() -> None:
    buffer = make_buffer(her_ratio=4.0)
    add_episode(buffer, 5)
    batch = buffer.sample(20_000)
    own = parts(batch, "obs")["desired_goal"] == UNREACHABLE
    assert own.mean() == pytest.approx(0.2, abs=0.01)
    assert (batch["rewards"].numpy()[own] == -1.0).all()
    assert not batch["terminated"].numpy()[own].any()


def test_a_time_limit_is_no_termination_and_a_termination_belongs_to_its_goal() -> None:
    limited, arrived = make_buffer(), make_buffer(her="episode")
    add_episode(limited, 1)  # truncated; its only new goal is the one that it reached
    add_episode(arrived, 3, goal=3.0)  # terminated
    batch = limited.sample(10)
    assert batch["terminated"].all()
    assert (batch["rewards"] == 0.0).all()
    batch = arrived.sample(500)
    last = parts(batch, "obs")["achieved_goal"] == 2.0
    goals = parts(batch, "obs")["desired_goal"]
    np.testing.assert_array_equal(batch["terminated"].numpy()[last], goals[last] == 3.0)
    assert set(goals[last]) == {1.0, 2.0, 3.0}  # with goals 1 and 2 the last step no longer terminates


def test_the_running_episode_is_sampled_up_to_its_newest_step() -> None:
    buffer = make_buffer()
    for position in (0.0, 1.0):
        buffer.add(steps_of((position, UNREACHABLE, False)))
    batch = buffer.sample(200)
    pairs = set(zip(parts(batch, "obs")["achieved_goal"], parts(batch, "obs")["desired_goal"], strict=True))
    assert pairs == {(0.0, 1.0), (0.0, 2.0), (1.0, 2.0)}


# --- Rings, several envs, resumes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(("num_envs", "capacity"), [(1, 7), (3, 17), (2, 200)])
def test_goals_come_from_living_rows_of_the_same_episode_only(strategy: str, num_envs: int, capacity: int) -> None:
    generator = np.random.default_rng(0)
    buffer = make_buffer(num_envs, her=strategy, buffer_capacity=capacity)
    starts, steps, episodes = np.arange(num_envs) * 100.0, np.zeros(num_envs), 0
    stored: list[float] = []  # the position that each row achieved; positions of different episodes never meet
    for _ in range(60):
        ends = generator.random(num_envs) < 0.2
        buffer.add(steps_of(*zip(starts + steps, [-1.0] * num_envs, ends, strict=True)))
        steps += 1
        stored += list(starts + steps)
        for env in np.flatnonzero(ends):
            episodes += 1
            starts[env], steps[env] = (num_envs + episodes) * 100.0, 0.0
        alive = set(stored[-capacity:])
        batch = buffer.sample(64)
        achieved, goals = parts(batch, "next_obs")["achieved_goal"], parts(batch, "next_obs")["desired_goal"]
        newest = {start: max(p for p in alive if p // 100 == start // 100) for start in achieved}
        for reached, goal in zip(achieved, goals, strict=True):
            assert goal in alive
            assert goal // 100 == reached // 100
            assert goal >= reached or strategy == "episode"
            assert goal == newest[reached] or strategy != "final"


def test_a_loaded_buffer_draws_the_same_batches_and_continues_its_episodes() -> None:
    buffer, loaded = (make_buffer(2, her="episode", buffer_capacity=11, her_ratio=4.0) for _ in range(2))
    for step in range(8):
        buffer.add(steps_of((step, 5.0, False), (100.0 + step, UNREACHABLE, step == 3)))
    buffer.sample(5)
    loaded.load_state_dict(buffer.state_dict())
    for step in range(8, 12):
        for each in (buffer, loaded):
            each.add(steps_of((step, 5.0, step == 10), (100.0 + step, UNREACHABLE, False)))
        assert_identical(loaded.sample(50), buffer.sample(50))
    assert_identical(loaded.state_dict(), buffer.state_dict())


def test_an_episode_that_a_resume_could_not_continue_ends_where_it_was() -> None:
    buffer, loaded = make_buffer(), make_buffer()
    for step in range(3):
        buffer.add(steps_of((step, UNREACHABLE, False)))
    loaded.load_state_dict(buffer.state_dict())
    loaded.add(steps_of((50.0, UNREACHABLE, False)))  # a new episode, although the old one had no end
    batch = loaded.sample(200)
    achieved, goals = parts(batch, "next_obs")["achieved_goal"], parts(batch, "next_obs")["desired_goal"]
    assert set(goals[achieved < 50.0]) == {1.0, 2.0, 3.0}
    assert set(goals[achieved > 50.0]) == {51.0}


def test_places_that_point_outside_of_the_buffer_are_refused() -> None:
    buffer, loaded = make_buffer(), make_buffer()
    add_episode(buffer, 5)
    cast(HindsightStorage, buffer.storage).rows.arrays["steps_after"][0] = 100
    with pytest.raises(CheckpointError, match="places in episodes that are not stored"):
        loaded.load_state_dict(buffer.state_dict())


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("dqn", {"n_step": 3}, "her: future needs n_step 1, got 3: stored sums of rewards cannot be relabelled"),
        ("dqn", {"prioritized": True}, "her: future needs prioritized: false"),
        ("n_step_dqn", {}, "her: future needs n_step 1, got 3"),
        ("sac", {"n_step": 2}, "her: future needs n_step 1, got 2"),
        ("td3", {"prioritized": True}, "her: future needs prioritized: false"),
        ("redq", {"clip_targets": True, "gamma": 1.0}, "clip_targets needs a gamma below 1, got 1"),
    ],
)
def test_combinations_that_would_be_wrong_are_refused(algo: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_setup(algo=algo, her="future", **settings)


class NoTermination(gym.Env[Any, Any]):
    """A goal environment of the older kind."""

    observation_space, action_space = SPACE, Discrete(2)
    compute_reward = Line.compute_reward


class ReadsInfo(Line):
    @staticmethod
    def compute_reward(achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -info["energy"]


class OtherShape(Line):
    observation_space = Dict({**SPACE.spaces, "desired_goal": Box(-1.0, 1.0, (2,), np.float32)})


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (None, "algo_kwargs.her needs an environment: its methods compute the rewards of new goals"),
        (lambda: gym.make("CartPole-v1"), "needs a Dict observation with the parts observation, achieved_goal"),
        (OtherShape, "needs goals that are arrays of one shape and dtype"),
        (NoTermination, "but NoTermination has no compute_terminated"),
        (ReadsInfo, "compute_reward(achieved_goal, desired_goal, {}) raised KeyError: 'energy'; fields of info"),
        (
            lambda: TransformReward(Line(), lambda reward: 10.0 * float(reward)),
            "whose compute_reward repeats what step returns, but a random step returned -10.0 where",
        ),
    ],
)
def test_environments_whose_rules_cannot_be_used_are_refused(make_env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_buffer(make_env=make_env)


class OneAtATime(Line):
    """Methods that take the goals of one step only."""

    @staticmethod
    def compute_reward(achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 0.0 if bool(np.linalg.norm(achieved_goal - desired_goal) == 0.0) else -1.0

    @staticmethod
    def compute_terminated(achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return bool(achieved_goal == desired_goal)


def test_methods_that_take_no_arrays_are_called_row_by_row(caplog: pytest.LogCaptureFixture) -> None:
    rules, one_at_a_time = GoalRules(Line()), GoalRules(OneAtATime())
    achieved, desired = np.array([[1.0], [2.0], [3.0]], np.float32), np.array([[1.0], [3.0], [3.0]], np.float32)
    for each in (rules, one_at_a_time):
        rewards, terminated = each(achieved, desired)
        assert rewards.tolist() == [0.0, -1.0, 0.0]
        assert terminated.tolist() == [True, False, True]
    assert [record.message for record in caplog.records if "once per relabelled row" in record.message] == [
        f"{name} does not take arrays of goals: it is called once per relabelled row"
        for name in ("compute_reward", "compute_terminated")
    ]


def test_the_environment_that_computes_rewards_is_made_and_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    made: list[gym.Env[Any, Any]] = []

    def make_env() -> gym.Env[Any, Any]:
        made.append(OneAtATime())
        return made[-1]

    make_buffer(make_env=make_env)
    assert len(made) == 1
    assert sum("once per relabelled row" in record.message for record in caplog.records) == 2  # of its two methods


def test_a_batch_is_relabelled_before_it_moves_to_the_device() -> None:
    buffer = make_buffer()
    add_episode(buffer, 5)
    draw = buffer.sampler(16)
    first, second = draw(), draw()
    assert first is second  # the same tensors at every call
    assert isinstance(first["obs"], torch.Tensor)
    assert (parts(first, "obs")["desired_goal"] <= 5.0).all()
