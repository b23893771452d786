"""PPO learns tiny environments whose answer is known, with every kind of action, with masks, images and dicts."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from builders import make_config
from rl_training.algorithms.ppo import PPO
from rl_training.envs.tiny import Chain
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.trainer import RunOptions, TrainResult, train

pytestmark = pytest.mark.learning

SEED = 0  # these scores are reached from seeds 0 to 5 alike: rounding differs between processors, and must not decide


def learn(
    tmp_path: Path, env_id: str, steps: int, *, env_kwargs: Any = None, env_factory: Any = None, **hparams: Any
) -> TrainResult:
    small = {"num_steps": 16, "minibatch_size": 64, "update_epochs": 4, "learning_rate": 1e-2, "hidden_sizes": [32]}
    plain = {"normalize": "none", "learning_rate_schedule": "linear"}  # the values learned are those of the rewards
    config = make_config(
        tmp_path,
        algo="ppo",
        env_id=f"rl_training/{env_id}",
        env_kwargs=env_kwargs or {},
        total_timesteps=steps,
        seed=SEED,
        num_envs=8,
        eval_episodes=10,
        algo_kwargs={**small, **plain, **hparams},
    )
    return train(config, RunOptions(env_factory=env_factory, show_progress=False))


def returns(result: TrainResult) -> list[float]:
    return [episode.ret for episode in result.eval_episodes]


def values(result: TrainResult, obs: np.ndarray) -> np.ndarray:
    assert isinstance(result.algorithm, PPO)
    outputs: torch.Tensor = result.algorithm._network.module(torch.from_numpy(obs))
    return outputs[:, -1].numpy()


def test_the_values_of_the_chain_are_the_optimal_ones(tmp_path: Path) -> None:
    result = learn(tmp_path, "Chain-v0", 2_048, gamma=0.9)
    optimal = Chain.optimal_q(0.9).max(1)
    assert optimal[:4] == pytest.approx([0.729, 0.81, 0.9, 1.0])  # 0.9 ** 3, 0.9 ** 2, 0.9, 1
    # The right end is left out: no action is ever taken there.
    np.testing.assert_allclose(values(result, np.eye(5, dtype=np.float32))[:4], optimal[:4], atol=0.02)
    assert returns(result) == [1.0] * 10
    assert [episode.length for episode in result.eval_episodes] == [4] * 10


@pytest.mark.parametrize("actions", ["discrete", "multidiscrete", "multibinary"])
def test_every_observation_is_answered_with_itself(actions: str, tmp_path: Path) -> None:
    result = learn(tmp_path, "Identity-v0", 2_048, env_kwargs={"actions": actions}, gamma=0.5, learning_rate=5e-3)
    assert returns(result) == [10.0] * 10  # right at every one of 100 observations


def test_numbers_are_answered_with_themselves(tmp_path: Path) -> None:
    result = learn(
        tmp_path, "Identity-v0", 4_096, env_kwargs={"actions": "box", "size": 2}, gamma=0.0, log_std_init=-0.7
    )
    assert min(returns(result)) > -0.1  # ten steps: off by less than 0.1 on average, in two numbers
    obs = np.array([[0.5, -0.5], [-0.8, 0.0]], np.float32)
    np.testing.assert_allclose(result.algorithm.act(obs).actions, obs, atol=0.1)


def test_a_time_limit_does_not_lower_the_values(tmp_path: Path) -> None:
    # One symbol, so that every answer is right: reward 1 for ever, cut off after every 4 steps. V = 1 / (1 - 0.9) = 10,
    # where one that took the limit for an end would learn some value below 4.
    result = learn(tmp_path, "Identity-v0", 4_096, env_kwargs={"size": 1, "length": 4}, gamma=0.9, update_epochs=8)
    assert values(result, np.ones((1, 1), np.float32)).item() == pytest.approx(10.0, abs=0.1)


def test_scaled_rewards_and_normalised_observations_are_learnt_from(tmp_path: Path) -> None:
    result = learn(tmp_path, "Identity-v0", 2_048, gamma=0.5, learning_rate=5e-3, normalize="both")
    assert returns(result) == [10.0] * 10
    assert isinstance(result.algorithm, PPO)
    state = result.algorithm.policy_state_dict()
    np.testing.assert_allclose(state["obs_moments"]["mean"], 1 / 3, atol=0.05)  # one of three symbols, one-hot
    assert state["obs_moments"]["count"] == 2_048


def test_the_bright_quadrant_of_an_image_is_found_by_the_cnn(tmp_path: Path) -> None:
    result = learn(tmp_path, "TinyImage-v0", 2_048, env_kwargs={"size": 8}, gamma=0.5, learning_rate=5e-3)
    assert returns(result) == [10.0] * 10


def test_an_image_and_a_vector_are_put_together(tmp_path: Path) -> None:
    # Either part alone leaves all three answers equally likely: whoever ignores one gets 3.3 of 10.
    result = learn(
        tmp_path,
        "TinyDict-v0",
        12_288,
        num_steps=64,
        minibatch_size=128,
        gamma=0.0,
        update_epochs=8,
        learning_rate=5e-3,
        ent_coef=0.02,
        hidden_sizes=[64],
        activation="relu",
    )
    assert returns(result) == [10.0] * 10


class Strict(gym.Wrapper[Any, Any, Any, Any]):
    """Raises at the first invalid action, whoever takes it: training, evaluation, or the checks before."""

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if "invalid_action" in result[4]:
            raise AssertionError(f"the invalid action {action} was taken")
        return result


@pytest.mark.parametrize("mask_in_obs", [False, True])
@pytest.mark.parametrize("multi", [False, True])
def test_a_masked_env_is_solved_without_ever_choosing_a_forbidden_action(
    mask_in_obs: bool, multi: bool, tmp_path: Path
) -> None:
    kwargs = {"mask_in_obs": mask_in_obs, "multi": multi, "disable_env_checker": True}
    result = learn(
        tmp_path,
        "Masked-v0",
        6_144,
        env_factory=lambda: Strict(gym.make("rl_training/Masked-v0", **kwargs)),
        gamma=0.5,
        learning_rate=5e-3,
    )
    assert returns(result) == [10.0] * 10
    lengths = {record["length"] for record in read_json_lines(result.run_dir / "episodes.jsonl")}
    assert lengths == {10}  # none was cut short, not even the first ones


def test_learning_leaves_the_global_generators_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    learn(tmp_path, "Chain-v0", 256)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]
