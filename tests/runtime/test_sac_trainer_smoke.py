"""`train_sac` trains the SAC family, leaves a whole run folder, and refuses what it cannot handle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

import rl_training
from builders import make_config
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config, packaged_configs
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.learners.actor_critic import ActorCritic
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)
FAMILY = ["sac", "td3", "redq"]
SHARED_METRICS = {"critic_loss", "actor_loss", "q_value_mean", "target_mean", "td_error_mean"}
METRICS = {
    "sac": SHARED_METRICS | {"alpha", "entropy"},
    "td3": SHARED_METRICS,
    "redq": SHARED_METRICS | {"alpha", "entropy"},
}


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    identity = {"algo": "sac", "env_id": "rl_training/Identity-v0", "env_kwargs": {"actions": "box"}}
    return make_config(tmp_path, **{**identity, **changes})


@pytest.mark.parametrize("algo", FAMILY)
def test_a_run_leaves_everything_in_its_folder(algo: str, tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        algo=algo,
        env_id="Pendulum-v1",
        env_kwargs={"max_episode_steps": 25},
        total_timesteps=60,
        num_envs=2,
        log_interval=20,
        checkpoint_interval=30,
        tensorboard=True,
        algo_kwargs={"gradient_updates_per_step": 2, "policy_delay": 2},
    )
    result = train_sac(config, QUIET)
    assert result.step == 60
    assert result.gradient_step == 2 * (60 - 10) == config.spec.updates_until(config.hparams, 60)
    assert METRICS[algo] <= set(result.metrics)
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert len(result.eval_episodes) == 2

    folder = result.run_dir
    assert folder.name.startswith(f"{algo}__Pendulum-v1__seed0__")
    assert load_config(folder / "config.yaml").hparams == config.hparams
    (start,) = json.loads((folder / "metadata.json").read_text())["starts"]
    assert start["resume"].startswith("exact: episodes were repeated in ")
    *records, evaluation = read_json_lines(folder / "metrics.jsonl")
    assert [record["step"] for record in [*records, evaluation]] == [20, 40, 60, 60]
    assert set(evaluation["metrics"]) == {"first_q_value", "discounted_return"}
    assert METRICS[algo] <= set(records[-1]["metrics"])
    assert records[-1]["metrics"]["critic_loss"] == pytest.approx(result.metrics["critic_loss"])
    assert [episode["length"] for episode in read_json_lines(folder / "episodes.jsonl")] == [25] * 2
    assert [e["return"] for e in read_json_lines(folder / "eval.jsonl")] == [e.ret for e in result.eval_episodes]
    assert json.loads((folder / "result.json").read_text())["gradient_step"] == 100
    assert list((folder / "tensorboard").iterdir())
    assert open_checkpoint(result.checkpoint).step == 60


@pytest.mark.parametrize("algo", FAMILY)
def test_the_checkpoint_acts_like_the_trained_agent(algo: str, tmp_path: Path) -> None:
    result = train_sac(config_of(tmp_path, algo=algo, total_timesteps=20), QUIET)
    _, policy = load_policy(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    assert isinstance(policy, ActorCritic)
    assert np.array_equal(policy.act(obs).actions, result.algorithm.act(obs).actions)
    assert policy.act(obs).actions.std() > 0.0


@pytest.mark.parametrize("algo", FAMILY)
def test_one_config_and_seed_give_one_result(algo: str, tmp_path: Path) -> None:
    changes = {"algo": algo, "algo_kwargs": {"gradient_updates_per_step": 1, "policy_delay": 2}}
    first, again = (train_sac(config_of(tmp_path, seed=3, **changes), QUIET) for _ in range(2))
    other = train_sac(config_of(tmp_path, seed=4, **changes), QUIET)
    assert first.run_dir != again.run_dir
    assert first.metrics == again.metrics != other.metrics


@pytest.mark.parametrize("algo", FAMILY)
def test_a_run_within_the_warm_up_learns_nothing_and_ends_well(algo: str, tmp_path: Path) -> None:
    result = train_sac(config_of(tmp_path, algo=algo, total_timesteps=20, algo_kwargs={"learning_starts": 50}), QUIET)
    assert (result.step, result.gradient_step, result.metrics) == (20, 0, {})
    assert len(result.eval_episodes) == 2


@pytest.mark.parametrize("algo", FAMILY)
def test_the_reference_configs_train(algo: str, tmp_path: Path) -> None:
    shipped = load_config(f"configs/{algo}/pendulum.yaml")
    small = {"learning_starts": 4, "buffer_capacity": 100, "batch_size": 8}
    config = shipped.updated(
        total_timesteps=8, eval_episodes=1, output_dir=tmp_path, algo_kwargs={**shipped.algo_kwargs, **small}
    )
    result = train_sac(config, QUIET)
    assert result.gradient_step == config.spec.updates_until(config.hparams, 8) > 0


@pytest.mark.parametrize("name", [name for name in packaged_configs() if name.split("/")[0] in FAMILY])
def test_the_shipped_configs_hold_all_that_they_collect_and_learn(name: str) -> None:
    config = load_config(f"configs/{name}")
    assert config.total_updates > 0
    assert config.hparams.buffer_capacity >= min(config.total_timesteps, 1_000_000)  # type: ignore[attr-defined]


def test_another_algorithms_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_sac trains the SAC family, but algo is 'dqn'"):
        train_sac(make_config(tmp_path), QUIET)


# --- Every kind of observation ---------------------------------------------------------------------------------------


class Numbers(gym.Env[Any, np.ndarray]):
    """Random observations of any space; actions between -2 and 6, which it checks; truncated after nine steps."""

    def __init__(self, observation: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, Box(-2.0, 6.0, (2,), np.float32)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._num_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), action
        self._num_steps += 1
        return self.observation_space.sample(), float(action.sum()), False, self._num_steps == 9, {}


OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": Box(-1.0, 1.0, (3,), np.float32),
    "image": Box(0, 255, (8, 8, 1), np.uint8),
    "float image": Box(0.0, 1.0, (8, 8, 1), np.float32),
    "discrete": Discrete(5),
    "dict": Dict(image=Box(0, 255, (8, 8, 1), np.uint8), vector=Box(-1.0, 1.0, (3,), np.float32)),
}


@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("algo", FAMILY)
def test_every_kind_of_observation_trains(algo: str, kind: str, tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        algo=algo,
        env_id="Numbers",
        env_kwargs={},
        total_timesteps=24,
        num_envs=2,
        algo_kwargs={"gradient_updates_per_step": 1, "policy_delay": 2},
    )
    result = train_sac(config, RunOptions(env_factory=lambda: Numbers(OBSERVATIONS[kind]), show_progress=False))
    assert result.gradient_step == 14
    assert all(np.isfinite(value) for value in result.metrics.values())


# --- Networks of the user's own --------------------------------------------------------------------------------------


class Actor(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, outputs)

    def forward(self, obs: Tensor) -> Tensor:
        output: Tensor = self.layer(obs)
        return output


class Critics(nn.Module):
    """Critics that are a plain list of networks; `members` is what REDQ's target asks for."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(3 + 3, 1) for _ in range(count))

    def forward(self, obs: Tensor, actions: Tensor, members: Tensor | slice | None = None) -> Tensor:
        inputs = torch.cat((obs, actions), 1)
        values = torch.stack([critic(inputs)[:, 0] for critic in self.each])
        return values if members is None else values[members]


class Mine(nn.Module):
    def __init__(self, outputs: int, critics: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critics = Actor(outputs), Critics(critics)


class AllOrNone(Critics):
    """Critics that cannot give the values of some of them."""

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(obs, actions)


def without_members(outputs: int, critics: int) -> Mine:
    mine = Mine(outputs, critics)
    mine.critics = AllOrNone(critics)
    return mine


def train_own(tmp_path: Path, algo: str, network: nn.Module) -> TrainResult:
    config = config_of(tmp_path, algo=algo, total_timesteps=30, algo_kwargs={"gradient_updates_per_step": 2})
    return train_sac(config, RunOptions(network=network, show_progress=False))


@pytest.mark.parametrize(("algo", "outputs", "critics"), [("sac", 6, 2), ("td3", 3, 2), ("redq", 6, 4)])
def test_networks_of_ones_own_are_trained(algo: str, outputs: int, critics: int, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in Mine(outputs, critics).state_dict().items()}
    mine = Mine(outputs, critics)
    result = train_own(tmp_path, algo, mine)
    assert list(result.algorithm.policy_state_dict()) == ["layer.weight", "layer.bias"]
    assert all(not torch.equal(value, before[name]) for name, value in mine.state_dict().items())


def test_critics_that_only_give_all_values_are_enough_for_sac(tmp_path: Path) -> None:
    assert train_own(tmp_path, "sac", without_members(6, 2)).gradient_step > 0


@pytest.mark.parametrize(
    ("algo", "network", "kind", "message"),
    [
        (
            "sac",
            nn.Linear(3, 6),
            TypeError,
            "must have the modules `actor` and `critics`, but Linear lacks actor and critics",
        ),
        (
            "sac",
            Mine(3, 2),
            ValueError,
            r"the network's actor must return .* shape \(2, 6\) for 2 observations, but returned shape \(2, 3\)",
        ),
        (
            "td3",
            Mine(6, 2),
            ValueError,
            r"the network's actor must return .* shape \(2, 3\) for 2 observations, but returned shape \(2, 6\)",
        ),
        (
            "sac",
            Mine(6, 3),
            ValueError,
            r"network's critics must return .* shape \(2, 2\) for 2 observations, but returned shape \(3, 2\)",
        ),
        (
            "redq",
            Mine(6, 2),
            ValueError,
            r"network's critics must return .* shape \(4, 2\) for 2 observations, but returned shape \(2, 2\)",
        ),
        ("redq", without_members(6, 4), TypeError, r"critics must take \(obs, actions, members=None\)"),
        ("td3", without_members(3, 2), TypeError, r"critics must take \(obs, actions, members=None\)"),
    ],
)
def test_networks_that_do_not_fit_are_refused_before_anything_is_written(
    algo: str, network: nn.Module, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        train_own(tmp_path, algo, network)
    assert list(tmp_path.iterdir()) == []


# --- What it cannot handle -------------------------------------------------------------------------------------------


class Unbounded(Numbers):
    def __init__(self, low: float, high: float) -> None:
        super().__init__(Box(-1.0, 1.0, (3,), np.float32))
        self.action_space = Box(low, high, (2,), np.float32)


@pytest.mark.parametrize("algo", FAMILY)
@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (0.0, np.inf)])
def test_infinite_bounds_are_refused(algo: str, bounds: tuple[float, float], tmp_path: Path) -> None:
    options = RunOptions(env_factory=lambda: Unbounded(*bounds), show_progress=False)
    expected = rf"^{algo} needs finite bounds of every action, but Numbers has Box\({bounds[0]}, inf, .*TransformAction"
    with pytest.raises(SpaceError, match=expected):
        train_sac(config_of(tmp_path, algo=algo, env_id="Numbers", env_kwargs={}), options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algo", FAMILY)
@pytest.mark.parametrize("actions", ["discrete", "multidiscrete", "multibinary"])
def test_choices_are_refused(algo: str, actions: str, tmp_path: Path) -> None:
    expected = rf"^{algo} needs a box action space, but rl_training/Identity-v0 has (Multi)?(Discrete|Binary)\("
    with pytest.raises(SpaceError, match=expected):
        train_sac(config_of(tmp_path, algo=algo, env_kwargs={"actions": actions}), QUIET)
    assert list(tmp_path.iterdir()) == []


def refuse(tmp_path: Path, algo: str, setting: str, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, algo=algo, algo_kwargs={setting: value})
    return str(caught.value)


@pytest.mark.parametrize(
    ("algo", "setting", "value", "message"),
    [
        ("sac", "tau", 1.5, "must be in [0, 1], got 1.5"),
        ("td3", "tau", -0.1, "must be in [0, 1], got -0.1"),
        ("sac", "gradient_updates_per_step", 0, "must be > 0, got 0"),
        ("redq", "gradient_updates_per_step", -1, "must be > 0, got -1"),
        ("sac", "gradient_updates_per_step", float("inf"), "must be > 0, got inf"),
        ("sac", "policy_delay", 0, "must be >= 1, got 0"),
        ("td3", "policy_delay", 1.5, "must be a whole number, got 1.5"),
        ("sac", "learning_rate", 0, "must be > 0, got 0"),
        ("sac", "gamma", 1.01, "must be in [0, 1], got 1.01"),
        ("td3", "exploration_noise", -0.1, "must be >= 0, got -0.1"),
        ("td3", "target_noise", -0.1, "must be >= 0, got -0.1"),
        ("td3", "target_noise_clip", -0.1, "must be >= 0, got -0.1"),
        ("redq", "num_critics", 0, "must be >= 1, got 0"),
        ("redq", "subset_size", 0, "must be >= 1, got 0"),
        ("sac", "hidden_sizes", [0], "must be"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(
    algo: str, setting: str, value: object, message: str, tmp_path: Path
) -> None:
    found = refuse(tmp_path, algo, setting, value)
    assert found.startswith(f"{algo}.algo_kwargs.{setting}")
    assert message in found


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("alpha", "fixed", "must be a number or 'auto', got 'fixed'"),
        ("alpha", -0.1, "must be > 0 or 'auto', got -0.1"),
        ("alpha", 0, "must be > 0 or 'auto', got 0"),
        ("alpha", True, "must be a number or 'auto', got True"),
        ("target_entropy", "max", "must be a number or 'auto', got 'max'"),
        ("max_grad_norm", -1, "must be > 0, got -1"),
    ],
)
def test_a_setting_of_several_kinds_is_refused_in_one_line(
    setting: str, value: object, message: str, tmp_path: Path
) -> None:
    assert refuse(tmp_path, "sac", setting, value) == f"sac.algo_kwargs.{setting} {message}"


def test_a_subset_larger_than_the_ensemble_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, algo="redq", algo_kwargs={"num_critics": 3, "subset_size": 4})
    assert str(caught.value) == "redq.algo_kwargs: subset_size must be at most num_critics, 3, got 4"


@pytest.mark.parametrize(
    ("algo", "setting", "message"),
    [
        ("sac", "alfa", "did you mean 'alpha'?"),
        ("sac", "num_critics", "unknown setting 'num_critics'"),
        ("td3", "alpha", "unknown setting 'alpha'"),
        ("redq", "subset", "did you mean 'subset_size'?"),
        ("sac", "gradient_steps", "unknown setting 'gradient_steps'"),
    ],
)
def test_unknown_settings_are_refused(algo: str, setting: str, message: str, tmp_path: Path) -> None:
    found = refuse(tmp_path, algo, setting, 1)
    assert found.startswith(f"{algo}.algo_kwargs: unknown setting '{setting}'")
    assert message in found


@pytest.mark.parametrize("algo", FAMILY)
def test_the_class_makes_agents(algo: str, tmp_path: Path) -> None:
    managed: Callable[..., Any] = getattr(rl_training, algo.upper())
    agent = managed.for_env("Pendulum-v1", total_timesteps=30, output_dir=tmp_path, show_progress=False)  # type: ignore[attr-defined]
    assert agent.learn().step == 30
    action = agent.predict(np.zeros(3, np.float32))
    assert action.shape == (1,)
    assert agent.config.hparams == type(agent.config.hparams)()
