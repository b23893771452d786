"""PPO with tensor environments, all on the device: the same update, exact resume, captured as one graph."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor

from device_loops import QUIET, Orders, as_host_rollout, config, device_loop
from rl_training.algorithms.ppo import build_ppo
from rl_training.core.counters import Keys
from rl_training.data.device_rollout import build_device_rollout
from rl_training.data.rollout_buffer import build_rollout_buffer
from rl_training.envs.factory import make_env_factory
from rl_training.envs.tensor_env import TENSOR_ENVS, to_env_tensors
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.models.distributions import build_distribution
from rl_training.runtime.evaluation import evaluate_episodes
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import resume, train
from rollouts import make_ppo_setup
from state_comparison import assert_identical, assert_same_run


def lines(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / name).read_text("utf-8").splitlines()]


# ------------------------------------------------------------------------------------------------------- a whole run


def test_a_run_has_the_usual_folder_logs_and_policy(tmp_path: Path) -> None:
    result = train(config(tmp_path), QUIET)
    assert (result.step, result.gradient_step) == (512, 4 * 2 * 4)
    metrics = lines(result.run_dir, "metrics.jsonl")
    assert [line["step"] for line in metrics] == [128, 256, 384, 512]
    assert metrics[-1]["metrics"].keys() >= {"loss", "approx_kl", "explained_variance", "return_mean", "episodes"}
    episodes = lines(result.run_dir, "episodes.jsonl")
    assert len(episodes) == metrics[-1]["metrics"]["episodes"]  # each rollout was logged, with less than 100 of them
    assert all(line["return"] == line["length"] and line["step"] % 8 == 0 for line in episodes)
    assert sum(line["length"] for line in episodes) <= 512
    assert [line["episode"] for line in episodes if line["env"] == 3] == list(
        range(sum(line["env"] == 3 for line in episodes))
    )
    metadata = json.loads((result.run_dir / "metadata.json").read_text("utf-8"))
    assert "exact" in json.dumps(metadata.get("resume", metadata))
    _, algorithm = load_policy(result.run_dir, QUIET)
    with SyncEnvs(make_env_factory("tensor/CartPole-v1")) as envs:
        again = evaluate_episodes(envs, algorithm, [result.eval_episodes[0].seed])
    assert again[0].ret == result.eval_episodes[0].ret


def test_a_run_ends_with_a_whole_rollout(tmp_path: Path) -> None:
    assert train(config(tmp_path, total_timesteps=130), QUIET).step == 256


@pytest.mark.parametrize("normalize", ["none", "both"])
def test_a_stopped_run_continues_bit_for_bit(normalize: str, tmp_path: Path) -> None:
    settings = config(tmp_path, eval_interval=256, algo_kwargs={"normalize": normalize})
    whole = train(settings, QUIET)
    half = train(settings.updated(total_timesteps=256), QUIET)
    resumed = resume(half.run_dir, QUIET, total_timesteps=512)
    assert_same_run(whole, resumed)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert without_times(lines(whole.run_dir, name)) == without_times(lines(resumed.run_dir, name))


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in ("wall_s", "steps_per_s")} for line in records]


@pytest.mark.learning
def test_ppo_learns_cartpole(tmp_path: Path) -> None:
    kwargs = {
        "num_steps": 64,
        "minibatch_size": 256,
        "update_epochs": 8,
        "learning_rate": 2e-3,
        "hidden_sizes": [32, 32],
    }
    settings = config(tmp_path, num_envs=32, total_timesteps=40_000, log_interval=10_000, eval_episodes=5)
    result = train(settings.updated(algo_kwargs=kwargs), QUIET)
    assert result.eval_return is not None
    assert result.eval_return > 150.0  # random: 22


# ------------------------------------------------------------------------------------------- the rows of a rollout


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_the_rows_of_a_rollout_are_the_steps_of_the_environment(env_id: str, tmp_path: Path) -> None:
    loop, _, collector = device_loop(config(tmp_path, env_id=env_id, num_envs=4, max_episode_steps=9))
    envs, to_env = collector.envs, to_env_tensors(collector.envs.env.action_space, torch.device("cpu"))
    state = envs.start()
    for _ in range(2):
        loop._collect()
        rows = {name: values.unflatten(0, (16, 4)) for name, values in loop._rollout.rows().items()}
        for step in range(16):
            obs = envs.observe(state)
            state, result = envs.step(state, to_env(rows["actions"][step]))
            expected = {"obs": obs, "next_obs": result.final_obs, "rewards": result.rewards}
            expected |= {"terminated": result.terminated, "truncated": result.truncated}
            assert_identical({name: rows[name][step] for name in expected}, expected)
    assert_identical(collector.state, state)
    assert (state["episode"] >= 3).all()


# ------------------------------------------------------------------------------------- the same update as on the host


@pytest.mark.parametrize("ends", [0.0, 0.1, 0.5])
def test_advantages_with_every_successor_are_those_with_the_final_ones(ends: float) -> None:
    # The host's rollout has the successors of the last row of each episode alone, that of the device all of them.
    for seed in range(10):
        setup = make_ppo_setup(num_steps=24, num_envs=5, minibatch_size=40, seed=seed)
        ppo, host, device = build_ppo(setup), build_rollout_buffer(setup), build_device_rollout(setup)
        generator = np.random.default_rng(seed)
        obs = generator.normal(size=(25, 5, 3)).astype(np.float32)
        for step in range(24):
            ended = generator.random((2, 5)) < ends
            row: dict[str, Any] = {
                "obs": obs[step],
                "actions": generator.integers(2, size=5),
                "rewards": generator.normal(size=5).astype(np.float32),
                "terminated": ended[0],
                "truncated": ended[1] & ~ended[0],
            }
            final = generator.normal(size=(5, 3)).astype(np.float32)
            row["next_obs"] = np.where((ended[0] | ended[1])[:, None], final, obs[step + 1])
            host.add(row)
            for name, place in device.at(step).items():
                place.copy_(torch.from_numpy(np.asarray(row.get(name, place))))
        found = ppo._advantages(device.rows(), ppo.state["params"])
        for name, expected in ppo._advantages(host.rollout()).items():
            torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "algo_kwargs",
    [
        {"normalize": "none"},
        {"normalize": "both"},
        {"recompute_advantages": True, "value_clip": True},
        {"learning_rate_schedule": "linear", "clip_schedule": "linear"},
    ],
)
def test_learning_on_the_device_equals_the_update_of_the_host(algo_kwargs: dict[str, Any], tmp_path: Path) -> None:
    settings = config(tmp_path, max_episode_steps=14, algo_kwargs=algo_kwargs)
    loop, algorithm, _ = device_loop(settings)
    _, other, _ = device_loop(settings)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(3):
        result = loop.iteration()
        rows = loop._rollout.rows()
        ends = {name: count + int(rows[name].sum()) for name, count in ends.items()}
        other._generators["shuffle"] = Orders(loop._learning._memory["words"])
        expected = other.update(as_host_rollout(rows, 8))
        assert result.num_gradient_steps == expected.num_gradient_steps
        for name, value in expected.metrics.items():
            assert float(result.metrics[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), name
        for name, value in other.policy_state_dict().items():
            found = algorithm.policy_state_dict()[name]
            pairs = zip(found.values(), value.values(), strict=True) if isinstance(value, dict) else [(found, value)]
            for one, two in pairs:
                assert torch.allclose(torch.as_tensor(one), torch.as_tensor(two), rtol=1e-4, atol=1e-6), name
    assert min(ends.values()) > 0


def test_every_update_shuffles_in_another_order_and_each_row_once(tmp_path: Path) -> None:
    loop, _, _ = device_loop(config(tmp_path))
    orders = []
    for _ in range(2):
        loop.iteration()
        orders += [loop._learning._order(epoch).tolist() for epoch in range(2)]
    assert all(sorted(order) == list(range(128)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.compile
def test_compiled_iterations_equal_eager_ones(tmp_path: Path) -> None:
    eager, one, _ = device_loop(config(tmp_path))
    compiled, two, _ = device_loop(config(tmp_path, acceleration="compile"))
    for _ in range(2):
        eager.iteration()
        compiled.iteration()
    assert torch.equal(eager._rollout.rows()["actions"], compiled._rollout.rows()["actions"])
    for name, value in one.policy_state_dict().items():
        if isinstance(value, Tensor):
            assert torch.allclose(value, two.policy_state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("recorded_graphs")
def test_a_captured_iteration_equals_the_eager_one_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.device_loop.COMPILED", "eager")  # what is captured, as it is on a GPU
    settings = config(tmp_path, algo_kwargs={"normalize": "both", "learning_rate_schedule": "linear"})
    eager, one, collector = device_loop(settings)
    captured, two, other = device_loop(settings, "cuda_graph")
    for _ in range(3):
        expected, found = eager.iteration(), captured.iteration()
        assert_identical({**expected.metrics}, {**found.metrics})
    assert_identical(one.policy_state_dict(), two.policy_state_dict())
    assert_identical(one.state_dict(), two.state_dict())
    assert_identical(collector.state_dict(), other.state_dict())


# ------------------------------------------------------------------------------------------------- actions by counters


def draws(space: Any, outputs: list[float], rows: int = 20_000) -> np.ndarray:
    count = torch.arange(rows)
    keys = Keys(torch.full_like(count, 1), count, torch.zeros_like(count), torch.zeros_like(count))
    drawn: np.ndarray = build_distribution(space).draw(torch.tensor([outputs]).repeat(rows, 1), keys, 0).numpy()
    return drawn


def test_drawn_choices_have_the_probabilities_of_the_policy() -> None:
    shares = np.bincount(draws(Discrete(3), [0.0, 1.0, -1.0])) / 20_000
    assert shares == pytest.approx(np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum(), abs=0.015)
    both = draws(MultiDiscrete([2, 3]), [2.0, 0.0, 0.0, 0.0, 5.0])
    assert both.shape == (20_000, 2)
    assert (both[:, 0] == 0).mean() == pytest.approx(1 / (1 + np.exp(-2.0)), abs=0.015)
    assert (both[:, 1] == 2).mean() == pytest.approx(np.exp(5) / (np.exp(5) + 2), abs=0.015)
    bits = draws(MultiBinary(2), [1.0, -1.0])
    assert bits.mean(0) == pytest.approx([1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(1.0))], abs=0.015)


def test_drawn_numbers_have_the_mean_and_deviation_of_the_policy() -> None:
    drawn = draws(Box(-1.0, 1.0, (2,), np.float32), [1.0, -2.0, 0.0, np.log(0.5)])
    assert drawn.mean(0) == pytest.approx([1.0, -2.0], abs=0.03)
    assert drawn.std(0) == pytest.approx([1.0, 0.5], abs=0.03)


@pytest.mark.parametrize("env_id", ["tensor/Pendulum-v1", "tensor/Catch-v0"])
def test_box_actions_and_images_train(env_id: str, tmp_path: Path) -> None:
    result = train(config(tmp_path, env_id=env_id, total_timesteps=256, max_episode_steps=20), QUIET)
    assert result.step == 256
    assert np.isfinite(list(result.metrics.values())).all()


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algo": "bbf", "algo_kwargs": {}},
            "execution_backend: tensor is not available for bbf, only for dqn",
        ),
        ({"algo_kwargs": {"target_kl": 0.1}}, "unset algo_kwargs.target_kl"),
        ({"clip_rewards": True}, "has no clip_rewards"),
    ],
)
def test_settings_that_the_device_loop_lacks_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = config(tmp_path).model_dump() | {"algo_kwargs": {}} | changes
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**settings)


def test_an_ordinary_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a tensor environment .*, but this is CartPoleEnv"):
        train(config(tmp_path, env_id="CartPole-v1"), QUIET)
