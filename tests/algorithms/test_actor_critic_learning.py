"""SAC, TD3, REDQ, TQC and CrossQ learn tiny environments whose answer is known: the values, not only the trend."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from builders import make_config
from rl_training.experiment.registry import registry
from rl_training.learners.actor_critic import ActorCritic
from rl_training.models.distributions import SquashedGaussian
from rl_training.runtime.trainer import RunOptions, TrainResult, train

pytestmark = pytest.mark.learning

FAMILY = ["sac", "td3", "redq"]
# Updates like those of SAC for all, so that a run takes a second or two.
QUICK: dict[str, Any] = {
    "batch_size": 64,
    "buffer_capacity": 2_000,
    "learning_starts": 100,
    "learning_rate": 5e-3,
    "actor_learning_rate": None,
    "alpha_learning_rate": None,
    "hidden_sizes": [32, 32],
    "gradient_updates_per_step": 1,
    "policy_delay": 2,
    "tau": 0.05,
}


def learn(tmp_path: Path, algo: str, steps: int, *, env: Any = None, num_envs: int = 1, **hparams: Any) -> TrainResult:
    known = registry()[algo].hparams.model_fields
    config = make_config(
        tmp_path,
        algo=algo,
        env_id="rl_training/Identity-v0",
        env_kwargs={} if env else {"actions": "box", "size": 1},
        total_timesteps=steps,
        num_envs=num_envs,
        eval_episodes=10,
        algo_kwargs={name: value for name, value in QUICK.items() if name in known} | hparams,
    )
    return train(config, RunOptions(env_factory=env, show_progress=False))


def q_values(result: TrainResult, obs: list[list[float]], actions: list[list[float]]) -> np.ndarray:
    """Of every critic: (critics, rows)."""
    learner = result.algorithm
    assert isinstance(learner, ActorCritic)
    with torch.no_grad():
        values: np.ndarray = learner.recipe.values(learner.state, torch.tensor(obs), torch.tensor(actions)).numpy()
    return values


# Without randomness all quantiles are the value; three are the least that can drop one and keep two.
SMALL_TQC: dict[str, Any] = {"critic_hidden_sizes": [32, 32], "num_critics": 2, "num_quantiles": 3}


@pytest.mark.parametrize(
    ("algo", "extra"),
    [
        ("sac", {"alpha": 0.01}),
        ("td3", {}),
        ("redq", {"alpha": 0.01}),
        ("crossq", {"alpha": 0.01, "critic_hidden_sizes": [64, 64], "norm_rate": 0.05, "norm_warmup": 0}),
    ],
)
def test_numbers_are_answered_with_themselves_and_valued_by_their_distance(
    algo: str, extra: dict[str, Any], tmp_path: Path
) -> None:
    # Without a future the value of an action is its reward: minus the squared distance to what is seen.
    result = learn(tmp_path, algo, 800, gamma=0.0, **extra)
    assert min(episode.ret for episode in result.eval_episodes) > -0.1  # ten steps, each off by less than 0.1
    obs = np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    np.testing.assert_allclose(result.algorithm.act(obs).actions, obs, atol=0.15)
    seen, tried = [[0.5], [0.5], [-0.6]], [[0.5], [-0.3], [0.4]]
    np.testing.assert_allclose(q_values(result, seen, tried).mean(0), [0.0, -(0.8**2), -(1.0**2)], atol=0.1)


class Walk(gym.Env[np.ndarray, np.ndarray]):
    """From state 0 to state 1 and, if that does not terminate, back; reward 1 in state 0 alone, whatever the action.

    Cut off after three steps, in the middle, unless it terminates.
    """

    def __init__(self, *, terminates: bool) -> None:
        self.observation_space, self.action_space = Box(0.0, 1.0, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)
        self._terminates, self._state, self._num_steps = terminates, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._state = self._num_steps = 0
        return np.eye(2, dtype=np.float32)[0], {}

    def step(self, action: np.ndarray) -> Any:
        reward, ends = float(self._state == 0), self._terminates and self._state == 1
        self._state, self._num_steps = 1 - self._state, self._num_steps + 1
        return np.eye(2, dtype=np.float32)[self._state], reward, ends, not ends and self._num_steps == 3, {}


STATES, ACTIONS = [[1.0, 0.0], [0.0, 1.0]], [[0.3], [-0.5]]


def largest_entropy() -> float:
    """What a squashed normal number can reach, slightly less than the uniform one's log 2, by numerical integration."""
    noise = torch.linspace(-6.0, 6.0, 2_001)
    weights = torch.exp(-0.5 * noise.square())
    log_stds = torch.linspace(-0.5, 0.5, 101)
    outputs = torch.stack((torch.zeros(101), log_stds), 1).repeat_interleave(2_001, 0)
    _, log_probs = SquashedGaussian((1,)).rsample(outputs, noise.repeat(101)[:, None])
    return float((-(log_probs.view(101, 2_001) * weights).sum(1) / weights.sum()).max())


@pytest.mark.parametrize(("algo", "extra"), [("sac", {}), ("redq", {}), ("tqc", {**SMALL_TQC, "dropped_quantiles": 1})])
def test_soft_values_count_the_entropy_that_follows_and_stop_at_a_termination(
    algo: str, extra: dict[str, Any], tmp_path: Path
) -> None:
    # No action matters, so that the best policy is the one of most entropy H. Q(1) = 0: it terminates.
    # Q(0) = 1 + gamma * (Q(1) + alpha * H) = 1 + 0.5 * 0.5 * H.
    entropy = largest_entropy()
    assert entropy == pytest.approx(0.685, abs=0.005)
    settings = {"gamma": 0.5, "alpha": 0.5, "learning_rate": 3e-3, **extra}
    result = learn(tmp_path, algo, 600, env=lambda: Walk(terminates=True), **settings)
    expected = [1.0 + 0.25 * entropy, 0.0]
    for values in q_values(result, STATES, ACTIONS):  # of each critic
        np.testing.assert_allclose(values, expected, atol=0.04)
    assert result.metrics["entropy"] == pytest.approx(entropy, abs=0.1)
    assert result.metrics["alpha"] == pytest.approx(0.5)


@pytest.mark.parametrize(("num_envs", "n_step"), [(3, 1), (1, 3)])
def test_a_time_limit_does_not_lower_the_values(num_envs: int, n_step: int, tmp_path: Path) -> None:
    # 1, 0, 1, 0, ... for ever, cut off after every three steps. Q(0) = 1 + gamma Q(1), Q(1) = gamma Q(0), gamma = 0.5:
    # Q(0) = 1 / (1 - 0.25) = 4/3 and Q(1) = 2/3. Taking the limit for an end would give 1.25 and 0.5 at most.
    result = learn(
        tmp_path,
        "td3",
        750,
        env=lambda: Walk(terminates=False),
        num_envs=num_envs,
        n_step=n_step,
        gamma=0.5,
        learning_rate=3e-3,
    )
    np.testing.assert_allclose(q_values(result, STATES, ACTIONS), [[4 / 3, 2 / 3]] * 2, atol=0.04)


def test_the_learnt_temperature_brings_the_entropy_to_its_target(tmp_path: Path) -> None:
    # With reward -(a - s)^2 the best policy is, but for the bounds, normal with variance alpha / 2. Its entropy,
    # log(pi e alpha) / 2, is -1 at alpha = e^-2 / (pi e) = 0.0159; alpha begins at 1.
    result = learn(tmp_path, "sac", 900, gamma=0.0, target_entropy=-1.0, alpha_learning_rate=0.02, policy_delay=1)
    assert result.metrics["entropy"] == pytest.approx(-1.0, abs=0.3)
    assert result.metrics["alpha"] == pytest.approx(math.exp(-2.0) / (math.pi * math.e), abs=0.01)


def test_learning_leaves_the_global_generators_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    for algo in FAMILY:
        learn(tmp_path, algo, 130)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]
