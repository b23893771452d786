"""What the critics estimate at the first step of an evaluation episode, beside what the episode then gave."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from builders import make_box_setup
from rl_training import SAC, TrainConfig
from rl_training.core.types import Algorithm
from rl_training.experiment.registry import registry
from rl_training.learners.actor_critic import ActorCritic
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluation import EvalEpisode, compare_values
from rl_training.runtime.run import Run


class AddsUp:
    """Estimates the sum of the first observation and action."""

    def estimated_returns(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return cast(np.ndarray, (obs + actions).sum(1))


def episode(obs: float, action: float, *rewards: float) -> EvalEpisode:
    first = np.array([[obs]]), np.array([[action]])
    return EvalEpisode(0, 0, sum(rewards), len(rewards), rewards, first)


def test_the_first_value_stands_beside_the_discounted_return() -> None:
    episodes = [episode(1.0, 2.0, 1.0, 2.0, 4.0), episode(4.0, 1.0, 2.0)]
    # 1 + 2 / 2 + 4 / 4 = 3 and 2 are received, 1 + 2 = 3 and 4 + 1 = 5 estimated.
    found = compare_values(cast(Algorithm, AddsUp()), episodes, gamma=0.5)
    assert found == {"first_q_value": 4.0, "discounted_return": 2.5}


def test_nothing_is_compared_without_estimates_or_first_steps() -> None:
    assert compare_values(cast(Algorithm, object()), [episode(1.0, 2.0, 1.0)], gamma=0.5) == {}
    assert compare_values(cast(Algorithm, AddsUp()), [EvalEpisode(0, 0, 1.0, 1)], gamma=0.5) == {}


def build(algo: str) -> ActorCritic:
    return cast(ActorCritic, registry()[algo].build_algorithm(make_box_setup(algo)))


def test_critics_that_learn_from_scaled_rewards_estimate_no_returns() -> None:
    obs, actions = np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float32)
    assert build("td3").estimated_returns(obs, actions) is not None
    assert build("td3_bc").estimated_returns(obs, actions) is None


class Watch(Callback):
    """Computes at each evaluation what the critics say of normalised first observations."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.returns: list[float] = []

    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        learner = cast(ActorCritic, run.algorithm)
        obs, actions = (
            np.concatenate([cast(tuple[np.ndarray, np.ndarray], one.first)[part] for one in episodes])
            for part in (0, 1)
        )
        assert learner.scaling.normalizer is not None
        inputs = [torch.from_numpy(rows) for rows in (learner.scaling.normalizer.rows(obs), actions)]
        values = learner.recipe.critics.apply(learner.state["critic.params"], *inputs)  # (2 critics, 2 episodes)
        assert values.shape == (2, 2)
        self.values.append(float(torch.minimum(values[0], values[1]).mean()))
        self.returns.append(float(np.mean([sum(r / 2**step for step, r in enumerate(e.rewards)) for e in episodes])))


def test_sac_logs_its_first_value_at_each_evaluation(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=12,
        eval_interval=6,
        eval_episodes=2,
        max_episode_steps=3,
        output_dir=tmp_path,
        algo_kwargs={"learning_starts": 8, "batch_size": 4, "gamma": 0.5, "normalize_observations": True},
    )
    watch = Watch()
    result = SAC(config, callbacks=[watch], show_progress=False).learn()
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    logged = {record["step"]: record["metrics"] for record in records if "first_q_value" in record["metrics"]}
    assert list(logged) == [6, 12]
    assert [each["first_q_value"] for each in logged.values()] == pytest.approx(watch.values)
    assert [each["discounted_return"] for each in logged.values()] == pytest.approx(watch.returns)
