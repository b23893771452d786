"""The rules end a step exactly where the environment does."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.envs.terminations import NEVER, Bound, Unless, termination_rule

pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore:.*out of date")

HEALTHY = ["Hopper", "Walker2d", "Ant", "Humanoid", "InvertedPendulum"]
# The ant falls only if it is pushed: a narrower range of heights ends its episodes, too.
NARROW = {"Ant": {"healthy_z_range": (0.5, 0.9)}}


def play(env_id: str, kwargs: dict[str, Any], steps: int = 400) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Act at random: obs, actions, next_obs, terminated of every step."""
    env = gym.make(env_id, **kwargs)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    rows: list[tuple[Any, ...]] = []
    for _ in range(steps):
        action = env.action_space.sample()
        next_obs, _, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, next_obs, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    columns = [torch.from_numpy(np.array(column)) for column in zip(*rows, strict=True)]
    return columns[0], columns[1], columns[2], columns[3]


@pytest.mark.parametrize("version", ["v4", "v5"])
@pytest.mark.parametrize("body", HEALTHY)
def test_a_rule_says_what_the_environment_says(body: str, version: str) -> None:
    kwargs = NARROW.get(body, {})
    obs, actions, next_obs, terminated = play(f"{body}-{version}", kwargs)
    rule = termination_rule(f"{body}-{version}", kwargs)
    assert rule is not None
    assert 3 <= terminated.sum() < len(terminated)
    assert torch.equal(rule(obs, actions, next_obs), terminated)


CHANGED = [
    ("Hopper-v5", {"healthy_z_range": (1.2, 1.3)}),
    ("Hopper-v5", {"healthy_angle_range": (-0.03, 0.05), "healthy_z_range": (0.0, 5.0)}),
    ("Hopper-v5", {"healthy_state_range": (-2.0, 3.0), "healthy_angle_range": (-9.0, 9.0)}),
    ("Hopper-v5", {"exclude_current_positions_from_observation": False}),
    ("Walker2d-v5", {"healthy_angle_range": (-0.2, 0.2), "exclude_current_positions_from_observation": False}),
    ("Ant-v5", {"healthy_z_range": (0.6, 0.9), "exclude_current_positions_from_observation": False}),
    ("Ant-v4", {"healthy_z_range": (0.6, 0.9), "use_contact_forces": True}),
    ("Humanoid-v5", {"healthy_z_range": (1.2, 2.0), "include_cinert_in_observation": False}),
    ("Humanoid-v4", {"exclude_current_positions_from_observation": False}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.1, "frame_skip": 4}),
]


@pytest.mark.parametrize(("env_id", "kwargs"), CHANGED)
def test_it_follows_the_settings_of_the_environment(env_id: str, kwargs: dict[str, Any]) -> None:
    obs, actions, next_obs, terminated = play(env_id, kwargs)
    rule, usual = termination_rule(env_id, kwargs), termination_rule(env_id)
    assert rule is not None
    assert usual is not None
    assert 3 <= terminated.sum() < len(terminated)
    assert torch.equal(rule(obs, actions, next_obs), terminated)
    changes_the_rule = env_id != "InvertedPendulum-v5"
    assert torch.equal(usual(obs, actions, next_obs), terminated) != changes_the_rule


@pytest.mark.parametrize(
    "env_id",
    ["HalfCheetah-v4", "HalfCheetah-v5", "Swimmer-v5", "Reacher-v5", "Pusher-v5", "HumanoidStandup-v5", "Pendulum-v1"],
)
def test_some_never_terminate(env_id: str) -> None:
    *steps, terminated = play(env_id, {}, steps=100)
    assert not terminated.any()
    assert termination_rule(env_id) == NEVER
    assert torch.equal(NEVER(*steps), terminated)


@pytest.mark.parametrize("body", ["Hopper", "Walker2d", "Ant", "Humanoid"])
def test_what_is_not_to_end_when_unhealthy_never_terminates(body: str) -> None:
    kwargs = {"terminate_when_unhealthy": False}
    assert termination_rule(f"{body}-v5", kwargs) == NEVER
    *_, terminated = play(f"{body}-v5", kwargs, steps=100)
    assert not terminated.any()


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5"])
def test_of_another_body_nothing_is_known(env_id: str) -> None:
    assert termination_rule(env_id, {"xml_file": "mine.xml"}) is None


@pytest.mark.parametrize(
    "env_id", ["", "MountainCarContinuous-v0", "InvertedDoublePendulum-v5", "Hopper-v3", "MyHopper-v5"]
)
def test_of_other_environments_nothing_is_known(env_id: str) -> None:
    assert termination_rule(env_id) is None


def test_ends_of_ranges_belong_to_them_or_not_as_in_the_environment() -> None:
    # Humanoid: 1 < z < 2. Ant: 0.2 <= z <= 1. InvertedPendulum: |angle| <= 0.2.
    nothing = torch.zeros(3, 1, dtype=torch.float64)
    heights = torch.tensor([[1.0], [1.5], [2.0]], dtype=torch.float64)
    assert _ends("Humanoid-v5", heights, nothing) == [True, False, True]
    assert _ends("Ant-v5", torch.tensor([[0.2], [1.0], [1.01]], dtype=torch.float64), nothing) == [False, False, True]
    angles = torch.tensor([[9.0, 0.2], [9.0, -0.2], [9.0, 0.21]], dtype=torch.float64)
    assert _ends("InvertedPendulum-v5", angles, nothing) == [False, False, True]


def _ends(env_id: str, next_obs: Tensor, nothing: Tensor) -> list[bool]:
    rule = termination_rule(env_id)
    assert rule is not None
    return rule(nothing, nothing, next_obs).tolist()


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5"])
def test_what_is_no_number_ends_an_episode(env_id: str) -> None:
    obs, actions, next_obs, terminated = play(env_id, {}, steps=5)
    assert not terminated[0]
    broken = next_obs.clone()
    broken[0, :2] = float("nan")
    rule = termination_rule(env_id)
    assert rule is not None
    assert rule(obs, actions, broken)[0]


def test_rules_take_any_leading_dimensions_and_are_named_by_their_numbers() -> None:
    rule = Unless((Bound(0, 1, -1.0, 1.0),))
    next_obs = torch.tensor([[[0.0, 7.0], [2.0, 0.0]], [[-2.0, 0.0], [0.5, 0.0]]])
    assert rule(next_obs, next_obs, next_obs).tolist() == [[False, True], [True, False]]
    assert repr(rule) != repr(Unless((Bound(0, 1, -1.0, 1.5),)))
