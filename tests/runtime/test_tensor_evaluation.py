"""Evaluations in tensor environments: all episodes step in one call, and each is what it is alone."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from builders import make_config
from rl_training.core.counters import Keys
from rl_training.core.seeding import Streams
from rl_training.core.types import ActResult, Algorithm, Carry, State
from rl_training.envs.factory import EnvFactory, make_env_factory
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.tensor_env import TensorEnv, as_gym_env
from rl_training.envs.tensor_rows import TensorRows
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import EnvError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime import evaluation
from rl_training.runtime.evaluation import (
    EvalEpisode,
    EvaluationInterrupted,
    evaluate_episodes,
    evaluate_run,
    evaluate_together,
)
from rl_training.runtime.setup import make_setup


class Countdown:
    """Its episodes are as long as their seed says, at most 5 steps; rewards are random, observations the steps left."""

    max_episode_steps: int | None = 5

    def __init__(self, fault: str = "", at: int = 0) -> None:
        """`fault`: what is wrong when `at` steps are left in the episode with seed 4."""
        self.observation_space: gym.Space[Any] = Box(0.0, np.inf, (1,), np.float32)
        self.action_space: gym.Space[Any] = Discrete(2)
        self.rows_of_steps: list[int] = []
        self._fault, self._at = fault, at

    def first(self, keys: Keys) -> State:
        return {"left": keys.seed, "seed": keys.seed}

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        assert (state["left"] > 0).all(), "a row was stepped after its end"
        assert ENV_CALLS.active  # the hang watch looks at this call
        self.rows_of_steps.append(len(actions))
        new = state | {"left": state["left"] - 1}
        rewards = keys.uniform(0, 1)[:, 0] + 10.0 * actions
        if self._fault == "call" and self._is_bad(new).any():
            raise ValueError("broken")
        return new, torch.where(self._is_bad(new) & (self._fault == "reward"), torch.inf, rewards), new["left"] == 0

    def observe(self, state: State) -> Tensor:
        left = state["left"].float()
        return torch.where(self._is_bad(state) & (self._fault == "obs"), torch.nan, left)[:, None]

    def _is_bad(self, state: State) -> Tensor:
        return (state["seed"] == 4) & (state["left"] == self._at)


class Alternating:
    """A recurrent policy: its carry counts the steps of the episode; it acts by the count modulo 2."""

    def __init__(self, device: str = "cpu") -> None:
        """`device`: of its parameters."""
        self.rows_of_calls: list[int] = []
        self._device = device

    def act(self, obs: np.ndarray, *, carry: Carry | None = None, **options: Any) -> ActResult:
        self.rows_of_calls.append(len(obs))
        count = carry["count"] if carry else np.zeros(len(obs), np.int64)
        return ActResult(count % 2, {"count": count + 1})

    def policy_state_dict(self) -> State:
        return {"params": torch.empty(1, device=self._device)}


def evaluate(env: TensorEnv, seeds: list[int], policy: Alternating | None = None, **options: Any) -> list[EvalEpisode]:
    algorithm: Any = policy or Alternating()
    return evaluate_run(make_config(Path("unused")), lambda: as_gym_env(env), algorithm, seeds, **options)


def untrained(algo: str, env_id: str, **settings: Any) -> tuple[TrainConfig, EnvFactory, Algorithm]:
    config = make_config(Path("unused"), algo=algo, env_id=env_id, algo_kwargs=settings)
    factory = make_env_factory(env_id)
    return config, factory, config.spec.build_algorithm(make_setup(config, factory))


def in_turn(factory: EnvFactory, algorithm: Any, seeds: list[int]) -> list[EvalEpisode]:
    with SyncEnvs(factory) as envs:
        return evaluate_episodes(envs, algorithm, seeds)


def values(episodes: list[EvalEpisode]) -> list[Any]:
    """Return all that is known of episodes; their comparison leaves out rewards and first actions."""
    firsts = [[part.tolist() for part in one.first or ()] for one in episodes]
    return [(one.record(), list(one.rewards), first) for one, first in zip(episodes, firsts, strict=True)]


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        ("dqn", "tensor/CartPole-v1"),
        ("recurrent_ppo", "tensor/CartPole-v1"),
        ("sac", "tensor/Pendulum-v1"),
        ("dqn", "tensor/Catch-v0"),
        ("pqn", "tensor/MinAtar-Breakout-v0"),
    ],
)
def test_episodes_are_bit_for_bit_those_of_one_after_the_other(
    algo: str, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_ROWS", 7)  # the others start when a row is free
    config, factory, algorithm = untrained(algo, env_id)
    seeds = Streams(3).eval_seeds(20)
    expected = in_turn(factory, algorithm, seeds)
    assert values(evaluate_run(config, factory, algorithm, seeds)) == values(expected)
    assert len({one.ret for one in expected}) > 1


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        ("dqn", "tensor/CartPole-v1"),
        ("recurrent_ppo", "tensor/CartPole-v1"),
        ("dqn", "tensor/Catch-v0"),
        ("pqn", "tensor/MinAtar-Breakout-v0"),
    ],
)
def test_acting_in_one_call_as_on_a_gpu_plays_the_same_episodes(
    algo: str, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_ROWS", 7)
    monkeypatch.setattr(evaluation, "is_on_gpu", lambda algorithm: True)
    config, factory, algorithm = untrained(algo, env_id)
    seeds = Streams(3).eval_seeds(20)
    assert values(evaluate_run(config, factory, algorithm, seeds)) == values(in_turn(factory, algorithm, seeds))


@pytest.mark.parametrize(("device", "rows_of_calls"), [("cpu", [1] * 6), ("meta", [2] * 3)])
def test_rows_act_in_one_call_of_one_shape_unless_the_policy_is_on_the_cpu(
    device: str, rows_of_calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_ROWS", 2)  # the last episode starts when the second ends
    env, algorithm = Countdown(), Alternating(device)
    episodes = evaluate(env, [3, 1, 2], algorithm)
    assert algorithm.rows_of_calls == rows_of_calls
    assert values(episodes) == values(in_turn(lambda: as_gym_env(env), Alternating(), [3, 1, 2]))


def test_all_episodes_step_in_one_call_and_end_by_themselves_or_by_the_time_limit() -> None:
    env = Countdown()
    assert [one.length for one in evaluate(env, [3, 1, 9, 4])] == [3, 1, 5, 4]
    assert env.rows_of_steps == [4, 3, 3, 2, 1]


def test_a_free_row_plays_the_next_episode_and_reports_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_ROWS", 2)
    env, reported = Countdown(), list[int]()
    seeds = [4, 1, 2, 3]
    episodes = evaluate(env, seeds, on_episode=lambda each: reported.append(each.episode))
    assert values(episodes) == values(in_turn(lambda: as_gym_env(env), Alternating(), seeds))
    assert env.rows_of_steps[:6] == [2, 2, 2, 2, 1, 1]  # 1 + 2 + 3 steps beside and after the 4 of the first
    assert reported == [0, 1, 2, 3]


def test_an_episode_without_an_end_is_cut_and_a_signal_ends_the_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    env, algorithm = Countdown(), Alternating()
    with SyncEnvs(lambda: as_gym_env(env)) as envs:
        rows = TensorRows(env, envs.slot, 2)
        episodes = evaluate_together(rows, algorithm, [3, 5, 2], max_steps=2)  # type: ignore[arg-type]
    assert [one.length for one in episodes] == [2, 2, 2]
    assert caplog.messages == [f"evaluation episode {n} (seed {s}) was cut at 2 steps" for n, s in ((0, 3), (1, 5))]
    with pytest.raises(EvaluationInterrupted):
        evaluate(env, [3, 5], interrupted=lambda: True)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("obs", r"env 1 returned the observation \[nan\] .* at step 2 of episode 1 \(seed 4\)"),
        ("reward", r"env 1 returned the reward inf, .* at step 2 of episode 1 \(seed 4\)"),
        ("call", "the tensor environment raised ValueError: broken at step 2 of all environments"),
    ],
)
def test_a_bad_value_is_reported_with_its_episode(fault: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        evaluate(Countdown(fault, at=2), [5, 4, 5])


def test_random_actions_are_those_of_one_episode_after_the_other() -> None:
    seeds = Streams(3).eval_seeds(4)
    config, factory, algorithm = untrained("ppo", "tensor/CartPole-v1", sampled_evaluation=True)
    found = evaluate_run(config, factory, algorithm, seeds)
    _, _, again = untrained("ppo", "tensor/CartPole-v1", sampled_evaluation=True)
    assert values(found) == values(in_turn(factory, again, seeds))


def test_wrappers_see_one_episode_after_the_other() -> None:
    config, _, algorithm = untrained("dqn", "tensor/CartPole-v1")
    wrapper = {"class": "rl_training.envs.memory_tasks:ZeroedEntries", "entries": [1, 3]}
    factory = make_env_factory("tensor/CartPole-v1", {}, [wrapper])
    seeds = Streams(3).eval_seeds(4)
    found = evaluate_run(config, factory, algorithm, seeds)
    assert values(found) == values(in_turn(factory, algorithm, seeds))
    assert found[0].first is not None
    assert found[0].first[0][0, [1, 3]].tolist() == [0.0, 0.0]
