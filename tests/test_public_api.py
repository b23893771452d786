"""The Python API: an agent for an env id or an env of one's own; learn, evaluate, predict, save, load, go on."""

import builtins
import contextlib
import copy
import inspect
import io
import pickle
import re
import shutil
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TimeLimit, TransformReward
from torch import Tensor, nn

import rl_training.api.algorithms as api
from builders import make_config
from rl_training import DQN, IQL, PPO, SAC, Callback, ManagedAlgorithm, TrainConfig, load_config
from rl_training.envs.tiny import Chain
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.registry import registry
from rl_training.experiment.run_dir import read_run_config
from rl_training.runtime.run import Run

ALGO_KWARGS = {
    "hidden_sizes": [16],
    "batch_size": 8,
    "buffer_capacity": 200,
    "learning_starts": 10,
    "train_frequency": 1,
}
STATES = np.eye(5, dtype=np.float32)


def settings(output_dir: Path, **changes: Any) -> dict[str, Any]:
    quiet = {"show_progress": False, "tensorboard": False, "device": "cpu", "eval_episodes": 2}
    return {**quiet, "output_dir": output_dir, "algo_kwargs": ALGO_KWARGS, **changes}


@pytest.fixture
def agent(tmp_path: Path) -> DQN:
    """Trained for 60 steps."""
    agent = DQN(make_config(tmp_path / "runs"), show_progress=False)
    agent.learn()
    return agent


# --- Making an agent -------------------------------------------------------------------------------------------------


def test_for_an_env_id(tmp_path: Path) -> None:
    agent = DQN.for_env("rl_training/Chain-v0", 40, seed=5, **settings(tmp_path))
    assert agent.config.seed == 5
    result = agent.learn()
    assert (result.step, result.gradient_step) == (40, 30)


@pytest.mark.learning
def test_for_an_env_of_ones_own(tmp_path: Path) -> None:
    agent = DQN.for_env(lambda: Chain(num_states=3), total_timesteps=40, env_id="my chain", **settings(tmp_path))
    result = agent.learn()
    assert "my-chain" in result.run_dir.name
    assert agent.predict(np.eye(3, dtype=np.float32)).shape == (3,)
    assert DQN.for_env(Chain, 40, **settings(tmp_path)).config.env_id == "Chain"


def test_for_env_takes_every_setting_of_a_config_with_its_default() -> None:
    parameters = dict(inspect.signature(DQN.for_env).parameters)
    own = {"env", "network", "dataset", "callbacks", "track", "show_progress", "unknown"}
    assert parameters.keys() - own == TrainConfig.model_fields.keys() - {"algo", "env_factory"}  # `env` is
    assert DQN.for_env("CartPole-v1", 100).config == TrainConfig(algo="dqn", env_id="CartPole-v1", total_timesteps=100)
    hints = typing.get_type_hints(DQN.for_env, {"Self": DQN, "Never": typing.NoReturn, **vars(api)})
    for name in parameters.keys() - own - {"output_dir", "env_kwargs", "algo_kwargs"}:
        assert hints[name] == typing.get_type_hints(TrainConfig)[name], name


def test_for_env_passes_every_setting_on() -> None:
    changes: dict[str, Any] = {
        "algo_kwargs": {"gamma": 0.5},
        "env_kwargs": {"sutton_barto_reward": True},
        "seed": 3,
        "num_envs": 2,
        "device": "cpu",
        "output_dir": Path("elsewhere"),
        "eval_interval": 10,
        "eval_episodes": 7,
        "eval_envs": 2,
        "stop_return": 100.0,
        "log_interval": 11,
        "checkpoint_interval": 12,
        "checkpoint_minutes": 2.0,
        "keep_checkpoints": 4,
        "tensorboard": False,
        "clip_rewards": True,
        "execution_backend": "local_async",
        "worker_timeout": 5.0,
        "worker_start": "spawn",
        "max_episode_steps": 7,
        "acceleration": "eager",
        "matmul_precision": "high",
        "check_compiled_every": 13,
        "threads": 2,
        "deterministic": False,
        "obs_max": {"image": 10},
        "one_hot_obs": True,
        "wrappers": ["gymnasium.wrappers:FlattenObservation"],
    }
    assert changes.keys() == TrainConfig.model_fields.keys() - {"algo", "env_id", "env_factory", "total_timesteps"}
    expected = TrainConfig(algo="dqn", env_id="CartPole-v1", total_timesteps=100, **changes)
    assert DQN.for_env("CartPole-v1", 100, **changes).config == expected


def test_env_id_names_what_a_function_makes() -> None:
    assert DQN.for_env(Chain, 40, env_id="mine").config.env_id == "mine"
    with pytest.raises(TypeError, match="env_id names what a function makes, but env is 'CartPole-v1' already"):
        DQN.for_env("CartPole-v1", 40, env_id="mine")


def chain_of(num_states: int) -> gym.Env[Any, Any]:
    return TimeLimit(Chain(num_states), max_episode_steps=20)


def test_env_kwargs_reach_a_function(tmp_path: Path) -> None:
    agent = DQN.for_env(chain_of, 40, env_kwargs={"num_states": 3}, **settings(tmp_path))
    result = agent.learn()
    assert read_run_config(result.run_dir).env_kwargs == {"num_states": 3}
    assert agent.predict(STATES[:3, :3]).shape == (3,)
    assert DQN.load(result.run_dir, env_factory=chain_of).predict(STATES[:3, :3]).shape == (3,)
    agent = DQN(make_config(tmp_path, env_kwargs={"num_states": 4}), env_factory=chain_of, show_progress=False)
    agent.learn()
    assert agent.predict(STATES[:4, :4]).shape == (4,)


def test_env_kwargs_that_a_function_does_not_take_are_refused() -> None:
    message = (
        r"env_kwargs: Chain cannot be called with \{'states': 3\} \(got an unexpected keyword argument 'states'\); "
        r"give only arguments that it takes"
    )
    with pytest.raises(ConfigError, match=message):
        DQN.for_env(Chain, 40, env_kwargs={"states": 3})
    with pytest.raises(ConfigError, match=message):
        DQN(make_config(Path("runs"), env_kwargs={"states": 3}), env_factory=Chain)
    with pytest.raises(ConfigError, match=r"<lambda> cannot be called with \{'states': 3\} \(got an unexpected"):
        DQN.for_env(lambda: Chain(), 40, env_kwargs={"states": 3})


@pytest.mark.parametrize(
    ("given", "setting", "kind"),
    [
        ({"env_kwargs": {"start": np.zeros(3)}}, "env_kwargs.start", "ndarray"),
        ({"env_kwargs": {"start": len}}, "env_kwargs.start", "builtin_function_or_method"),
        ({"wrappers": [{"class": "gymnasium.wrappers:TransformReward", "func": abs}]}, "wrappers.0.func", "builtin"),
    ],
)
def test_arguments_that_no_config_can_hold_are_refused_at_once(given: Any, setting: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}: config.yaml cannot hold an object of type {kind}.*a function"):
        DQN.for_env(lambda start=0: Chain(), 40, **given)


@pytest.mark.parametrize("env", ["rl_training/Chain-v0", "gymnasium:CartPole-v1", "CartPole"])
def test_an_env_id_waits_for_the_number_of_steps(env: str) -> None:
    agent = DQN(env)
    assert agent.config.env_id == env
    message = re.escape(f"learn() needs the number of steps, such as learn(50_000) or DQN.for_env({env!r}, 50_000)")
    with pytest.raises(ConfigError, match=message):
        agent.learn()


def test_an_env_id_or_function_in_place_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = DQN("rl_training/Chain-v0", show_progress=False)
    assert agent.learn(20).step == 20
    assert read_run_config(agent.learn(40).run_dir).total_timesteps == 40
    assert DQN(Chain).config.env_id == "Chain"
    assert IQL("Pendulum-v1", dataset="data.npz").config.total_timesteps == 0
    with pytest.raises(TypeError, match="give the environment or env_factory, not both"):
        DQN("CartPole-v1", env_factory=Chain)


def test_an_instance_is_copied_by_its_id_and_arguments(tmp_path: Path) -> None:
    env = gym.make("rl_training/Chain-v0", num_states=3)
    agent = DQN.for_env(env, 40, **settings(tmp_path))
    assert (agent.config.env_id, agent.config.env_kwargs) == ("rl_training/Chain-v0", {"num_states": 3})
    agent.learn()
    assert agent.predict(STATES[:3, :3]).shape == (3,)
    assert DQN(gym.make("CartPole-v1", max_episode_steps=7)).config.env_kwargs == {"max_episode_steps": 7}
    assert DQN(gym.make("CartPole-v1", max_episode_steps=-1)).config.env_kwargs == {"max_episode_steps": -1}


def test_an_instance_is_copied_with_its_wrappers(tmp_path: Path) -> None:
    env = FlattenObservation(FrameStackObservation(gym.make("rl_training/Chain-v0"), 2))
    agent = DQN.for_env(env, 40, **settings(tmp_path))
    assert agent.config.wrappers == [
        {
            "class": "gymnasium.wrappers.stateful_observation:FrameStackObservation",
            "stack_size": 2,
            "padding_type": "reset",
        },
        {"class": "gymnasium.wrappers.transform_observation:FlattenObservation"},
    ]
    result = agent.learn()
    assert agent.predict(np.zeros(10)).shape == ()
    assert DQN.load(result.run_dir).predict(np.zeros(10)).shape == ()


class Unrecorded(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


class ChainMap(Chain):
    def __init__(self, cells: tuple[int, ...]) -> None:
        super().__init__(len(cells))


gym.register("ChainMap-v0", f"{__name__}:ChainMap")


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (Chain(), "it was not made by gymnasium.make"),
        (
            Unrecorded(gym.make("rl_training/Chain-v0")),
            "its wrapper Unrecorded does not record its arguments (gymnasium.utils.RecordConstructorArgs)",
        ),
        (
            TimeLimit(gym.make("rl_training/Chain-v0"), 9),
            "gymnasium.make('rl_training/Chain-v0') gives TimeLimit of OrderEnforcing of Chain, not "
            "TimeLimit of TimeLimit of OrderEnforcing of Chain",
        ),
        (
            TransformReward(gym.make("rl_training/Chain-v0"), lambda reward: 2 * float(reward)),
            "config.yaml cannot hold the arguments {'class': 'gymnasium.wrappers.transform_reward:TransformReward'",
        ),
        (
            gym.make("ChainMap-v0", cells=(0, 0, 0)),
            "config.yaml cannot hold the arguments {'cells': (0, 0, 0)}",
        ),
    ],
)
def test_an_instance_that_cannot_be_copied_is_refused(env: gym.Env[Any, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"this environment cannot be copied: {reason}")) as refused:
        DQN.for_env(env, 100)
    name = type(env.unwrapped).__name__
    call = f"DQN.for_env(lambda: {name}(...), 100)"
    assert str(refused.value).endswith(f"give a function that makes it, such as {call}")
    with pytest.raises(ConfigError, match="cannot be copied"):
        DQN(env)


def test_other_things_than_an_env_are_refused() -> None:
    with pytest.raises(
        TypeError, match="env must be a Gymnasium id, one environment or a function that makes one, got"
    ):
        DQN.for_env(3, 100)  # type: ignore[arg-type]
    env = gym.make("CartPole-v1")
    with pytest.raises(TypeError, match="env_kwargs and wrappers are for an id or a function, but env is"):
        DQN.for_env(env, 100, env_kwargs={"max_episode_steps": 9})
    with pytest.raises(TypeError, match="env_id names what a function makes, but env is 'CartPole-v1' already"):
        DQN.for_env(env, 100, env_id="mine")


def test_a_call_in_the_style_of_another_library_is_answered_with_the_one_that_works() -> None:
    env: Any = gym.make("CartPole-v1")
    message = "takes no policy name such as 'MlpPolicy': .* write PPO.for_env\\(env, total_timesteps=50_000\\).learn"
    with pytest.raises(TypeError, match=message):
        PPO("MlpPolicy", env)
    with pytest.raises(TypeError, match=message):
        PPO("MlpPolicy", env, verbose=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"does not take the setting 'seed'; .*50_000, seed=\.\.\.\) does"):
        PPO("CartPole-v1", seed=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"does not take a second argument, got 5000; PPO\.for_env"):
        PPO("CartPole-v1", 5_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("gamma", "PPO(...) does not take the setting 'gamma'; {call}, algo_kwargs={{\"gamma\": ...}}) does"),
        ("total_timesteps", "PPO(...) does not take the setting 'total_timesteps'; {call}) does"),
        ("verbose", "PPO has no setting 'verbose'; its settings are arguments of {call}, ...)"),
    ],
)
def test_a_setting_that_the_class_does_not_take_is_answered_with_its_place(setting: str, answer: str) -> None:
    with pytest.raises(TypeError) as refused:
        PPO("CartPole-v1", **{setting: 1})  # type: ignore[arg-type]
    assert str(refused.value) == answer.format(call="PPO.for_env(env, total_timesteps=50_000")


def test_from_a_config_file(tmp_path: Path) -> None:
    assert DQN("configs/dqn/cartpole.yaml").config == load_config("configs/dqn/cartpole.yaml")
    path = tmp_path / "own.yaml"
    path.write_text(make_config(tmp_path).to_yaml())
    assert DQN(path).config == make_config(tmp_path)


class OwnNetwork(nn.Module):
    """A user's network: not a sequence of known layers, and with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, obs: Tensor) -> Tensor:
        out: Tensor = self.out(obs + torch.tanh(self.hidden(obs)))
        return out


@pytest.mark.parametrize(
    ("algo", "env_id", "size"),
    [("dqn", "rl_training/Chain-v0", 5), ("ppo", "tensor/CartPole-v1", 4), ("sac", "Pendulum-v1", 3)],
)
@pytest.mark.parametrize("place", ["no_grad", "inference_mode", "float64", "meta device"])
def test_settings_of_torch_around_a_call_change_nothing(
    place: str, algo: str, env_id: str, size: int, tmp_path: Path
) -> None:
    config, obs = make_config(tmp_path, algo=algo, env_id=env_id, total_timesteps=40), STATES[:, :size]
    plain, inside = (api.managed_class(algo)(config, show_progress=False) for _ in range(2))
    plain.learn()
    with TORCH_PLACES[place]():
        before = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
        inside.learn()
        loaded = type(inside).load(inside.save(tmp_path / "saved"), show_progress=False)
        actions, episodes = loaded.predict(obs), loaded.evaluate()
        assert (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()) == before
    assert np.array_equal(actions, plain.predict(obs))
    assert episodes == plain.evaluate()
    assert inside.learn(60).step == 60


@contextlib.contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


TORCH_PLACES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": float64_by_default,
    "meta device": lambda: torch.device("meta"),
}


def test_with_a_network_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = OwnNetwork()
    before = network.out.weight.clone()
    agent = DQN.for_env("rl_training/Chain-v0", 40, network=network, **settings(tmp_path))
    result = agent.learn()
    assert not torch.equal(network.out.weight, before)  # this very network was trained
    expected = network(torch.from_numpy(STATES)).argmax(1).tolist()
    assert agent.predict(STATES).tolist() == expected
    loaded = DQN.load(result.run_dir, network=OwnNetwork(), show_progress=False)
    assert loaded.predict(STATES).tolist() == expected
    with pytest.raises(CheckpointError, match=r"belong to another network: missing .* unexpected hidden"):
        DQN.load(result.run_dir)


class Notes(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.losses = 0

    def on_step(self, run: Run) -> None:
        self.steps.append(run.step)
        self.losses += "loss" in run.last_metrics


def test_with_a_callback(tmp_path: Path) -> None:
    notes = Notes()
    DQN.for_env("rl_training/Chain-v0", 30, callbacks=[notes], **settings(tmp_path)).learn()
    assert notes.steps == list(range(1, 31))
    assert notes.losses == 20  # from the first update on


# --- Copies ----------------------------------------------------------------------------------------------------------


class Keep(Callback):
    """Copies the agent at step 20, with what its policy says there."""

    agent: ManagedAlgorithm

    def on_step(self, run: Run) -> None:
        if run.step == 20:
            self.kept, self.actions = copy.deepcopy(self.agent), self.agent.predict(STATES[:, :3])


def test_a_copy_that_is_made_during_training_keeps_its_policy(tmp_path: Path) -> None:
    keep = Keep()
    config = make_config(tmp_path, algo="sac", env_id="Pendulum-v1", total_timesteps=40, eval_episodes=1)
    keep.agent = SAC(config, callbacks=[keep], show_progress=False)
    keep.agent.learn()
    assert np.array_equal(keep.kept.predict(STATES[:, :3]), keep.actions)
    assert not np.array_equal(keep.agent.predict(STATES[:, :3]), keep.actions)


def test_an_agent_can_be_sent_to_another_process(agent: DQN, tmp_path: Path) -> None:
    sent = pickle.loads(pickle.dumps(agent))
    assert sent.predict(STATES).tolist() == agent.predict(STATES).tolist()
    assert sent.evaluate(episodes=2) == agent.evaluate(episodes=2)
    assert sent.learn(80).step == 80
    untrained = DQN.for_env("rl_training/Chain-v0", 40, **settings(tmp_path))
    assert pickle.loads(pickle.dumps(untrained)).learn().step == 40


def test_a_sent_agent_keeps_a_network_of_ones_own(tmp_path: Path) -> None:
    agent = DQN.for_env("rl_training/Chain-v0", 40, network=OwnNetwork(), **settings(tmp_path))
    agent.learn()
    assert copy.deepcopy(agent).predict(STATES).tolist() == agent.predict(STATES).tolist()


def test_a_result_is_sent_to_another_process_without_the_algorithm(tmp_path: Path) -> None:
    result = DQN.for_env("rl_training/Chain-v0", 40, **settings(tmp_path)).learn()
    sent = pickle.loads(pickle.dumps(result))
    assert (sent.eval_return, sent.run_dir, sent.step) == (result.eval_return, result.run_dir, 40)
    with pytest.raises(AttributeError, match=f"does not have its algorithm: load the agent from {result.run_dir}"):
        sent.algorithm.act(STATES)


# --- Using it --------------------------------------------------------------------------------------------------------


def test_evaluate_plays_whole_episodes_with_fixed_seeds(agent: DQN) -> None:
    episodes = agent.evaluate(episodes=3)
    assert [episode.episode for episode in episodes] == [0, 1, 2]
    assert [e.record() for e in agent.evaluate(episodes=3)] == [e.record() for e in episodes]
    assert len(agent.evaluate()) == agent.config.eval_episodes
    assert [episode.seed for episode in agent.evaluate(seeds=[7, 8])] == [7, 8]


def test_predict_takes_one_observation_or_many(agent: DQN) -> None:
    batch = agent.predict(STATES)
    assert batch.shape == (5,)
    singles = [agent.predict(state) for state in STATES]
    assert all(np.ndim(action) == 0 for action in singles)
    assert singles == batch.tolist()
    assert agent.predict(STATES[0].tolist()) == singles[0]
    assert agent.predict(STATES.astype(np.float64)).tolist() == batch.tolist()


def test_a_stochastic_policy_can_be_sampled(tmp_path: Path) -> None:
    agent = PPO(make_config(tmp_path, algo="ppo", total_timesteps=20), show_progress=False)
    agent.learn()
    many = np.repeat(STATES[:1], 200, axis=0)
    assert len(set(agent.predict(many).tolist())) == 1
    assert set(agent.predict(many, deterministic=False).tolist()) == {0, 1}
    assert agent.player(deterministic=False)(STATES[0]) in (0, 1)


def test_sampled_actions_are_those_of_the_policy_not_of_the_warm_up(tmp_path: Path) -> None:
    config = make_config(tmp_path, algo="sac", env_id="Pendulum-v1", total_timesteps=20, eval_episodes=1)
    agent = SAC(config.updated(algo_kwargs={**config.algo_kwargs, "learning_starts": 20}), show_progress=False)
    actor: Any = agent.learn().algorithm
    actor.recipe.explore = lambda outputs, generator: np.full((len(outputs), 1), 0.25, np.float32)
    assert agent.predict(np.zeros(3), deterministic=False) == pytest.approx(0.5)  # of [-2, 2]


def test_a_policy_that_is_not_stochastic_cannot_be_sampled(agent: DQN) -> None:
    with pytest.raises(ValueError, match="dqn has no stochastic policy to sample from: leave deterministic at True"):
        agent.predict(STATES, deterministic=False)


def test_every_stochastic_algorithm_is_known() -> None:
    stochastic = {name for name, spec in registry().items() if spec.stochastic}
    assert stochastic == {
        "ppo",
        "recurrent_ppo",
        "gail",
        "sac",
        "redq",
        "tqc",
        "discrete_sac",
        "crossq",
        "simbav2",
        "mbpo",
        "mopo",
        "dreamer",
        "iql",
        "iql_online",
        "bc",
        "cql",
        "cal_ql",
        "rlpd",
    }


class FromFive(gym.Env[Any, Any]):
    """Observations and actions that do not start at 0; each episode is one step."""

    observation_space = Discrete(3, start=10)
    action_space = Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(10, 13), {}

    def step(self, action: Any) -> Any:
        assert action in (5, 6)
        return np.int64(10), float(action == 6), True, False, {}


def test_spaces_that_do_not_start_at_zero(tmp_path: Path) -> None:
    algo_kwargs = {**ALGO_KWARGS, "learning_rate": 0.01, "epsilon_end": 1.0}
    agent = DQN.for_env(FromFive, 200, **settings(tmp_path, algo_kwargs=algo_kwargs))
    assert agent.learn().eval_return == 1.0
    assert agent.predict(10) == 6
    assert agent.predict(np.array([10, 11, 12])).tolist() == [6, 6, 6]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_predict_returns_actions_of_the_space(dtype: Any, tmp_path: Path) -> None:
    class Numbers(FromFive):
        action_space = Box(-1.0, 1.0, (2,), dtype)  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            return np.int64(10), 0.0, True, False, {}

    agent = SAC.for_env(Numbers, 4, **settings(tmp_path, algo_kwargs={"hidden_sizes": [8]}))
    agent.learn()
    assert Numbers.action_space.contains(agent.predict(10))


def test_predict_reads_no_file(agent: DQN, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.predict(STATES)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"read {args}")

    with monkeypatch.context() as patch:
        for owner, name in (
            (builtins, "open"),
            (io, "open"),
            (Path, "open"),
            (Path, "read_text"),
            (Path, "read_bytes"),
        ):
            patch.setattr(owner, name, refuse)
        patch.setattr("rl_training.experiment.state_files.safe_open", refuse)
        patch.setattr("rl_training.api.algorithms.load_policy", refuse)
        actions = agent.predict(STATES)
    assert actions.shape == (5,)


def test_predict_casts_images_as_training_does(tmp_path: Path) -> None:
    env_kwargs = {"size": 6}
    agent = DQN.for_env("rl_training/TinyImage-v0", 20, env_kwargs=env_kwargs, **settings(tmp_path))
    agent.learn()
    images = np.random.default_rng(0).integers(256, size=(4, 6, 6, 1), dtype=np.uint8)
    assert agent.predict(images.astype(np.int64)).tolist() == agent.predict(images).tolist()
    assert agent.predict(images[::2]).tolist() == agent.predict(images).tolist()[::2]


# --- Keeping it ------------------------------------------------------------------------------------------------------


def test_save_and_load_give_the_same_agent(agent: DQN, tmp_path: Path) -> None:
    path = agent.save(tmp_path / "agent")
    loaded = DQN.load(path, show_progress=False)
    assert loaded.predict(STATES).tolist() == agent.predict(STATES).tolist()
    assert [e.record() for e in loaded.evaluate()] == [e.record() for e in agent.evaluate()]
    assert loaded.config.hparams == agent.config.hparams


def test_learning_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = DQN(make_config(tmp_path / "whole", total_timesteps=100), show_progress=False)
    expected = whole.learn()
    # The decay of epsilon depends on the length of the run, so the first part has that length and is stopped.
    parted = DQN(make_config(tmp_path / "parted", total_timesteps=100), callbacks=[StopAt(45)], show_progress=False)
    assert parted.learn().step == 45
    result = parted.learn()
    assert (result.step, result.gradient_step) == (100, expected.gradient_step)
    ours, theirs = (r.algorithm.policy_state_dict() for r in (result, expected))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert result.run_dir.parent == tmp_path / "parted"
    assert len(list((tmp_path / "parted").iterdir())) == 1  # in the same run folder


class FailAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            self.step = 0
            raise RuntimeError("a mistake")


def test_an_agent_continues_after_an_error(tmp_path: Path) -> None:
    agent = DQN("rl_training/Chain-v0", callbacks=[FailAt(30)], show_progress=False)
    agent.config = agent.config.model_copy(update={"output_dir": tmp_path})
    with pytest.raises(RuntimeError, match="a mistake"):
        agent.learn(60)
    assert agent.predict(STATES).shape == (5,)
    assert agent.learn().step == 60
    assert len(list(tmp_path.iterdir())) == 1


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            run.stop_reason = "for the test"


def test_a_finished_run_can_be_lengthened(agent: DQN) -> None:
    finished = r"^the run is finished at 60 steps; learn\(total_timesteps=120\) continues it$"
    with pytest.raises(ConfigError, match=finished):
        agent.learn()
    with pytest.raises(ConfigError, match=finished):
        agent.learn(total_timesteps=50)
    assert agent.config.total_timesteps == 60  # what was refused changes nothing
    assert agent.learn(total_timesteps=90).step == 90
    assert agent.config.total_timesteps == 90
    with pytest.raises(ConfigError, match="the run is finished at 90 steps"):
        agent.learn()


def test_a_loaded_agent_learns_on(agent: DQN, tmp_path: Path) -> None:
    path = agent.save(tmp_path / "kept" / "agent")
    loaded = DQN.load(path, show_progress=False)
    result = loaded.learn(total_timesteps=80)
    assert result.step == 80
    assert result.run_dir.parent == tmp_path / "runs"  # a saved agent lies in no run folder: it goes on in a new one
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["agent"]
    assert DQN.load(path).predict(STATES).tolist() == agent.predict(STATES).tolist()  # what was saved stays


def test_learn_may_set_the_length(tmp_path: Path) -> None:
    agent = DQN(make_config(tmp_path, total_timesteps=10_000), show_progress=False)
    assert agent.learn(total_timesteps=20).step == 20
    assert agent.config.total_timesteps == 20


# --- Mistakes --------------------------------------------------------------------------------------------------------


def test_an_agent_without_a_policy_says_so(tmp_path: Path) -> None:
    agent = DQN(make_config(tmp_path))
    with pytest.raises(RuntimeError, match="no policy yet: call learn"):
        agent.predict(STATES)
    with pytest.raises(RuntimeError, match="no policy yet"):
        agent.evaluate()
    with pytest.raises(CheckpointError, match="nothing to save yet: call learn"):
        agent.save(tmp_path / "agent")


def test_observations_of_another_shape_are_refused(agent: DQN) -> None:
    for wrong in (np.zeros(4), np.zeros((2, 4)), np.zeros((1, 1, 5)), 3.0):
        with pytest.raises(ValueError, match=r"an observation has shape \(5,\), a batch \(n, 5\); got \("):
            agent.predict(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "must hold numbers, got None"),
        ("left", "must hold numbers, got 'left'"),
        ({3}, "must hold numbers, got {3}"),
        (["1"] * 5, "must hold numbers, got ['1', '1', '1', '1', '1']"),
        (np.zeros(5, np.complex64), "must hold numbers, got array([0.+0.j"),
        (np.zeros(5, "datetime64[s]"), "must hold numbers, got array(['1970"),
        ([None] * 5, "must hold finite numbers (float32), got [[None"),
        ([[0.0] * 5, [0.0]], "must be one array of numbers: setting an array element with a sequence"),
        (np.full(5, 1e300), "must hold finite numbers (float32), got [[1e+300"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_observation_of_something_else_than_numbers_is_refused(agent: DQN, wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"an observation {message}")):
        agent.predict(wrong)


def test_what_reset_and_step_return_is_refused_as_an_observation(agent: DQN) -> None:
    env = gym.make("rl_training/Chain-v0")
    returned: list[Any] = [env.reset(), env.step(0)]
    for wrong in returned:
        with pytest.raises(ValueError, match=r"got the tuple that env.reset or env.step returns: give its first entry"):
            agent.predict(wrong)


def test_predict_takes_a_tensor_with_gradients(agent: DQN) -> None:
    assert agent.predict(torch.eye(5, requires_grad=True)).tolist() == agent.predict(STATES).tolist()


def test_seeds_of_an_evaluation_may_be_an_array(agent: DQN) -> None:
    assert agent.evaluate(seeds=np.array([3, 4])) == agent.evaluate(seeds=[3, 4])  # type: ignore[arg-type]


def test_zero_evaluation_episodes_are_refused(agent: DQN) -> None:
    with pytest.raises(ConfigError, match="episodes must be >= 1, got 0"):
        agent.evaluate(episodes=0)
    with pytest.raises(ConfigError, match="seeds must hold at least one seed"):
        agent.evaluate(seeds=[])


def test_counts_and_seeds_of_another_kind_are_refused(agent: DQN) -> None:
    with pytest.raises(TypeError, match=r"episodes must be a whole number, got 2\.5"):
        agent.evaluate(2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"seeds must be a list of reset seeds, such as \[3\], got 3"):
        agent.evaluate(seeds=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        agent.evaluate(seeds=[3.7])  # type: ignore[list-item]


def test_saving_after_the_run_folder_was_deleted_names_what_is_missing(agent: DQN, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(CheckpointError, match=r"cannot copy .*step_000000060: it was deleted or moved after training"):
        agent.save(tmp_path / "agent")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_not_overwritten(agent: DQN, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="exists already"):
        agent.save(tmp_path)


def test_the_parent_of_all_agents_names_the_class_that_loads_a_run(agent: DQN, tmp_path: Path) -> None:
    path = agent.save(tmp_path / "agent")
    with pytest.raises(TypeError, match=re.escape(f"ManagedAlgorithm has no algorithm: write DQN.load({str(path)!r})")):
        ManagedAlgorithm.load(path)


def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no run or checkpoint at"):
        DQN.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint$"):
        DQN.load(tmp_path)


def test_the_folder_of_all_runs_is_refused_with_one_of_them(agent: DQN, tmp_path: Path) -> None:
    run_dir = agent.learn(70).run_dir
    with pytest.raises(
        CheckpointError, match=re.escape(f"holds no checkpoint; give one of the runs in it, such as {run_dir}")
    ):
        DQN.load(tmp_path / "runs")


def test_settings_are_checked_when_the_agent_is_made() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'sed'; did you mean 'seed'"):
        DQN.for_env("CartPole-v1", 100, sed=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dqn\.algo_kwargs\.gamma must be in \[0, 1\], got 2"):
        DQN.for_env("CartPole-v1", 100, algo_kwargs={"gamma": 2})
    with pytest.raises(ConfigError, match="total_timesteps must be >= 1, got 0"):
        DQN.for_env("CartPole-v1", 0)


def test_a_config_of_another_algorithm_is_refused() -> None:
    class Other(DQN):
        algo_name = "other"

    with pytest.raises(ConfigError, match="Other trains 'other', but the config's algo is 'dqn'"):
        Other(TrainConfig(algo="dqn", env_id="x", total_timesteps=1))


class BoxActions(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)  # type: ignore[assignment]


def test_an_env_that_dqn_cannot_control_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="dqn needs a discrete action space, but BoxActions has Box"):
        DQN.for_env(BoxActions, 20, **settings(tmp_path)).learn()
