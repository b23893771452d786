"""`train_ppo` trains on every kind of space, leaves a whole run folder, and refuses what it cannot handle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple

import rl_training
from builders import make_config
from rl_training.algorithms.ppo import PPO
from rl_training.core import memory_limits
from rl_training.errors import ConfigError, EnvError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.hparams.ppo import PPOHParams
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)
TAXI = max(name for name in gym.registry if name.startswith("Taxi-v"))


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    return make_config(tmp_path, **{"algo": "ppo", **changes})


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, env_id="CartPole-v1", total_timesteps=310, num_envs=2, log_interval=100, tensorboard=True
    )
    result = train_ppo(config, QUIET)
    assert result.step == 310
    # A rollout has 10 * 2 rows, used twice in minibatches of 10: 15 rollouts; the last 10 steps fill none.
    assert result.gradient_step == 15 * 2 * 2 == config.spec.updates_until(config.hparams, 300)
    assert {"loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"} <= set(result.metrics)
    assert len(result.eval_episodes) == 2
    assert result.eval_return == pytest.approx(np.mean([episode.ret for episode in result.eval_episodes]))

    folder = result.run_dir
    assert folder.name.startswith("ppo__CartPole-v1__seed0__")
    resolved = load_config(folder / "config.yaml")
    assert resolved.hparams == config.hparams
    (start,) = json.loads((folder / "metadata.json").read_text())["starts"]
    assert start["resume"].startswith("exact: episodes were repeated in ")
    assert list(start["seed_streams"]) == ["action", "env", "eval", "eval_action", "init", "shuffle"]
    records = read_json_lines(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == [100, 200, 300, 310]
    assert records[-1]["metrics"]["loss"] == pytest.approx(result.metrics["loss"])
    assert records[-1]["metrics"]["learning_rate"] == pytest.approx(3e-4)
    assert records[-1]["metrics"]["clip_coef"] == pytest.approx(0.2)
    assert records[0]["gradient_step"] == 5 * 4
    episodes = read_json_lines(folder / "episodes.jsonl")
    assert records[-1]["metrics"]["episodes"] == len(episodes) > 0
    assert all(episode["return"] == episode["length"] for episode in episodes)  # CartPole pays 1 a step
    assert [e["return"] for e in read_json_lines(folder / "eval.jsonl")] == [e.ret for e in result.eval_episodes]
    assert json.loads((folder / "result.json").read_text())["step"] == 310
    assert list((folder / "tensorboard").iterdir())
    assert open_checkpoint(result.checkpoint).step == 310


def test_the_checkpoint_acts_like_the_trained_agent(tmp_path: Path) -> None:
    result = train_ppo(config_of(tmp_path), QUIET)
    _, policy = load_policy(result.run_dir)
    obs = np.eye(5, dtype=np.float32)
    assert isinstance(policy, PPO)
    assert np.array_equal(policy._policy(obs), result.algorithm._policy(obs))  # type: ignore[attr-defined]


def test_one_config_and_seed_give_one_result(tmp_path: Path) -> None:
    first, again = (train_ppo(config_of(tmp_path, seed=3), QUIET) for _ in range(2))
    other = train_ppo(config_of(tmp_path, seed=4), QUIET)
    assert first.run_dir != again.run_dir
    assert first.metrics == again.metrics != other.metrics


@pytest.mark.parametrize("num_envs", [1, 2, 3, 7, 16])
def test_the_defaults_fit_any_number_of_envs(num_envs: int) -> None:
    agent = rl_training.PPO.for_env("CartPole-v1", total_timesteps=10_000, num_envs=num_envs)
    assert agent.config.hparams == PPOHParams()


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("rl_training/TinyImage-v0", {"size": 6}),
        ("FrozenLake-v1", {"max_episode_steps": 20}),  # discrete observations
        (TAXI, {"max_episode_steps": 20}),  # the same with action masks
        ("Pendulum-v1", {"max_episode_steps": 20}),  # actions between -2 and 2
        ("rl_training/TinyDict-v0", {}),
        ("rl_training/Masked-v0", {"mask_in_obs": True, "multi": True}),
    ],
)
def test_every_kind_of_env_trains(env_id: str, env_kwargs: dict[str, Any], tmp_path: Path) -> None:
    result = train_ppo(config_of(tmp_path, env_id=env_id, env_kwargs=env_kwargs, num_envs=3), QUIET)
    assert result.gradient_step == 2 * 2 * 3
    assert all(np.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.startswith("ppo/")])
def test_the_shipped_configs_fit_their_rollouts(name: str) -> None:
    config = load_config(f"configs/{name}")
    assert config.algo == "ppo"
    config.hparams.check_run(config.num_envs)


def test_another_algorithms_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_ppo trains PPO, but algo is 'dqn'"):
        train_ppo(make_config(tmp_path), QUIET)


# --- Settings that do not go together --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_envs", "hparams", "message"),
    [
        (
            8,
            {"num_steps": 100, "minibatch_size": 256},
            r"must divide the rollout of num_steps \* num_envs = 100 \* 8 = 800 rows, got 256; 200 would do",
        ),
        (1, {"num_steps": 10, "minibatch_size": 20}, r"= 10 \* 1 = 10 rows, got 20; 10 would do"),
        (1, {"num_steps": 7, "minibatch_size": 3}, r"= 7 \* 1 = 7 rows, got 3; 7 would do"),  # 1 cannot be normalised
        (1, {"num_steps": 7, "minibatch_size": 3, "normalize_advantages": False}, r"got 3; 1 would do"),
        (
            1,
            {"minibatch_size": 1},
            r"normalize_advantages needs minibatches of at least 2 rows, got minibatch_size 1 of",
        ),
        (1, {"num_steps": 1, "minibatch_size": 8}, r"normalize_advantages needs minibatches of at least 2 rows, got"),
    ],
)
def test_a_minibatch_that_does_not_divide_the_rollout_is_refused_with_one_that_does(
    num_envs: int, hparams: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^ppo\.algo_kwargs: .*{message}"):
        config_of(tmp_path, num_envs=num_envs, algo_kwargs=hparams)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_steps", 0, "must be >= 1, got 0"),
        ("update_epochs", 0, "must be >= 1, got 0"),
        ("minibatch_size", 2.5, "must be a whole number, got 2.5"),
        ("learning_rate", 0, "must be > 0, got 0"),
        ("gamma", 1.01, r"must be in \[0, 1\], got 1.01"),
        ("gae_lambda", -0.1, r"must be in \[0, 1\], got -0.1"),
        ("clip_coef", 0, "must be > 0, got 0"),
        ("clip_coef", float("nan"), "must be > 0, got nan"),
        ("vf_coef", -1, "must be >= 0, got -1"),
        ("ent_coef", -0.01, "must be >= 0, got -0.01"),
        ("max_grad_norm", 0, "must be > 0, got 0"),
        ("adam_eps", 0, "must be > 0, got 0"),
        ("target_kl", 0, "must be > 0, got 0"),
        ("target_kl", "small", "must be a number, got 'small'"),
        ("log_std_init", "0", "must be a number, got '0'"),
        ("value_clip", 0, "must be true or false, got 0"),
        ("normalize", True, "must be 'none', 'obs', 'returns' or 'both', got True"),
        ("normalize", "rewards", "must be 'none', 'obs', 'returns' or 'both', got 'rewards'"),
        ("learning_rate_schedule", "cosine", "must be 'constant' or 'linear', got 'cosine'"),
        ("clip_schedule", "cosine", "must be 'constant' or 'linear', got 'cosine'"),
        ("activation", "gelu", "must be 'tanh' or 'relu', got 'gelu'"),
        ("shared_trunk", True, "must be 'auto', 'yes' or 'no', got True"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(
    setting: str, value: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^ppo\.algo_kwargs\.{setting} {message}$"):
        config_of(tmp_path, algo_kwargs={setting: value})


def test_an_unknown_setting_is_refused_with_the_one_probably_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ppo\.algo_kwargs: unknown setting 'n_steps'; did you mean 'num_steps'\?"):
        config_of(tmp_path, algo_kwargs={"n_steps": 4})


# --- Environments that it cannot handle ------------------------------------------------------------------------------


class Odd(gym.Env[Any, Any]):
    """An env with the given spaces, observations and infos."""

    def __init__(
        self, observation: gym.Space[Any] | None = None, action: gym.Space[Any] | None = None, info: Any = None
    ) -> None:
        self.observation_space = observation or Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action or Discrete(2)
        self.observation_space.seed(0)
        self.info = info or {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation_space.sample(), dict(self.info)

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, dict(self.info)


def train_on(tmp_path: Path, factory: Callable[[], gym.Env[Any, Any]], **changes: Any) -> TrainResult:
    options = RunOptions(env_factory=factory, show_progress=False)
    return train_ppo(config_of(tmp_path, env_id="Odd", **changes), options)


def refused(tmp_path: Path, factory: Callable[[], gym.Env[Any, Any]], **changes: Any) -> str:
    """The message of an env that is refused before anything is written."""
    with pytest.raises((SpaceError, EnvError)) as caught:
        train_on(tmp_path, factory, **changes)
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:.*length of a multi-dimensional MultiDiscrete")
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Text(5), "the action space must be one array of numbers, but it is Text(1, 5"),
        (Tuple([Discrete(2), Discrete(2)]), "the action space must be one array of numbers, but it is Tuple("),
        (Dict(a=Discrete(2)), "the action space must be one array of numbers, but it is Dict("),
        (
            MultiDiscrete(np.array([[2, 3], [2, 2]])),
            "ppo needs a box or discrete or multibinary or multidiscrete action space, but Odd has "
            "MultiDiscrete([[2 3]\n [2 2]]); a MultiDiscrete of actions must have one axis",
        ),
        (
            Box(0, 5, (2,), np.int64),
            "ppo needs a box or discrete or multibinary or multidiscrete action space, but Odd has "
            "Box(0, 5, (2,), int64); a Box of actions must hold floats",
        ),
        (
            Box(-np.inf, np.inf, (2,), np.float32),
            "ppo needs finite bounds of every action, but Odd has Box(-inf, inf, (2,), float32); "
            "remove the wrapper ClipAction",
        ),
        (
            Box(np.array([0.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
            "ppo needs finite bounds of every action",
        ),
        (
            Box(-3e38, 3e38, (2,), np.float32),  # float32 does not hold the distance between them
            "ppo needs bounds within float32 of every action, but Odd has Box(-3e+38, 3e+38, (2,), float32)",
        ),
        (Box(-1e300, 1e300, (2,), np.float64), "ppo needs bounds within float32 of every action"),
    ],
    ids=str,
)
def test_actions_that_it_cannot_choose_are_refused(action: Any, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, lambda: Odd(action=action))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Text(5), "the observation space must be one array of numbers, but it is Text(1, 5"),
        (Box(0, 1000, (8, 8, 3), np.int32), "integer images must be in 0..255, but this space spans 0..1000"),
        (Box(-1, 255, (8, 8, 3), np.int16), "integer images must be in 0..255, but this space spans -1..255"),
        (Box(0, 255, (2, 2, 1), np.uint8), "images must measure at least 3x3 pixels, got 2x2"),
    ],
    ids=str,
)
def test_observations_that_it_cannot_encode_are_refused(observation: Any, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, lambda: Odd(observation))


class ChannelsFirst(Odd):
    """Declares images with channels last and gives them with channels first."""

    def __init__(self) -> None:
        super().__init__(Box(0, 255, (8, 8, 3), np.uint8))

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs.transpose(2, 0, 1), info


def test_images_of_another_layout_than_declared_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, ChannelsFirst)
    assert "returned an observation of shape (3, 8, 8), but its observation space Box(0, 255, (8, 8, 3)" in message


@pytest.mark.parametrize("normalize", ["obs", "both"])
@pytest.mark.parametrize("env_id", ["TinyImage-v0", "TinyDict-v0"])
def test_images_are_not_normalised(env_id: str, normalize: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, env_id=f"rl_training/{env_id}", algo_kwargs={"normalize": normalize})
    with pytest.raises(SpaceError, match=rf"^algo_kwargs\.normalize: {normalize} needs vector observations"):
        train_ppo(config, QUIET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"action_mask": np.zeros(2, np.int8)}, "env 0 gave the all-false action mask [0 0] (expected: 2 flags"),
        ({"action_mask": np.ones(3, np.int8)}, "env 0 gave the action mask [1 1 1] (expected: 2 flags"),
        ({"action_mask": None}, "env 0 gave no action mask (expected: 2 flags"),
    ],
)
def test_masks_that_allow_nothing_at_the_first_reset_are_refused(info: Any, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, lambda: Odd(info=info))


def test_masks_over_numbers_are_refused(tmp_path: Path) -> None:
    box, info = Box(-1.0, 1.0, (2,), np.float32), {"action_mask": np.ones(2, np.int8)}
    message = refused(tmp_path, lambda: Odd(action=box, info=info))
    assert message == f"action masks need a Discrete or MultiDiscrete action space, but it is {box}"


@pytest.mark.parametrize("mask_in_obs", [False, True])
def test_an_all_false_mask_is_refused_at_the_reset_and_named_at_a_later_step(mask_in_obs: bool, tmp_path: Path) -> None:
    settings = {"env_id": "rl_training/Masked-v0", "num_envs": 2}
    at_once = config_of(tmp_path, **settings, env_kwargs={"all_false": True, "mask_in_obs": mask_in_obs})
    with pytest.raises(EnvError, match=r"env 0 gave the all-false action mask .* at the reset with seed 0"):
        train_ppo(at_once, QUIET)
    assert list(tmp_path.iterdir()) == []
    later = config_of(tmp_path, **settings, env_kwargs={"all_false_at": 7, "mask_in_obs": mask_in_obs})
    with pytest.raises(EnvError, match=r"env 0 gave the all-false action mask .* at step 7 of episode 0 \(seed \d+\)"):
        train_ppo(later, QUIET)


def test_an_all_false_mask_in_an_evaluation_is_named(tmp_path: Path) -> None:
    # Training ends before the step that it would come at.
    settings = {"env_id": "rl_training/Masked-v0", "env_kwargs": {"all_false_at": 7}, "total_timesteps": 5}
    with pytest.raises(EnvError, match=r"all-false action mask .* at step 7 of evaluation episode 0 \(seed \d+\)"):
        train_ppo(config_of(tmp_path, **settings), QUIET)


def test_a_rollout_larger_than_memory_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 50_000_000)  # enough for everything else
    large = config_of(tmp_path, env_kwargs={"num_states": 100}, algo_kwargs={"num_steps": 1_000_000})
    with pytest.raises(
        ConfigError, match=r"a rollout of 1,000,000 rows needs .* lower algo_kwargs\.num_steps or num_envs"
    ):
        train_ppo(large, QUIET)
    assert list(tmp_path.iterdir()) == []
