"""`probe` names the broken link of an environment, and stays silent about a healthy one."""

import json
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from benchmarks.probe import is_named, report
from benchmarks.probe_faults import CARTPOLE, FAULTS, HEALTHY
from benchmarks.results import RESULTS, read_lines
from typer.testing import CliRunner

from rl_training.cli import app
from rl_training.envs.factory import RegisteredEnv
from rl_training.probing.endings import check_endings
from rl_training.probing.observations import check_observations
from rl_training.probing.play import Episode
from rl_training.probing.probe import probe_env
from rl_training.probing.rewards import check_rewards

# The faults of one fast environment, and those that end the probe at once; the benchmark plays all of them.
AT_ONCE = {"NaN in the observation", "NaN as reward", "reward as an array", "one action too many", "infinite bounds"}
FINDING = r'(?:"(?:fix|look)",|BrokenEnvError\()\s*"(\w+)"'
UNSEEN = {"failure does not end the episode", "left and right swapped"}
FAST = [fault for fault, planted in FAULTS.items() if planted.env_id == CARTPOLE or fault in AT_ONCE]


@pytest.mark.parametrize("fault", sorted(set(FAST) - UNSEEN))
def test_a_planted_fault_is_named_first(fault: str) -> None:
    assert probe_env(FAULTS[fault])[0].name == FAULTS[fault].name


@pytest.mark.parametrize("env_id", [CARTPOLE, "rl_training/Catch-v0", "rl_training/TinyDict-v0", "Blackjack-v1"])
def test_a_healthy_environment_has_no_findings(env_id: str) -> None:
    assert probe_env(RegisteredEnv(env_id)) == []


def test_a_finding_says_what_was_seen_and_what_to_do() -> None:
    (finding,) = probe_env(FAULTS["seed not passed on"])
    assert finding.verdict == "fix"
    assert finding.text == (
        "two resets with the seed 0 start differently: draw from self.np_random, after super().reset(seed=seed)"
    )


def test_every_environment_that_a_probe_makes_is_closed() -> None:
    closed = []

    class Closing(gym.Wrapper):
        def close(self) -> None:
            closed.append(self)

    made = []

    def make() -> Closing:
        made.append(Closing(gym.make(CARTPOLE)))
        return made[-1]

    probe_env(make)
    assert len(made) > 2
    assert sorted(map(id, closed)) == sorted(map(id, made))


# --- The checks on episodes that are written down ---------------------------------------------------------------------


def episode(rewards: list[float], obs: list[float] | None = None, *, terminated: bool = True) -> Episode:
    values = obs or list(range(len(rewards) + 1))
    rows = [np.array([value], np.float32) for value in values]
    return Episode(0, rows, [0] * len(rewards), rewards, terminated=terminated, truncated=not terminated)


def test_a_reward_of_minus_one_per_step_is_a_signal_where_episodes_differ_in_length() -> None:
    assert [f.name for f in check_rewards([episode([-1.0] * 5), episode([-1.0] * 7)])] == ["reward_sign"]
    assert [f.name for f in check_rewards([episode([-1.0] * 5), episode([-1.0] * 5)])] == ["reward_constant"]


def test_rewards_that_grow_at_every_step_are_a_sum() -> None:
    growing = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert [f.name for f in check_rewards([episode(growing), episode(growing)])] == ["reward_cumulative"]
    level = [*growing[:-1], 7.0]
    assert list(check_rewards([episode(growing), episode(level)])) == []


def test_a_state_that_always_ends_the_episode_is_no_time_limit() -> None:
    """The last observation, 99, is seen at ends only; without it, the last ones are like those before."""
    recognised = [episode([1.0] * 12, [number / 10 + step for step in range(12)] + [99.0]) for number in range(4)]
    assert list(check_endings(recognised, None)) == []
    like_others = [episode([1.0] * 13, [number / 10 + step % 3 for step in range(14)]) for number in range(4)]
    assert [f.name for f in check_endings(like_others, None)] == ["time_limit_as_termination"]


def test_a_few_equal_lengths_are_no_time_limit() -> None:
    lengths = [12, 12, 12, *range(2, 12)]
    episodes = [episode([1.0] * length, [step % 3 for step in range(length + 1)]) for length in lengths]
    assert list(check_endings(episodes, None)) == []


def test_an_observation_without_velocity_is_incomplete() -> None:
    """Masses that swing: the position alone leaves the direction open, two positions do not."""
    phases = np.random.default_rng(0).uniform(0, 6.28, 20)
    swings = [[float(np.sin(0.3 * step + phase)) for step in range(31)] for phase in phases]
    hidden = [episode([float(step % 2) for step in range(30)], swing) for swing in swings]
    assert [f.name for f in check_observations(hidden, is_float=True)] == ["observation_incomplete"]


# --- The command and the benchmark ------------------------------------------------------------------------------------


def test_the_command_names_the_fault_and_exits_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "still_envs.py").write_text(
        "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Still(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        return super().step(0)\n"
        "gym.register('Still-v0', Still, max_episode_steps=200)\n"
    )
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["probe", "--env", "still_envs:Still-v0"])
    assert answer.exit_code == 1
    assert answer.output.startswith("fix   action_no_effect")


def test_a_healthy_environment_exits_with_zero() -> None:
    answer = CliRunner().invoke(app, ["probe", "--env", CARTPOLE, "--json"])
    assert answer.exit_code == 0
    assert json.loads(answer.output) == {"part": "env", "subject": CARTPOLE, "findings": []}


def test_something_to_probe_must_be_given() -> None:
    assert CliRunner().invoke(app, ["probe"]).exit_code == 2


def test_a_fault_counts_as_named_if_it_is_the_first_that_the_healthy_environment_does_not_have() -> None:
    line = {"findings": [("look", "reward_constant"), ("look", "action_delayed")]}
    assert is_named("action_delayed", line, {"reward_constant"})
    assert not is_named("action_delayed", line, set())


def test_the_recorded_probe_names_five_of_six_faults_without_a_false_alarm() -> None:
    lines = read_lines(RESULTS / "probe.jsonl")
    assert {line["fault"] for line in lines if "fault" in line} == set(FAULTS)
    assert {line["env_id"] for line in lines if "fault" not in line} == set(HEALTHY)
    assert report(lines, 0.0) == 0


def test_the_page_explains_every_finding() -> None:
    sources = (RESULTS.parent.parent / "src" / "rl_training" / "probing").glob("*.py")
    names = {name for source in sources for name in re.findall(FINDING, source.read_text("utf-8"))}
    page = (RESULTS.parent.parent / "docs" / "not_learning.md").read_text("utf-8")
    assert len(names) > 25
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
