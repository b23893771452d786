"""`train_dqn` trains, evaluates and leaves a whole run folder."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import rl_training
from builders import make_config
from rl_training.acceleration.step_checks import is_due
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.registry import registry
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.setup import decide_device, resolve
from rl_training.runtime.trainer import RunOptions

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, env_id="CartPole-v1", total_timesteps=300, num_envs=2, log_interval=100, tensorboard=True
    )
    result = train_dqn(config, QUIET)
    assert result.step == 300
    assert result.gradient_step == 290  # one per step after the first ten
    assert {"loss", "q_value_mean", "target_mean", "td_error_mean"} <= set(result.metrics)
    assert len(result.eval_episodes) == 2
    assert result.eval_return == pytest.approx(np.mean([episode.ret for episode in result.eval_episodes]))

    folder = result.run_dir
    assert folder.parent == tmp_path
    assert folder.name.startswith("dqn__CartPole-v1__seed0__")
    resolved = load_config(folder / "config.yaml")
    assert resolved.hparams == config.hparams
    assert resolved.acceleration == "eager"
    (start,) = json.loads((folder / "metadata.json").read_text())["starts"]
    assert start["resume"].startswith("exact: episodes were repeated in ")
    assert list(start["seed_streams"]) == ["action", "buffer", "env", "eval", "eval_action", "init", "noise"]
    assert start["seed_streams"]["init"] == Streams(0).integer("init")
    assert start["versions"]["torch"]
    assert start["versions"]["rl-training"] == rl_training.__version__
    records = read_json_lines(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == [100, 200, 300]
    assert records[-1]["metrics"]["loss"] == pytest.approx(result.metrics["loss"])
    assert records[-1]["metrics"]["epsilon"] == pytest.approx(0.05)
    episodes = read_json_lines(folder / "episodes.jsonl")
    assert records[-1]["metrics"]["episodes"] == len(episodes) > 0
    assert records[-1]["metrics"]["return_mean"] == pytest.approx(np.mean([e["return"] for e in episodes]))
    assert all(episode["return"] == episode["length"] for episode in episodes)  # CartPole pays 1 a step
    assert [e["return"] for e in read_json_lines(folder / "eval.jsonl")] == [e.ret for e in result.eval_episodes]
    assert json.loads((folder / "result.json").read_text())["step"] == 300
    assert list((folder / "tensorboard").iterdir())
    assert open_checkpoint(result.checkpoint).step == 300


def test_the_checkpoint_acts_like_the_trained_agent(tmp_path: Path) -> None:
    result = train_dqn(make_config(tmp_path), QUIET)
    _, policy = load_policy(result.run_dir)
    obs = np.eye(5, dtype=np.float32)
    assert np.array_equal(policy.act(obs).actions, result.algorithm.act(obs).actions)


def test_one_config_and_seed_give_one_result(tmp_path: Path) -> None:
    first, again = (train_dqn(make_config(tmp_path, seed=3), QUIET) for _ in range(2))
    other = train_dqn(make_config(tmp_path, seed=4), QUIET)
    assert first.run_dir != again.run_dir
    assert first.metrics == again.metrics != other.metrics


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("rl_training/TinyImage-v0", {"size": 6}),
        ("FrozenLake-v1", {}),  # discrete observations
        ("CliffWalking-v1", {}),
    ],
)
def test_other_kinds_of_observations_train_too(env_id: str, env_kwargs: dict[str, Any], tmp_path: Path) -> None:
    env_kwargs = {**env_kwargs, "max_episode_steps": 20}
    result = train_dqn(make_config(tmp_path, env_id=env_id, env_kwargs=env_kwargs, num_envs=3), QUIET)
    assert result.gradient_step == 50
    assert np.isfinite(result.metrics["loss"])


FAMILY = sorted(name for name, spec in registry().items() if spec.family == "dqn")


@pytest.mark.parametrize("algo", FAMILY)
def test_an_env_that_the_family_cannot_control_is_refused_by_name(algo: str, tmp_path: Path) -> None:
    with pytest.raises(SpaceError) as caught:
        train_dqn(make_config(tmp_path, algo=algo, env_id="Pendulum-v1"), QUIET)
    found = "Box(-2.0, 2.0, (1,), float32)"
    assert str(caught.value) == f"{algo} needs a discrete action space, but Pendulum-v1 has {found}"
    several = {"env_id": "rl_training/Identity-v0", "env_kwargs": {"actions": "multidiscrete"}}
    with pytest.raises(SpaceError) as caught:
        train_dqn(make_config(tmp_path, algo=algo, **several), QUIET)
    assert str(caught.value) == (
        f"{algo} needs a discrete action space, but rl_training/Identity-v0 has MultiDiscrete([3 3])"
    )


def test_other_algorithms_are_not_this_trainers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_dqn trains the DQN family, but algo is 'ppo'"):
        train_dqn(make_config(tmp_path, algo="ppo"), QUIET)


class FloatPicture(gym.Env[np.ndarray, np.int64]):
    """An image of numbers from 0 to 2, drawn at each step; every fifth step truncates."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0.0, 2.0, (4, 4, 1), np.float64), Discrete(2)
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self.np_random.uniform(0.0, 2.0, (4, 4, 1)), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return self.np_random.uniform(0.0, 2.0, (4, 4, 1)), 1.0, False, self._num_steps == 5, {}


@pytest.mark.parametrize("algo", ["dqn", "iqn"])
def test_images_of_floats_are_stored_and_seen_as_they_are(algo: str, tmp_path: Path) -> None:
    batches = []

    class Look(Callback):
        def on_step(self, run: Run) -> None:
            batches.append(run.memory.sample(32)["obs"].clone())  # type: ignore[attr-defined]

    options = RunOptions(env_factory=FloatPicture, callbacks=[Look()], show_progress=False)
    result = train_dqn(make_config(tmp_path, algo=algo), options)
    assert batches[-1].dtype == torch.float32
    assert 1.8 < batches[-1].max() < 2.0
    assert np.unique(batches[-1].numpy()).size > 200  # not rounded to whole numbers
    with torch.no_grad():
        pixels = next(iter(result.algorithm.recipe.network.modules())).get_submodule(  # type: ignore[attr-defined]
            "0.0" if algo == "dqn" else "trunk.0.0"
        )(batches[-1])
    torch.testing.assert_close(pixels, batches[-1].permute(0, 3, 1, 2), rtol=0, atol=0)  # not divided by 255 either


def test_noise_without_noisy_layers_is_refused(tmp_path: Path) -> None:
    options = RunOptions(network=torch.nn.Linear(5, 2), show_progress=False)
    with pytest.raises(ConfigError) as caught:
        train_dqn(make_config(tmp_path, algo="noisy_dqn"), options)
    assert str(caught.value) == ("algo_kwargs.noisy: true needs a network with NoisyLinear layers, but Linear has none")
    train_dqn(make_config(tmp_path), options)  # without noise the same network will do


@pytest.mark.parametrize(("steps", "mode"), [(9_999 * 64, "eager"), (10_000 * 64, "compile")])
def test_auto_compiles_a_run_of_ten_thousand_updates(steps: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Four epochs over minibatches of 256: an update per 64 env steps.
    monkeypatch.setattr("rl_training.acceleration.steps.compiler_available", lambda: True)
    hparams = {"update_epochs": 4, "minibatch_size": 256}
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", total_timesteps=steps, device="cpu", algo_kwargs=hparams)
    assert resolve(config).acceleration == mode


BIG, SMALL = Box(0, 255, (8, 8, 3), np.uint8), Box(-1.0, 1.0, (4,))


@pytest.mark.parametrize(
    ("algo", "hparams", "observation", "device"),
    [
        ("dqn", {"hidden_sizes": (120, 84), "batch_size": 128}, SMALL, "cpu"),
        ("dqn", {"hidden_sizes": (120, 84), "batch_size": 128}, BIG, "cuda"),
        ("dqn", {"hidden_sizes": (256, 256), "batch_size": 128}, SMALL, "cuda"),
        ("iqn", {"hidden_sizes": (120, 84), "batch_size": 128}, SMALL, "cuda"),  # 64 fractions per row
        ("ppo", {"hidden_sizes": (64, 64), "minibatch_size": 64}, SMALL, "cpu"),
        ("sac", {}, SMALL, "cuda"),
    ],
)
def test_auto_uses_the_gpu_where_updates_are_large_enough(
    algo: str, hparams: dict[str, Any], observation: Box, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = resolve(TrainConfig(algo=algo, env_id="x", total_timesteps=10**6, algo_kwargs=hparams))
    decided = decide_device(config, Spaces(observation, Discrete(2)))
    assert decided.device == device
    assert decided.acceleration == ("cuda_graph" if device == "cuda" else "compile")
    assert decide_device(config, Spaces(observation, Discrete(2)), torch.nn.Linear(4, 2)).device == "cuda"


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'cuda:99', but PyTorch sees . CUDA devices? here; device: auto takes"):
        train_dqn(make_config(tmp_path, device="cuda:99"), QUIET)


def test_a_run_uses_the_threads_precision_and_checks_of_its_config_and_gives_them_back(tmp_path: Path) -> None:
    def settings() -> tuple[int, str, bool]:
        return torch.get_num_threads(), torch.get_float32_matmul_precision(), is_due(7)

    class NoteSettings(Callback):
        seen = settings()

        def on_step(self, run: Run) -> None:
            self.seen = settings()

    note, before = NoteSettings(), settings()
    config = make_config(tmp_path, total_timesteps=4, threads=2, matmul_precision="high", check_compiled_every=7)
    train_dqn(config, RunOptions(callbacks=[note], show_progress=False))
    assert note.seen == (2, "high", True)
    assert settings() == before == (1, "highest", False)
