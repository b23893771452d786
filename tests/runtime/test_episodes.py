"""One episode as evaluations and recordings play it: resets, masks, carries, limits."""

import logging
from typing import Any

import numpy as np
import pytest

from rl_training.core.types import ActResult, Carry
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.tiny import Chain
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import EnvError
from rl_training.runtime.episodes import MAX_EPISODE_STEPS, Act, EpisodeStep, follow_episode, play_episode
from rl_training.runtime.evaluation import evaluate_episodes


def always(action: int) -> Act:
    return lambda obs, mask: np.array([action])


def play(factory: Any, act: Act, **options: Any) -> list[EpisodeStep]:
    with SyncEnvs(factory) as envs:
        return list(play_episode(envs, act, **{"seed": 3, "number": 0, **options}))


def test_steps_lead_from_the_reset_to_the_end_of_the_episode() -> None:
    steps = play(Chain, always(1))
    states = [int(step.obs.argmax()) for step in steps]
    assert states == [0, 1, 2, 3]  # five states, and the last one terminates
    assert [int(step.result.obs.argmax()) for step in steps] == [1, 2, 3, 4]
    assert [bool(step.result.terminated[0]) for step in steps] == [False, False, False, True]
    assert not any(step.cut for step in steps)


@pytest.mark.parametrize(("max_steps", "last_is_cut"), [(3, True), (4, False), (5, False)])
def test_an_episode_is_cut_at_the_limit_unless_it_ends_there(max_steps: int, last_is_cut: bool) -> None:
    steps = play(Chain, always(1), max_steps=max_steps)
    assert len(steps) == min(max_steps, 4)
    assert [step.cut for step in steps] == [False] * (len(steps) - 1) + [last_is_cut]


def test_steps_keep_their_actions_although_the_policy_reuses_its_array() -> None:
    chosen = np.zeros(1, np.int64)

    def act(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        chosen[0] = len(seen) % 2
        seen.append(int(chosen[0]))
        return chosen

    seen: list[int] = []
    steps = play(Chain, act, max_steps=6)
    assert [int(step.actions[0]) for step in steps] == seen == [0, 1, 0, 1, 0, 1]


def test_the_policy_sees_the_mask_of_each_observation() -> None:
    def act(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        assert mask is not None
        assert mask.shape == (1, 4)
        return np.array([np.where(mask[0], obs[0], -1.0).argmax()])  # the valid action of the highest rank

    steps = play(RegisteredEnv("rl_training/Masked-v0"), act)
    assert [float(step.result.rewards[0]) for step in steps] == [1.0] * 10


@pytest.mark.parametrize(("step", "place"), [(0, "the reset"), (2, "step 2")])
def test_a_mask_without_valid_actions_is_named_with_its_place(step: int, place: str) -> None:
    def act(obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        assert mask is not None
        return np.asarray(mask.argmax(1))

    masked = RegisteredEnv("rl_training/Masked-v0", {"all_false_at": step})
    with pytest.raises(EnvError, match=rf"all-false action mask .* at {place} of test episode 7 \(seed 9\)$"):
        play(masked, act, seed=9, number=7, name="test episode")


class Counting:
    """A recurrent policy: its carry counts the steps of the episode; it acts by the count modulo 2."""

    def act(self, obs: np.ndarray, *, carry: Carry | None = None, **options: Any) -> ActResult:
        count = carry["count"] if carry else np.zeros(len(obs), np.int64)
        return ActResult(count % 2, {"count": count + 1})


def test_a_recurrent_policy_gets_its_carry_and_starts_each_episode_without() -> None:
    algorithm: Any = Counting()
    for _ in range(2):
        steps = play(Chain, follow_episode(algorithm), max_steps=5)
        assert [int(step.actions[0]) for step in steps] == [0, 1, 0, 1, 0]


class Left:
    def act(self, obs: np.ndarray, **options: Any) -> ActResult:
        return ActResult(np.zeros(len(obs), np.int64))


def test_an_evaluation_in_an_env_without_an_end_is_cut_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    algorithm: Any = Left()
    with caplog.at_level(logging.WARNING), SyncEnvs(Chain) as envs:
        (episode,) = evaluate_episodes(envs, algorithm, [5])
    assert (episode.length, episode.ret) == (MAX_EPISODE_STEPS, 0.0)
    assert caplog.messages == [f"evaluation episode 0 (seed 5) was cut at {MAX_EPISODE_STEPS} steps"]
