"""The benchmark of other packages: its settings are valid, and a failing case costs no other one."""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from benchmarks.package_case import CASES, PackageCase, examine
from benchmarks.packages import run_case

from benchmarks import package_case
from rl_training.envs.tiny import Chain


@pytest.mark.parametrize("name", CASES)
def test_the_settings_of_a_case_and_of_its_remedy_are_valid(name: str, tmp_path: Path) -> None:
    for changes in ({}, CASES[name].remedy or {}):
        config = package_case._runnable(name, changes).config(tmp_path)
        assert (config.env_id, config.algo) == (CASES[name].env_id, CASES[name].algo)


class TwoRewards(gym.Wrapper[Any, Any, Any, Any]):
    """Returns two rewards, which a run refuses."""

    def __init__(self) -> None:
        super().__init__(Chain(num_states=3, random_start=True))

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, [reward, reward], *rest


def test_a_refused_case_is_tried_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"algo_kwargs": {"learning_starts": 30, "hidden_sizes": [8]}}
    case = PackageCase(
        package="tiny",
        env_id="Chain",
        algo="dqn",
        first=short,
        env_factory=TwoRewards,
        remedy={
            "env_factory": "rl_training.envs.tiny:Chain",
            "wrappers": [{"class": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 9}],
        },
    )
    monkeypatch.setitem(CASES, "tiny", case)
    found = examine("tiny")
    assert found["outcome"] == "works with the remedy"
    assert "a reward of 2 numbers" in found["message"]
    assert found["resume_exact"]


@pytest.mark.process
def test_a_case_that_fails_is_reported() -> None:
    found = run_case(sys.executable, "no-such-case")
    assert found["outcome"] == "failed"
    assert "no-such-case" in found["message"]
